"""Rules of the factors that parts of the model have of their own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from .problems import Problem

if TYPE_CHECKING:
    from .schema import Training

SCALES = "training.module_lr_scales"
NEURONS = ("shared_lowrank_encoder", "shared_lowrank_decoder", "shared_lowrank_decay")


def scale_rules(training: Training) -> Iterator[Problem]:
    """Each part once, no line that ends before it starts, and nothing frozen that is replaced."""
    seen: dict[str, int] = {}
    for index, table in enumerate(training.module_lr_scales):
        key = f"{SCALES}.{index}"
        if table.target in seen:
            yield Problem(
                f'{key}.target = "{table.target}" is given before, in {SCALES}.{seen[table.target]}; '
                "write one table per target",
                (f"{key}.target",),
            )
        seen.setdefault(table.target, index)
        line = table.schedule
        if line is not None and line.end_fraction < line.start_fraction:
            yield Problem(
                f"{key}.schedule.end_fraction must be >= {key}.schedule.start_fraction "
                f"({line.end_fraction:g} < {line.start_fraction:g})",
                (f"{key}.schedule.end_fraction", f"{key}.schedule.start_fraction"),
            )
    if training.continual_backprop.enabled:
        other = "training.continual_backprop.enabled"
        for key in _frozen_neurons(training):
            yield Problem(
                f"{key} = 0 cannot be combined with {other} = true: the neurons that it replaces would be frozen",
                (key, other),
            )


def _frozen_neurons(training: Training) -> Iterator[str]:
    """The keys that freeze weights of neurons, at least for some steps."""
    for index, table in enumerate(training.module_lr_scales):
        if table.target in NEURONS:
            if table.scale == 0:
                yield f"{SCALES}.{index}.scale"
            if table.schedule is not None and table.schedule.final_scale == 0:
                yield f"{SCALES}.{index}.schedule.final_scale"
    if training.init_transfer.backbone_grad_scale == 0:
        yield "training.init_transfer.backbone_grad_scale"
