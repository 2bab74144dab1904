"""Rules of the search for a micro-batch that fits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from .problems import Problem, at_most

if TYPE_CHECKING:
    from .schema import Config

TABLE = "runtime.startup_autotune"


def autotune_rules(config: Config) -> Iterator[Problem]:
    """One target, and bounds that leave something to try."""
    autotune, training = config.runtime.startup_autotune, config.training
    if autotune.target_device_memory_mb is not None and autotune.target_memory_fraction is not None:
        keys = (f"{TABLE}.target_device_memory_mb", f"{TABLE}.target_memory_fraction")
        yield Problem(f"{keys[0]} cannot be combined with {keys[1]}", keys)
    if autotune.target_device_memory_mb is None and autotune.target_memory_fraction is None:
        keys = (f"{TABLE}.target_memory_fraction", f"{TABLE}.target_device_memory_mb")
        yield Problem(f"{keys[0]} is required when {keys[1]} is unset", keys)
    low, high = autotune.min_batch_size, autotune.max_batch_size
    if high is not None and low > high:
        yield at_most(f"{TABLE}.min_batch_size", f"{TABLE}.max_batch_size", low, high)
    target = training.target_effective_batch_size
    if autotune.enabled and target is not None and low > target:
        yield at_most(f"{TABLE}.min_batch_size", "training.target_effective_batch_size", low, target)
