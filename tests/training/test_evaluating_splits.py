"""Evaluation: every target exactly once, with or without the state, and the same number by hand."""

from __future__ import annotations

import gzip
import json
import math
import pickle
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import wyrmling
from wyrmling import Config
from wyrmling.cli.main import app
from wyrmling.config.schema.model import Model as ModelConfig
from wyrmling.data.dataset import Dataset
from wyrmling.data.streams import Documents
from wyrmling.errors import CheckpointError, ConfigError, DataError
from wyrmling.model import Model
from wyrmling.text.tokenizers import ByteTokenizer, CharTokenizer, PretokenizedTokenizer, Tokenizer
from wyrmling.training.evaluate import _split
from wyrmling.training.evaluation import (
    Evaluation,
    evaluate_split,
    read_side_by_side,
    sample_of,
    validate,
)
from wyrmling.training.machine import Machine

Make = Callable[..., Config]
MACHINE = Machine(torch.device("cpu"), torch.float64, 1, False, ())
BYTES, ENDED = ByteTokenizer(), ByteTokenizer(add_special_tokens=True)


def model(tokenizer: Tokenizer = BYTES) -> Model:
    table = ModelConfig(n_layer=2, n_embd=8, n_head=2, latent_total=32)
    return Model(table, tokenizer.vocab_size, seed=4).double()


@settings(max_examples=12)
@given(length=st.integers(2, 60), block=st.integers(1, 20), rows=st.integers(1, 4))
def test_every_target_once_with_a_carried_state(length: int, block: int, rows: int) -> None:
    """With one row: the loss of one pass over the whole text. With more: each row's share from an empty state."""
    ours = model()
    text = bytes((7 * i * i + 3 * i) % 125 for i in range(length))
    split = Dataset.from_texts(text.decode(), tokenizer=BYTES).train
    found = evaluate_split(ours, split, BYTES, MACHINE, block_size=block, rows=rows, carry_state=True)
    assert found.targets == length - 1
    assert found.text_bytes == length - 1
    ids = torch.tensor(list(text))[None]
    share = block * math.ceil(math.ceil((length - 1) / block) / rows)
    total = 0.0
    with torch.no_grad():
        for begin in range(0, length - 1, share):
            part = ids[:, begin : begin + share + 1]
            total += float(ours.token_losses(ours(part[:, :-1])[0], part[:, 1:]).sum())
    assert found.loss == pytest.approx(total / (length - 1), rel=1e-9)
    assert found.bits_per_byte == pytest.approx(found.loss / math.log(2))


@pytest.mark.parametrize("chunk", [None, 7])
def test_an_end_of_text_is_in_the_loss_and_never_in_the_bits_per_byte(chunk: int | None) -> None:
    """By hand: nats over every target; bits and bytes of the text alone; what the ends cost stands apart."""
    documents, ours = ["ab", "c", "the end", "é"] * 5, model(ENDED)
    split = Dataset.from_texts(documents, tokenizer=ENDED).train
    found = validate(ours, split, ENDED, MACHINE, block_size=20, rows=2, batches=99, seed=1, chunk=chunk)
    ids = torch.from_numpy(split.read(0, len(split)))
    with torch.no_grad():
        losses = torch.cat(
            [
                ours.token_losses(ours(part[None, :-1])[0], part[None, 1:])[0]
                for part in (ids[begin : begin + 21] for begin in range(0, len(ids) - 1, 20))
            ]
        )
    ends = ids[1:] == ENDED.eos_id
    assert (found.targets, found.textless, found.unmeasured) == (len(ids) - 1, 20, 0)
    assert found.text_bytes == len("".join(documents).encode()) - 1  # nothing predicts the first
    assert found.loss == pytest.approx(float(losses.mean()), rel=1e-9)
    assert found.textless_loss == pytest.approx(float(losses[ends].mean()), rel=1e-9)
    bits = float(losses[~ends].sum()) / math.log(2)
    assert found.bits_per_byte == pytest.approx(bits / found.text_bytes, rel=1e-9)


def test_bits_per_byte_of_characters_are_known_where_none_was_unknown() -> None:
    tokenizer = CharTokenizer("abcé ")
    ours = model(tokenizer)

    def measured(text: str) -> Evaluation:
        split = Dataset.from_texts(text, tokenizer=tokenizer).train
        return evaluate_split(ours, split, tokenizer, MACHINE, block_size=8, rows=1, carry_state=True)

    known = measured("abc é cab é é" * 3)
    assert (known.targets, known.text_bytes, known.unmeasured) == (38, 47, 0)
    assert known.bits_per_byte == pytest.approx(known.loss * 38 / math.log(2) / 47)
    unknown = measured("abc é cab é x" * 3)
    assert unknown.unmeasured == 3
    assert unknown.bits_per_byte is None
    assert unknown.textless_loss is None


