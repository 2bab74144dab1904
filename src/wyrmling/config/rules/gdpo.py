"""Rules of `[training.gdpo]`: what could teach nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..problems import Problem
from .rulebook import Rulebook

if TYPE_CHECKING:
    from ..schema import Config

BOOK = Rulebook()
TABLE = "training.gdpo"


@BOOK.rule("a-group-is-compared", f"Where `[{TABLE}]` is enabled, `group_size` is at least 2.")
def _group(config: Config) -> Iterator[Problem]:
    table = config.training.gdpo
    if table.enabled and table.group_size < 2:
        yield Problem(
            f"{TABLE}.group_size must be >= 2 when {TABLE}.enabled is true, got {table.group_size}: a continuation "
            "that is compared with itself teaches nothing",
            (f"{TABLE}.group_size", f"{TABLE}.enabled"),
        )


@BOOK.rule(
    "a-reward-counts", f"Where `[{TABLE}]` is enabled, `hard_weight` and `easy_weight` are not both 0."
)
def _reward(config: Config) -> Iterator[Problem]:
    table = config.training.gdpo
    if table.enabled and table.hard_weight == table.easy_weight == 0:
        yield Problem(
            f"{TABLE}.hard_weight and {TABLE}.easy_weight must not both be 0",
            (f"{TABLE}.hard_weight", f"{TABLE}.easy_weight"),
        )
