"""Rules of the search for a micro-batch that fits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..problems import Problem, at_most, exclusive
from .rulebook import Rulebook

if TYPE_CHECKING:
    from ..schema import Config

BOOK = Rulebook()
TABLE = "runtime.startup_autotune"
_SIZE, _FRACTION = f"{TABLE}.target_device_memory_mb", f"{TABLE}.target_memory_fraction"


@BOOK.rule("one-memory-target", f"Exactly one of `{_SIZE}` and `{_FRACTION}` is set.")
def _one_target(config: Config) -> Iterator[Problem]:
    autotune = config.runtime.startup_autotune
    if autotune.target_device_memory_mb is not None and autotune.target_memory_fraction is not None:
        yield exclusive(_SIZE, _FRACTION)
    if autotune.target_device_memory_mb is None and autotune.target_memory_fraction is None:
        yield Problem(f"{_FRACTION} is required when {_SIZE} is unset", (_FRACTION, _SIZE))


@BOOK.rule("batches-to-try", f"`{TABLE}.min_batch_size` is at most `max_batch_size`.")
def _bounds(config: Config) -> Iterator[Problem]:
    autotune = config.runtime.startup_autotune
    low, high = autotune.min_batch_size, autotune.max_batch_size
    if high is not None and low > high:
        yield at_most(f"{TABLE}.min_batch_size", f"{TABLE}.max_batch_size", low, high)


@BOOK.rule(
    "batches-fit-the-step",
    f"Where the search is enabled, `{TABLE}.min_batch_size` is at most `training.target_effective_batch_size`.",
)
def _target(config: Config) -> Iterator[Problem]:
    autotune, target = config.runtime.startup_autotune, config.training.target_effective_batch_size
    low = autotune.min_batch_size
    if autotune.enabled and target is not None and low > target:
        yield at_most(f"{TABLE}.min_batch_size", "training.target_effective_batch_size", low, target)