def test_a_reset_state_is_another_measure() -> None:
    split = Dataset.from_texts(["to be or not to be, that is the question " * 8], tokenizer=BYTES).train
    carried = evaluate_split(model(), split, BYTES, MACHINE, block_size=16, rows=1, carry_state=True)
    reset = evaluate_split(model(), split, BYTES, MACHINE, block_size=16, rows=1, carry_state=False)
    assert carried.targets == reset.targets
    assert carried.loss != reset.loss


def test_a_file_can_be_evaluated(tiny_config: Make, tmp_path: Path) -> None:
    result = wyrmling.train(tiny_config())
    loaded = wyrmling.load_run(result.run.path)
    file = tmp_path / "other.txt"
    file.write_text("not to be, that is the question\n", encoding="utf-8")
    found = wyrmling.evaluate(loaded, text=file)
    assert found.targets == 31
    assert found.perplexity == pytest.approx(math.exp(found.loss))
    file.write_text("a", encoding="utf-8")
    with pytest.raises(DataError, match="nothing to predict"):
        wyrmling.evaluate(loaded, text=file)
    with pytest.raises(DataError, match="there is no file"):
        wyrmling.evaluate(loaded, text=tmp_path / "missing.txt")


def test_a_run_on_token_ids_is_evaluated_on_files_of_ids_and_on_texts_of_them(
    tiny_config: Make, tmp_path: Path
) -> None:
    ids = np.arange(2000) % 7
    ids.astype(">u2").tofile(tmp_path / "train.bin")
    keys = [
        "path=" + str(tmp_path / "train.bin"),
        "dtype=uint16",
        "byte_order=big",
        "tokenizer.type=pretokenized",
    ]
    keys += ["type=pretokenized", "tokenizer.vocab_size=9", "split=ratio"]
    run = wyrmling.train(tiny_config(*(f"dataset.{key}" for key in keys), 'generation.prompt="1 2"')).run
    loaded = wyrmling.load_run(run.path)
    ids[:50].astype(">u2").tofile(tmp_path / "raw")
    np.save(tmp_path / "array", ids[:50])
    (tmp_path / "text").write_text(" ".join(map(str, ids[:50])))
    found = [wyrmling.evaluate(loaded, text=tmp_path / name) for name in ("raw", "array.npy", "text")]
    assert found[0].targets == 49
    assert found[0] == found[1] == found[2]


def test_a_file_is_evaluated_as_the_runs_own_texts_are_opened(tiny_config: Make, tmp_path: Path) -> None:
    """Compressed or not is the same text; what the run's encoding does not read is refused by name."""
    loaded = wyrmling.load_run(wyrmling.train(tiny_config()).run.path)
    text = "nöt to be, that is the question\n" * 4
    (tmp_path / "plain").write_bytes(text.encode())
    (tmp_path / "packed").write_bytes(gzip.compress(text.encode()))
    (tmp_path / "wide").write_bytes(text.encode("utf-16"))
    (tmp_path / "pickle").write_bytes(pickle.dumps([text]))
    plain = wyrmling.evaluate(loaded, text=tmp_path / "plain")
    assert wyrmling.evaluate(loaded, text=tmp_path / "packed") == plain
    for name, word in (("wide", 'dataset.encoding = "utf-16"'), ("pickle", "pickle")):
        with pytest.raises(DataError, match=word):
            wyrmling.evaluate(loaded, text=tmp_path / name)
    source = tmp_path / "corpus.txt"
    source.write_bytes((text * 20).encode("utf-16"))
    wide = wyrmling.train(
        tiny_config("dataset.type=local_text", f"dataset.path={source}", "dataset.encoding=utf-16")
    )
    loaded = wyrmling.load_run(wide.run.path)
    assert wyrmling.evaluate(loaded, text=tmp_path / "wide").targets == plain.targets
    with pytest.raises(DataError, match="--encoding"):
        wyrmling.evaluate(loaded, text=tmp_path / "plain")
    words = ["evaluate", str(loaded.run.path), "--text", str(tmp_path / "plain"), "--json", "--encoding"]
    told = CliRunner().invoke(app, [*words, "utf-8"])
    assert json.loads(told.stdout)["tokens"] == plain.targets
    with pytest.raises(ConfigError, match="--encoding: 'rot13'"):
        wyrmling.evaluate(loaded, text=tmp_path / "plain", encoding="rot13")
    words = ["generate", str(loaded.run.path), "--prompt-file", str(tmp_path / "plain"), "--max-tokens", "2"]
    assert CliRunner().invoke(app, [*words, "--encoding", "utf-8"]).exit_code == 0


