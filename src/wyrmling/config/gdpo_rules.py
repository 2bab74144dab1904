"""Rules of `[training.gdpo]`: what could teach nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from .problems import Problem

if TYPE_CHECKING:
    from .schema import Training

TABLE = "training.gdpo"


def gdpo_rules(training: Training) -> Iterator[Problem]:
    """Where it is enabled: groups to compare, and a reward that counts."""
    table = training.gdpo
    if not table.enabled:
        return
    if table.group_size < 2:
        yield Problem(
            f"{TABLE}.group_size must be >= 2 when {TABLE}.enabled is true, got {table.group_size}: a continuation "
            "that is compared with itself teaches nothing",
            (f"{TABLE}.group_size", f"{TABLE}.enabled"),
        )
    if table.hard_weight == table.easy_weight == 0:
        yield Problem(
            f"{TABLE}.hard_weight and {TABLE}.easy_weight must not both be 0",
            (f"{TABLE}.hard_weight", f"{TABLE}.easy_weight"),
        )
