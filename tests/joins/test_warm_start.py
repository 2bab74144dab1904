"""Weights of one run in another: grown, with other tokens, part of them fresh; through configuration and command."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from test_resume_continues_bit_for_bit import StopAt, tensors_of

import wyrmling
from wyrmling import Callback, Config
from wyrmling.__main__ import main
from wyrmling.checkpoint import checkpoint_path, read_checkpoint
from wyrmling.runs import find_run
from wyrmling.training import TrainResult
from wyrmling.watch.events import Message, RunStarted, ValidationReport

Make = Callable[..., Config]
SHORT = ("training.max_iters=4", "model.dropout=0.0", "optimizer.lr_schedule.warmup_steps=1")
TABLE = "training.init_transfer"


def started_from(run: Path) -> tuple[str, str]:
    return "training.launch_mode=init_from_checkpoint", f'training.init_checkpoint_path="{run.as_posix()}"'


def record(result: TrainResult, name: str) -> dict[str, Any]:
    return dict(json.loads((result.run.path / name).read_text(encoding="utf-8")))


def first_weights(result: TrainResult) -> dict[str, torch.Tensor]:
    return read_checkpoint(checkpoint_path(result.run.checkpoints, 0)).parts["model"]


def test_a_run_grows_without_losing_what_it_learnt(tiny_config: Make) -> None:
    """Twice the neurons and another head: before step 1 the validation loss is the lender's."""
    old = wyrmling.train(tiny_config(*SHORT))
    larger = ("model.n_head=3", "model.latent_total=384", "training.checkpoint_keep=9")
    watcher = StopAt()
    new = wyrmling.train(tiny_config(*SHORT, *started_from(old.run.path), *larger), callbacks=[watcher])
    assert record(new, "pre_step_validation.json")["mean_loss"] == pytest.approx(
        old.validation_loss, abs=1e-5
    )
    grown = "grown, 64 -> 128 neurons per head (64 of 64 split), 2 -> 3 heads"
    assert f"{grown}: encoder, encoder_v, decoder, memory.frequencies" in watcher.messages
    fates = {entry["name"]: entry["fate"] for entry in record(new, "transfer.json")["tensors"]}
    assert fates["encoder"] == grown
    assert fates["lm_head"] == "kept"
    again = wyrmling.train(
        tiny_config(*SHORT, *started_from(new.run.path), "model.latent_total=576", larger[0])
    )
    assert record(again, "pre_step_validation.json")["mean_loss"] == pytest.approx(
        new.validation_loss, abs=1e-5
    )


