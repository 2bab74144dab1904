"""Rules of the factors that parts of the model have of their own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..problems import Problem
from .rulebook import Rulebook

if TYPE_CHECKING:
    from ..schema import Config, Training

BOOK = Rulebook()
SCALES = "training.module_lr_scales"
NEURONS = ("shared_lowrank_encoder", "shared_lowrank_decoder", "shared_lowrank_decay")


@BOOK.rule("one-factor-per-part", f"`{SCALES}` names each target once.")
def _once(config: Config) -> Iterator[Problem]:
    seen: dict[str, int] = {}
    for index, table in enumerate(config.training.module_lr_scales):
        key = f"{SCALES}.{index}.target"
        if table.target in seen:
            yield Problem(
                f'{key} = "{table.target}" is given before, in {SCALES}.{seen[table.target]}; '
                "write one table per target",
                (key,),
            )
        seen.setdefault(table.target, index)


@BOOK.rule(
    "factors-end-after-they-start", f"`{SCALES}`: `schedule.end_fraction` is at least `start_fraction`."
)
def _line(config: Config) -> Iterator[Problem]:
    for index, table in enumerate(config.training.module_lr_scales):
        key, line = f"{SCALES}.{index}.schedule", table.schedule
        if line is not None and line.end_fraction < line.start_fraction:
            yield Problem(
                f"{key}.end_fraction must be >= {key}.start_fraction "
                f"({line.end_fraction:g} < {line.start_fraction:g})",
                (f"{key}.end_fraction", f"{key}.start_fraction"),
            )


@BOOK.rule(
    "what-is-replaced-learns",
    "With `training.continual_backprop.enabled`, no weights of neurons are frozen, by a factor of 0 or by "
    "`training.init_transfer.backbone_grad_scale`.",
)
def _replaced(config: Config) -> Iterator[Problem]:
    if not config.training.continual_backprop.enabled:
        return
    other = "training.continual_backprop.enabled"
    for key in _frozen_neurons(config.training):
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
