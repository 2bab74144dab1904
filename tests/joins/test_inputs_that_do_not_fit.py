"""Texts, rows and resumed runs that do not fit each other: trained on as they are, or refused with what to do."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from test_resume_continues_bit_for_bit import StopAt, resume

import wyrmling
from small_texts import small_text
from wyrmling import Config
from wyrmling.errors import CheckpointError, ConfigError, DataError
from wyrmling.watch.jsonl import read_events

Make = Callable[..., Config]
STREAMS = ("training.tbptt_persist_across_steps=true", "training.epochs=1", "training.max_iters=none")
SMALL = ("model.n_layer=1", "model.n_embd=8", "model.latent_total=16", "dataset.train_split_ratio=1.0")


def records(tmp_path: Path, texts: list[str]) -> tuple[str, ...]:
    """A source whose records are documents."""
    file = tmp_path / "records.jsonl"
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    return (
        "dataset.type=jsonl",
        f'dataset.path="{file.as_posix()}"',
        "dataset.field=text",
        'dataset.document_separator=""',
    )


def trained_once(config: Config, texts: list[str]) -> None:
    """One epoch, in which every byte that has one before it in its text is predicted once."""
    expected = sum(max(len(text) - 1, 0) for text in texts)
    done = wyrmling.train(config)
    assert done.reason == "finished"
    last = [event for event in read_events(done.run.events_path) if event["event"] == "step"][-1]
    assert last["tokens_seen"] == expected > 0


def test_documents_shorter_than_a_row(tiny_config: Make, tmp_path: Path) -> None:
    """Rows are padded, padding is no target; what has no second token is left out."""
    texts = [*(line[:17].strip() for line in small_text(40).splitlines()), "", "a", "to be"]
    short = records(tmp_path, texts)
    trained_once(tiny_config(*SMALL, *short, *STREAMS, "training.block_size=64"), texts)


@pytest.mark.parametrize("documents", [1, 2, 3])
def test_fewer_documents_than_rows(tiny_config: Make, tmp_path: Path, documents: int) -> None:
    """Rows share a document's blocks; none is read twice."""
    texts = [small_text(9, seed).strip() for seed in range(documents)]
    few = records(tmp_path, texts)
    rows = ("training.batch_size=4", "training.block_size=16")
    trained_once(tiny_config(*SMALL, *few, *STREAMS, *rows), texts)


@pytest.mark.parametrize("order", ["random", "epochs"])
def test_a_text_shorter_than_a_row_is_refused(tiny_config: Make, order: str) -> None:
    with pytest.raises(DataError, match=r"training\.block_size") as caught:
        wyrmling.train(tiny_config(f"training.order={order}", "training.block_size=100000"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("start", [(), ("training.tbptt_persist_across_steps=true",)])
@pytest.mark.parametrize(
    ("changes", "named"),
    [
        (("training.batch_size=8",), "training.batch_size: 4 -> 8"),
        (("training.gradient_accumulation_steps=3",), "training.gradient_accumulation_steps: 1 -> 3"),
        (("training.target_effective_batch_size=9",), "training.target_effective_batch_size: None -> 9"),
        (
            ("training.batch_size=2", "training.gradient_accumulation_steps=2"),
            "training.batch_size: 4 -> 2; training.gradient_accumulation_steps: 1 -> 2",
        ),
    ],
)
def test_a_run_does_not_go_on_with_other_rows(
    tiny_config: Make, start: tuple[str, ...], changes: tuple[str, ...], named: str
) -> None:
    """Nor with the same rows cut otherwise, since sums would be rounded otherwise; not even inexactly."""
    config = tiny_config(*SMALL, *start)
    stopped = wyrmling.train(config, callbacks=[StopAt(2)])
    for allow_inexact in (False, True):
        with pytest.raises(CheckpointError) as caught:
            wyrmling.train(resume(config, stopped.run.path, *changes), allow_inexact=allow_inexact)
        message = str(caught.value)
        assert named in message
        assert "start a new run" in message
        assert "init_from_checkpoint" in message


def test_a_trigger_has_no_row_to_be_longer_than(tiny_config: Make) -> None:
    """Memories that wait for a trigger are not in this version, and their table is refused."""
    with pytest.raises(ConfigError, match=r"model\.summary_memory is not in this version"):
        tiny_config('model.summary_memory.trigger_text="to be or not to be"')
