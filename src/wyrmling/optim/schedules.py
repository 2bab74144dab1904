"""Learning rates as closed formulas of the optimizer step.

A schedule has no memory: `rate(step)` depends on the step alone, so nothing is saved to resume, and neither
accumulation nor a skipped update can move it. Steps count from 1: `rate(1)` is the rate of the first update.

With W warm-up steps and length N: peak s / W for steps s <= W; then, with j = s - W and M = max(1, N - W),

    constant    peak
    cosine      low + (peak - low) (1 + cos(pi min(j, M) / M)) / 2
    linear      peak + (final - peak) min(j, M) / M

The cosine is that of Loshchilov and Hutter (2017) without restarts: the end value is reached exactly at
step N and held. One exception: `linear` without warm-up starts at its peak (j = s - 1), as the name
`initial_lr` promises. A given N then counts the changes, so the end value comes at step N + 1; without a
given N the length is chosen so that the last step of the run is exactly at the end value.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ..errors import ConfigError

if TYPE_CHECKING:
    from ..config.schema.optimizer import Optimizer


class Schedule(Protocol):
    """A learning rate as a pure function of the optimizer step."""

    def rate(self, step: int) -> float:
        """The learning rate of optimizer step `step` (the first is 1)."""
        ...


@dataclass(frozen=True)
class Constant:
    """The same rate at every step."""

    peak: float

    def __post_init__(self) -> None:
        if not 0 < self.peak < math.inf:
            raise ConfigError(f"a learning rate must be above 0, got {self.peak:g}")

    def rate(self, step: int) -> float:
        _check_step(step)
        return self.peak


@dataclass(frozen=True)
class Cosine:
    """Warm-up, then half a cosine from `peak` to `low` at step `length`, then `low`."""

    peak: float
    low: float
    warmup: int
    length: int

    def __post_init__(self) -> None:
        _check_peak(self.peak)
        _check_shape(self.warmup, self.length)
        if not 0 <= self.low <= self.peak:
            raise ConfigError(
                f"optimizer.lr_schedule.min_lr must be between 0 and the peak {self.peak:g}, got {self.low:g}"
            )

    def rate(self, step: int) -> float:
        _check_step(step)
        if step <= self.warmup:
            return self.peak * (step / self.warmup)
        duration = max(1, self.length - self.warmup)
        elapsed = step - self.warmup
        if elapsed >= duration:
            return self.low
        return self.low + 0.5 * (self.peak - self.low) * (1 + math.cos(math.pi * elapsed / duration))


@dataclass(frozen=True)
class Linear:
    """Warm-up, then a straight line from `peak` to `final` in `changes` steps, then `final`.

    Without warm-up step 1 is at the peak; with it, step `warmup` is.
    """

    peak: float
    final: float
    warmup: int
    changes: int

    def __post_init__(self) -> None:
        _check_peak(self.peak)
        _check_shape(self.warmup, self.changes)
        if not 0 <= self.final <= 1:
            raise ConfigError(f"optimizer.lr_schedule.final_lr must be between 0 and 1, got {self.final:g}")

    def rate(self, step: int) -> float:
        _check_step(step)
        if step <= self.warmup:
            return self.peak * (step / self.warmup)
        elapsed = step - max(1, self.warmup)
        if elapsed >= self.changes:
            return self.final
        return self.peak + (self.final - self.peak) * elapsed / self.changes


def build_schedule(optimizer: Optimizer, total_steps: int) -> Schedule:
    """The schedule that the `optimizer` table asks for, in a run of `total_steps` optimizer steps.

    Raises:
        ConfigError: values out of range, or a warm-up longer than an explicit `num_iters`.
    """
    if total_steps < 1:
        raise ConfigError(f"a run needs at least 1 step, got {total_steps}")
    table = optimizer.lr_schedule
    if table is None:
        return Constant(optimizer.learning_rate)
    peak = optimizer.learning_rate if table.initial_lr is None else table.initial_lr
    if table.type == "constant":
        return Constant(peak)
    warmup = table.warmup_steps
    if table.num_iters is not None and warmup > table.num_iters:
        raise ConfigError(
            f"optimizer.lr_schedule.warmup_steps ({warmup}) is longer than num_iters ({table.num_iters}): "
            "shorten the warm-up or lengthen the schedule"
        )
    length = total_steps if table.num_iters is None else table.num_iters
    if table.type == "cosine":
        return Cosine(peak, table.min_lr, warmup, length)
    first = warmup if table.num_iters is not None else max(1, warmup)
    return Linear(peak, table.final_lr, warmup, max(1, length - first))


def describe_length(optimizer: Optimizer, total_steps: int, previous_total: int | None = None) -> str:
    """One line on the length of the schedule and where it comes from.

    A length that is not in the configuration is the whole run's. It is worked out again on every start, so
    a run that is resumed with another total (`previous_total` is what it had) changes its rates from the
    next step on.
    """
    table = optimizer.lr_schedule
    if table is None or table.type == "constant":
        return "constant: the same rate at every step"
    warmup = f", {table.warmup_steps} of them warm-up" if table.warmup_steps else ""
    if table.num_iters is not None:
        return f"{table.type} over {table.num_iters} steps{warmup}: num_iters is set"
    line = f"{table.type} over {total_steps} steps{warmup}: the whole run, num_iters is not set"
    if table.warmup_steps >= total_steps:
        line += "; the run ends before the warm-up does"
    if previous_total is not None and previous_total != total_steps:
        line += f"; it was {previous_total}, so the rates differ from here on (set num_iters to keep them)"
    return line


def _check_peak(peak: float) -> None:
    if not 0 < peak <= 1:
        raise ConfigError(f"the peak of a schedule must be above 0 and at most 1, got {peak:g}")


def _check_shape(warmup: int, length: int) -> None:
    if warmup < 0 or length < 1:
        raise ConfigError(
            f"a schedule needs warmup_steps >= 0 and at least 1 step, got {warmup} and {length}"
        )


def _check_step(step: int) -> None:
    if step < 1:
        raise ValueError(f"optimizer steps count from 1, got {step}")
