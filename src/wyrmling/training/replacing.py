"""Continual backprop of a run: how it is put together from the configuration, and how that is told."""

from __future__ import annotations

from ..config import Config
from ..model import Geometry
from ..optim import Scales
from ..optim.continual import ContinualBackprop
from ..runs import Choice


def build_continual(config: Config, geometry: Geometry, scales: Scales) -> ContinualBackprop | None:
    """Utilities and ages of a new run's neurons; None where continual backprop is off."""
    table = config.training.continual_backprop
    if not table.enabled:
        return None
    return ContinualBackprop(
        table,
        geometry.heads,
        geometry.neurons,
        base_rate=config.optimizer.learning_rate,
        seed=config.training.seed,
        scales=scales,
    )


def replacing_choices(continual: ContinualBackprop | None) -> tuple[Choice, ...]:
    """What is printed and recorded of it; nothing where it is off."""
    if continual is None:
        return ()
    reason = "asked for by training.continual_backprop"
    return (Choice("continual backprop", continual.describe(), reason),)
