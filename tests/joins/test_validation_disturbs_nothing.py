"""Validation, samples and logging change no weight: runs with and without them agree to the last bit."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import wyrmling
from wyrmling import Callback, Config
from wyrmling.checkpoint import checkpoint_path
from wyrmling.watch.events import ValidationReport

Make = Callable[..., Config]


def weights(result: wyrmling.TrainResult) -> bytes:
    return (checkpoint_path(result.run.checkpoints, 12) / "model.safetensors").read_bytes()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_runs_with_and_without_validation_agree(tiny_config: Make, dtype: str) -> None:
    base = ("model.dropout=0.2", f"runtime.dtype={dtype}")
    often = tiny_config(*base, "training.validation_interval_iters=1", "training.sample_interval_iters=2")
    never = tiny_config(
        *base,
        "training.sanity_validation=false",
        "training.validation_interval_iters=1000",
        "training.log_frequency=1000",
        "training.checkpoint_interval_iters=1000",
    )
    assert weights(wyrmling.train(often)) == weights(wyrmling.train(never))


class Losses(Callback):
    def __init__(self) -> None:
        self.losses: dict[int, float] = {}

    def on_validation(self, report: ValidationReport) -> None:
        self.losses[report.step] = report.loss


def test_dropout_is_off_in_validation_and_in_samples(tiny_config: Make) -> None:
    """The loss of step 0 does not depend on the rate; evaluating and sampling twice gives the same."""
    seen = {}
    for rate in (0.0, 0.5):
        watcher = Losses()
        result = wyrmling.train(tiny_config(f"model.dropout={rate}"), callbacks=[watcher])
        seen[rate] = watcher.losses[0]
    assert seen[0.0] == seen[0.5]
    loaded = wyrmling.load_run(result.run.path)
    assert wyrmling.evaluate(loaded) == wyrmling.evaluate(loaded)
    texts = {wyrmling.generate(loaded, "to", max_tokens=20, temperature=0) for _ in range(2)}
    assert len(texts) == 1


def test_the_mode_of_every_module_is_put_back(tiny_config: Make) -> None:
    result = wyrmling.train(tiny_config())
    model = result.model
    model.train()
    model.norm.eval()
    loaded = wyrmling.load_run(result.run.path)
    before = {name: module.training for name, module in loaded.model.named_modules()}
    wyrmling.evaluate(loaded)
    assert {name: module.training for name, module in loaded.model.named_modules()} == before
    assert all(parameter.grad is None for parameter in loaded.model.parameters())
    assert not torch.is_inference_mode_enabled()
