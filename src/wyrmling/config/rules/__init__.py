"""Rules that tie several keys together; all of them are checked whenever a configuration is made.

The ranges of single keys stand in the schema. Messages name the exact dotted keys, with the numbers in
parentheses.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ..problems import RuleError
from . import (
    autotune,
    dataset,
    gdpo,
    layout,
    memory,
    model,
    optimizer,
    process,
    scales,
    training,
    transfer,
)
from .rulebook import Rule

if TYPE_CHECKING:
    from ..schema import Config

RULES: tuple[Rule, ...] = (
    *training.BOOK,
    *scales.BOOK,
    *gdpo.BOOK,
    *transfer.BOOK,
    *optimizer.BOOK,
    *dataset.BOOK,
    *model.BOOK,
    *memory.BOOK,
    *autotune.BOOK,
    *process.BOOK,
    *layout.BOOK,
)
"""Every rule, in the order in which broken ones are told."""


def check(config: Config) -> None:
    """Check every rule.

    Raises:
        RuleError: at least one is broken.
    """
    problems = [replace(problem, rule=rule.name) for rule in RULES for problem in rule.broken(config)]
    if problems:
        raise RuleError(problems)


def resolve_gradient_accumulation(batch_size: int, accumulation: int, target: int | None) -> int:
    """Micro-batches in an optimizer step.

    Args:
        batch_size: rows in a micro-batch.
        accumulation: `training.gradient_accumulation_steps`, used when there is no target.
        target: `training.target_effective_batch_size`: at least so many rows in a step, in whole
            micro-batches.
    """
    if target is None:
        return max(accumulation, 1)
    return -(-max(target, batch_size) // batch_size)
