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
from wyrmling import Config
from wyrmling.__main__ import main
from wyrmling.checkpoint import checkpoint_path, read_checkpoint
from wyrmling.training import TrainResult

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