def test_the_validation_split_is_the_runs_own(tiny_config: Make) -> None:
    """A validation that reads the whole split agrees with the evaluation that resets its state."""
    config = tiny_config("training.validation_batches=1000")
    result = wyrmling.train(config)
    loaded = wyrmling.load_run(result.run.path)
    found = wyrmling.evaluate(loaded, carry_state=False, rows=config.training.batch_size)
    assert found.loss == pytest.approx(result.validation_loss, rel=1e-5)


def test_a_loss_that_is_not_finite_is_no_result(tiny_config: Make) -> None:
    """Finite weights, and scores that overflow."""
    loaded = wyrmling.load_run(wyrmling.train(tiny_config()).run.path)
    with torch.no_grad():
        loaded.model.lm_head.fill_(1e38)
    with pytest.raises(CheckpointError, match=r"step 12: the loss on .* is not finite.*--checkpoint"):
        wyrmling.evaluate(loaded)


def test_nothing_to_validate_on_is_said(tiny_config: Make) -> None:
    result = wyrmling.train(tiny_config("dataset.train_split_ratio=1.0"))
    assert result.validation_loss is None
    with pytest.raises(DataError, match="no validation split"):
        wyrmling.evaluate(wyrmling.load_run(result.run.path))


def test_the_same_windows_are_validated_every_time() -> None:
    """Two validations of one model agree to the last bit, also where the split is larger than the sample."""
    split = Dataset.from_texts("to be or not to be, that is the question " * 60, tokenizer=BYTES).train
    ours = model()
    losses = {
        validate(ours, split, BYTES, MACHINE, block_size=16, rows=2, batches=3, seed=1).loss for _ in range(2)
    }
    assert len(losses) == 1
    other = validate(ours, split, BYTES, MACHINE, block_size=16, rows=2, batches=3, seed=2)
    assert other.loss not in losses
    assert other.targets == 96
    assert torch.is_grad_enabled()
    assert not torch.is_inference_mode_enabled()


@pytest.mark.parametrize("at_a_time", [1, 100, 10**6])
@pytest.mark.parametrize("whole", [True, False])
def test_small_batches_read_together_lose_nothing(
    monkeypatch: pytest.MonkeyPatch, at_a_time: int, whole: bool
) -> None:
    """However many steps are joined: the same targets, the same loss, and every step is told once it is read."""
    from wyrmling.training import evaluation

    split = Dataset.from_texts("to be or not to be, that is the question " * 9, tokenizer=BYTES).train
    told: list[tuple[int, int]] = []

    def measure() -> evaluation.Evaluation:
        if not whole:
            return validate(model(), split, BYTES, MACHINE, block_size=16, rows=3, batches=5, seed=1)
        return evaluate_split(
            model(),
            split,
            BYTES,
            MACHINE,
            block_size=16,
            rows=3,
            carry_state=False,
            progress=lambda *done: told.append(done),
        )

    monkeypatch.setattr(evaluation, "TOKENS_AT_A_TIME", 1)
    alone = measure()
    told.clear()
    monkeypatch.setattr(evaluation, "TOKENS_AT_A_TIME", at_a_time)
    joined = measure()
    assert joined.targets == alone.targets
    assert joined.text_bytes == alone.text_bytes
    assert joined.loss == pytest.approx(alone.loss, rel=1e-12)
    if whole:
        assert told[-1] == (split.stop - 1, split.stop - 1)
        assert told == sorted(set(told))


DOCUMENTS = st.lists(st.integers(1, 40), min_size=2, max_size=9).filter(lambda lengths: max(lengths) > 1)


@settings(max_examples=15)
@given(lengths=DOCUMENTS, block=st.integers(1, 16), rows=st.integers(1, 4), carry=st.booleans())
def test_documents_apart_are_scored_each_from_its_own_start(
    lengths: list[int], block: int, rows: int, carry: bool
) -> None:
    """By hand, document by document: read through with a living state, or block after block from an empty one. What
    is measured does not depend on how many are read side by side, and a document's first token is no target.
    """
    ours = model()
    texts = [bytes((7 * i * i + 3 * i + n) % 125 for i in range(n)).decode() for n in lengths]
    split = Dataset.from_texts(texts, tokenizer=BYTES, document_separator="").train
    apart = Documents.of(split.document_starts, len(split))
    found = evaluate_split(
        ours, split, BYTES, MACHINE, block_size=block, rows=rows, carry_state=carry, documents=apart
    )
    total = 0.0
    with torch.no_grad():
        for text in texts:
            ids = torch.tensor(list(text.encode()))[None]
            step = block if not carry else len(text)
            for inputs, wanted in zip(ids[:, :-1].split(step, 1), ids[:, 1:].split(step, 1), strict=True):
                if inputs.numel():
                    total += float(ours.token_losses(ours(inputs)[0], wanted).sum())
    assert found.targets == found.text_bytes == sum(n - 1 for n in lengths)
    assert found.loss == pytest.approx(total / found.targets, rel=1e-9)
    assert found.documents == sum(n > 1 for n in lengths)
    if not carry:
        whole = validate(
            ours, split, BYTES, MACHINE, block_size=block, rows=rows, batches=999, seed=1, documents=apart
        )
        assert whole.loss == pytest.approx(found.loss, rel=1e-12)
        assert whole.targets == found.targets