def test_an_interface_checkpoint_through_the_command(
    tiny_config: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    """A new run, its own directory, a finite loss before the first step, and both checkpoints in its record."""
    one, other = wyrmling.train(tiny_config(*SHORT)), wyrmling.train(tiny_config(*SHORT, "training.seed=2"))
    text = Path(one.run.training_config().dataset.path)  # type: ignore[union-attr]
    settings = [
        "dataset.type=local_text",
        f'dataset.path="{text.as_posix()}"',
        "dataset.split=ratio",
        *SHORT,
        *started_from(one.run.path),
        f'{TABLE}.interface_checkpoint_path="{other.run.path.as_posix()}"',
        f"{TABLE}.interface_checkpoint_step=4",
        f"{TABLE}.preserve_interface_input_embedding=true",
        f"{TABLE}.interface_output_head_blend_alpha=0.5",
        "run_layout.name=both",
    ]
    assert main(["train", "tiny", *(word for setting in settings for word in ("--set", setting))]) == 0
    new = wyrmling.load_run("both")
    assert new.run.path not in (one.run.path, other.run.path)
    said = json.loads((new.run.path / "pre_step_validation.json").read_text(encoding="utf-8"))
    assert 0 <= said["mean_loss"] < 10
    assert said["interface_checkpoint_step"] == 4
    assert said["init_transfer"]["interface_output_head_blend_alpha"] == 0.5
    assert "interface: embedding.weight" in capsys.readouterr().err
    start = read_checkpoint(checkpoint_path(new.run.checkpoints, 0)).parts["model"]
    theirs = read_checkpoint(checkpoint_path(other.run.checkpoints, 4)).parts["model"]
    assert torch.equal(start["embedding.weight"], theirs["embedding.weight"])


class Watcher(Callback):
    """Keeps validations and messages; dies where it is told to."""

    def __init__(self, *, dies_at_start: bool = False) -> None:
        self.losses: dict[int, float] = {}
        self.messages: dict[str, str] = {}
        self._dies = dies_at_start

    def on_start(self, report: RunStarted) -> None:
        if self._dies:
            raise KeyboardInterrupt

    def on_validation(self, report: ValidationReport) -> None:
        self.losses[report.step] = report.loss

    def on_message(self, report: Message) -> None:
        self.messages[report.name] = report.text


SAMPLED = ("dataset.train_split_ratio=0.5", "training.validation_batches=3", "training.block_size=16")


def test_the_first_figure_of_a_warm_start_is_one_everywhere(tiny_config: Make) -> None:
    """Screen, events, file: one measurement, on the sample of every later one, which is told. The weights are the
    lender's, so it is the lender's last figure to the last bit.
    """
    watchers = Watcher(), Watcher()
    old = wyrmling.train(tiny_config(*SHORT, *SAMPLED), callbacks=[watchers[0]])
    new = wyrmling.train(tiny_config(*SHORT, *SAMPLED, *started_from(old.run.path)), callbacks=[watchers[1]])
    assert (
        record(new, "pre_step_validation.json")["mean_loss"] == watchers[1].losses[0] == old.validation_loss
    )
    assert f"{old.validation_loss:.4f}" in watchers[1].messages["pre-step validation"]
    assert "the same 192 of" in watchers[1].messages["validation"]
    events = [json.loads(line) for line in new.run.events_path.read_text(encoding="utf-8").splitlines()]
    first = next(event for event in events if event["event"] == "validation")
    assert (first["step"], first["loss"], first["best"]) == (0, old.validation_loss, False)


def test_a_warm_start_that_dies_before_its_first_step_is_measured_when_it_goes_on(tiny_config: Make) -> None:
    old = wyrmling.train(tiny_config(*SHORT))
    config = tiny_config(*SHORT, *started_from(old.run.path), "training.sanity_validation=false")
    with pytest.raises(KeyboardInterrupt):
        wyrmling.train(config, callbacks=[Watcher(dies_at_start=True)])
    run = find_run("latest")
    assert not (run.path / "pre_step_validation.json").exists()
    assert main(["train", "--resume", str(run.path)]) == 0
    said = json.loads((run.path / "pre_step_validation.json").read_text(encoding="utf-8"))
    straight = record(wyrmling.train(config), "pre_step_validation.json")
    assert said == straight
    assert said["init_checkpoint_path"] == str(checkpoint_path(old.run.checkpoints, 4))


def test_a_warm_start_resumes_bit_for_bit_and_keeps_its_table(
    tiny_config: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through `--resume` too, which needs the lender no more."""
    old = wyrmling.train(tiny_config(*SHORT))
    options = (f"{TABLE}.backbone_blend_alpha=0.5", f"{TABLE}.fresh_top_heads=1", "model.latent_total=256")
    config = tiny_config(*SHORT, *started_from(old.run.path), *options, "model.dropout=0.1")
    straight = wyrmling.train(config)
    stopped = wyrmling.train(config, callbacks=[StopAt(2)])
    old.run.path.rename(old.run.path.with_name("gone"))
    assert main(["train", "--resume", str(stopped.run.path)]) == 0
    assert tensors_of(stopped.run.path, 4) == tensors_of(straight.run.path, 4)
    assert stopped.run.training_config().training.init_transfer == config.training.init_transfer


def test_tokens_of_another_text_are_mapped(tiny_config: Make, tmp_path: Path) -> None:
    """Characters that both texts have keep what they had; the run says which are new."""
    letters = "dataset.tokenizer.type=char"
    old = wyrmling.train(tiny_config(*SHORT, letters))
    other = tmp_path / "other.txt"
    other.write_text("to be ZZ not to be\n" * 60, encoding="utf-8")
    watcher = StopAt()
    config = tiny_config(*SHORT, letters, *started_from(old.run.path), f'dataset.path="{other.as_posix()}"')
    new = wyrmling.train(config, callbacks=[watcher])
    assert any("tokens are known; new: 'Z'" in text for text in watcher.messages)
    start, before = (
        first_weights(new),
        read_checkpoint(checkpoint_path(old.run.checkpoints, 4)).parts["model"],
    )
    ours, theirs = new.tokenizer.tokens(), old.tokenizer.tokens()
    for token, name in enumerate(ours):
        if name in theirs:
            was = before["lm_head"][:, theirs.index(name)]
            assert torch.equal(start["lm_head"][:, token], was)
