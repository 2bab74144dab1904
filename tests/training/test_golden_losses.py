"""The losses of a small run, as they were when it was first trained: drift of any part of the way shows here."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import wyrmling
from wyrmling import Callback, Config
from wyrmling.watch.events import StepReport, ValidationReport

Make = Callable[..., Config]

# float64, dropout 0.1, epochs, accumulation, cosine: steps 2, 4, … 12, then the last validation
GOLDEN: dict[str, list[float]] = {
    "rope": [5.537344, 5.406012, 5.219014, 5.07072, 4.981079, 4.935245, 4.931944],
    "alibi": [5.538356, 5.410041, 5.219653, 5.070153, 4.979662, 4.935642, 4.933014],
    "pope": [5.543261, 5.413261, 5.228479, 5.083296, 4.995719, 4.949965, 4.947551],
}


class Curve(Callback):
    def __init__(self) -> None:
        self.losses: list[float] = []

    def on_step(self, report: StepReport) -> None:
        if report.loss is not None:
            self.losses.append(report.loss)

    def on_validation(self, report: ValidationReport) -> None:
        if report.step == 12:
            self.losses.append(report.loss)


@pytest.mark.parametrize("positions", GOLDEN)
def test_losses_are_those_of_the_first_time(tiny_config: Make, positions: str) -> None:
    """To 1e-4: first weights are normal numbers whose last bits differ between processors."""
    config = tiny_config(
        "runtime.dtype=float64",
        "model.dropout=0.1",
        "training.order=epochs",
        "training.gradient_accumulation_steps=2",
        f"model.rotary_embedding={positions}",
    )
    curve = Curve()
    wyrmling.train(config, callbacks=[curve])
    assert curve.losses == pytest.approx(GOLDEN[positions], rel=1e-4)