@given(lengths=DOCUMENTS, block=st.integers(1, 16), batches=st.integers(1, 4), seed=st.integers(0, 9))
def test_a_sample_of_documents_crosses_no_border_and_repeats_nothing(
    lengths: list[int], block: int, batches: int, seed: int
) -> None:
    split = Dataset.from_texts(["x" * n for n in lengths], tokenizer=BYTES, document_separator="").train
    apart = Documents.of(split.document_starts, len(split))
    sample = sample_of(split, apart, block_size=block, rows=2, batches=batches, seed=seed)
    again = sample_of(split, apart, block_size=block, rows=2, batches=batches, seed=seed)
    assert (sample.starts == again.starts).all()
    assert len(sample) == min(2 * batches, sum(-(-(n - 1) // block) for n in lengths))
    read = [t for s, n in zip(sample.starts, sample.targets, strict=True) for t in range(s + 1, s + n + 1)]
    assert len(set(read)) == len(read)
    assert not set(read) & set(split.document_starts.tolist())


def test_long_and_short_documents_are_read_in_few_and_full_batches() -> None:
    """Like beside like: a thousand short documents cost a few batches, and a long one does not make them long."""
    split = Dataset.from_texts(["x" * 3000, *["y" * 9] * 1000], tokenizer=BYTES, document_separator="").train
    apart = Documents.of(split.document_starts, len(split))
    shapes = [tuple(reading.tokens.shape) for reading in read_side_by_side(split, apart, 64, 4)]
    assert shapes[0] == (4, 64)
    assert set(shapes[1:47]) == {(1, 64), (1, 55)}
    assert all(rows == 64 and width == 8 for rows, width in shapes[47:-1])
    assert len(shapes) == 47 + 16
    assert sum(rows * width for rows, width in shapes) < 1.1 * len(split)


LINES = ("dataset.documents=line", "dataset.split=documents", "training.order=streaming")


def test_a_run_is_scored_as_it_was_trained(tiny_config: Make, tmp_path: Path) -> None:
    """Document by document where its order knows documents: validation, split, training split and a file alike; and
    as one text where it does not. The command says which.
    """
    every = "training.validation_batches=1000"
    streamed = wyrmling.load_run(wyrmling.train(tiny_config(*LINES, every)).run.path)
    split = _split(streamed, "validation", print)
    with torch.no_grad():
        model, total = streamed.model, 0.0
        for start, stop in pairwise([*split.document_starts.tolist(), len(split)]):
            ids = torch.from_numpy(split.read(start, stop - start))[None]
            total += float(model.token_losses(model(ids[:, :-1])[0], ids[:, 1:]).sum())
    found = wyrmling.evaluate(streamed)
    assert found.documents == len(split.document_starts)
    assert found.loss == pytest.approx(total / (len(split) - found.documents), rel=1e-5)
    reset = wyrmling.evaluate(streamed, carry_state=False)
    assert reset.loss == pytest.approx(
        json.loads((streamed.run.checkpoints / "step-000000012/progress.json").read_text())[
            "validation_loss"
        ],
        rel=1e-5,
    )
    file = tmp_path / "lines.txt"
    file.write_bytes(streamed.tokenizer.decode_bytes(split.read(0, len(split))))
    assert wyrmling.evaluate(streamed, text=file).loss == pytest.approx(found.loss, rel=1e-5)
    said = CliRunner().invoke(app, ["evaluate", str(streamed.run.path)])
    assert f"{found.documents:,} documents apart" in said.output
    glued = wyrmling.load_run(wyrmling.train(tiny_config(*LINES[:2])).run.path)
    assert wyrmling.evaluate(glued).documents is None
    assert wyrmling.evaluate(glued).targets == len(split) - 1
    said = CliRunner().invoke(app, ["evaluate", str(glued.run.path), "--text", str(file)])
    assert "as one text" in said.output


def test_a_validation_split_without_a_target_is_refused_before_anything_is_written(
    tiny_config: Make, tmp_path: Path
) -> None:
    config = tiny_config(*LINES, "dataset.train_split_ratio=0.9")
    dataset = Dataset.from_tokens(
        np.arange(300), [np.array([n]) for n in range(80)], tokenizer=PretokenizedTokenizer(300)
    )
    with pytest.raises(DataError, match=r"no target in any document of the validation split"):
        wyrmling.train(config, dataset=dataset)
    assert not (tmp_path / "runs").exists()
