"""A run whose parts learn at rates of their own: what stays, what moves, and that it goes on bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import wyrmling
from wyrmling import Callback, Config
from wyrmling.checkpoint import checkpoint_path, read_checkpoint
from wyrmling.config import with_overrides
from wyrmling.errors import CheckpointError, ConfigError
from wyrmling.model import Model
from wyrmling.watch.events import Message, RunStarted, StepReport

Make = Callable[..., Config]
MOVING = """training.module_lr_scales=[
{target="shared_lowrank_encoder", scale=0.25, schedule={final_scale=1.0, end_fraction=0.6}},
{target="shared_lowrank_decoder", scale=2.0, mode="gradient", schedule={final_scale=0.1}},
{target="embedding", scale=0, schedule={final_scale=1.0, start_fraction=0.5}}]""".replace("\n", " ")


class StopAt(Callback):
    def __init__(self, step: int | None = None) -> None:
        self.step, self.messages = step, {}

    def on_start(self, report: RunStarted) -> None:
        self.messages |= dict(report.fingerprint)

    def on_step(self, report: StepReport) -> None:
        if report.step == self.step:
            report.control.stop("the test asked for it")

    def on_message(self, report: Message) -> None:
        self.messages[report.name] = report.text


def resumed(config: Config, run: Path, *overrides: str) -> Config:
    place = f'training.resume_run_dir="{run.as_posix()}"'
    return with_overrides(config, ["training.launch_mode=resume_exact_run", place, *overrides])


def files(run: Path, step: int) -> dict[str, bytes]:
    folder = checkpoint_path(run / "checkpoint", step)
    return {file.name: file.read_bytes() for file in folder.glob("*.safetensors")}


def model_of(run: Path, step: int) -> dict[str, torch.Tensor]:
    return read_checkpoint(checkpoint_path(run / "checkpoint", step), ["model"]).parts["model"]


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_run_goes_on_through_its_lines_bit_for_bit(tiny_config: Make, optimizer: str) -> None:
    """Stopped while the embedding is frozen and has no moments, and again while all factors move."""
    config = tiny_config(MOVING, f"optimizer.name={optimizer}", "model.dropout=0.1")
    straight = wyrmling.train(config)
    first = wyrmling.train(config, callbacks=[StopAt(4)])
    second = wyrmling.train(resumed(config, first.run.path), callbacks=[StopAt(8)])
    third = wyrmling.train(resumed(config, first.run.path))
    assert (first.step, second.step, third.step) == (4, 8, 12)
    assert files(third.run.path, 12) == files(straight.run.path, 12)


def test_what_is_frozen_does_not_change_by_a_bit_while_the_rest_learns(tiny_config: Make) -> None:
    watcher = StopAt()
    embedding, encoder = '{target="embedding", scale=0}', '{target="shared_lowrank_encoder", scale=0.5}'
    config = tiny_config(f"training.module_lr_scales=[{embedding}, {encoder}]", "training.max_iters=4")
    done = wyrmling.train(config, callbacks=[watcher])
    before = Model(config.model, done.tokenizer.vocab_size, seed=config.training.seed)
    for name, parameter in done.model.named_parameters():
        assert torch.equal(parameter, before.get_parameter(name)) == (name == "embedding.weight"), name
    assert watcher.messages["choice.parts of the model"].startswith(
        "learning rate of embedding x 0; learning rate of shared_lowrank_encoder x 0.5 (asked for"
    )
    assert (
        'module_lr_scales=[{"target":"embedding","scale":0.0,"mode":"learning_rate"},{'
        in watcher.messages["optimizer fingerprint"]
    )
    assert watcher.messages["choice.weight decay"].startswith("0.1 on matrix, embedding, head (")


def test_a_target_that_the_model_lacks_is_refused_before_anything_is_written(
    tiny_config: Make, tmp_path: Path
) -> None:
    config = tiny_config('training.module_lr_scales=[{target="mamba", scale=0.5}]')
    with pytest.raises(ConfigError, match=r"module_lr_scales\.0\.target = .* covers no parameter"):
        wyrmling.train(config)
    assert not list((tmp_path / "runs").glob("*"))


def test_other_factors_are_another_run(tiny_config: Make) -> None:
    config = tiny_config(MOVING)
    done = wyrmling.train(config, callbacks=[StopAt(2)])
    with pytest.raises(CheckpointError, match=r"training\.module_lr_scales: .* -> "):
        wyrmling.train(resumed(config, done.run.path, "training.module_lr_scales.0.scale=0.5"))


@pytest.mark.parametrize("stop", [3, 7])
def test_a_backbone_is_frozen_for_its_steps_and_over_a_resume(tiny_config: Make, stop: int) -> None:
    """Its weights do not change by a bit while embedding and head learn; then everything does."""
    lender = wyrmling.train(tiny_config("training.max_iters=4"))
    config = tiny_config(
        "training.launch_mode=init_from_checkpoint",
        f'training.init_checkpoint_path="{lender.run.path.as_posix()}"',
        "training.init_transfer.backbone_grad_scale=0",
        "training.init_transfer.backbone_grad_scale_steps=5",
        "training.checkpoint_interval_iters=5",
        "training.checkpoint_keep=9",
    )
    straight = wyrmling.train(config)
    start, held, end = (model_of(straight.run.path, step) for step in (0, 5, 10))
    assert {name for name in start if not torch.equal(start[name], held[name])} == {
        "embedding.weight",
        "lm_head",
    }
    trained = {name for name, _ in straight.model.named_parameters()}
    assert {name for name in start if not torch.equal(held[name], end[name])} == trained
    first = wyrmling.train(config, callbacks=[StopAt(stop)])
    again = wyrmling.train(resumed(config, first.run.path, "training.init_checkpoint_path=none"))
    assert files(again.run.path, 12) == files(straight.run.path, 12)
