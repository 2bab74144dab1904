"""Rules of the factors that parts of the model have of their own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from .problems import Problem

if TYPE_CHECKING:
    from .schema import Training

SCALES = "training.module_lr_scales"


def scale_rules(training: Training) -> Iterator[Problem]:
    """Each part once, and no line that ends before it starts."""
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
