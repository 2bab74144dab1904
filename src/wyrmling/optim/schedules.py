"""Learning rates as closed formulas of the optimizer step.

A schedule has no memory: `rate(step)` depends on the step alone, so nothing is saved to resume, and neither
accumulation nor a skipped update can move it. Steps count from 1: `rate(1)` is the rate of the first update.

With W warm-up steps and length N: peak s / W for steps s <= W; then, with j = s - W and M = max(1, N - W),

    constant    peak
    cosine      low + (peak - low) (1 + cos(pi min(j, M) / M)) / 2
    linear      peak + (final - peak) min(j, M) / M
    exponential peak gamma^(s - 1)
    step        peak gamma^floor((s - 1) / size)
    noam        factor width^(-1/2) min(s^(-1/2), s W^(-3/2))

`noam` is that of Vaswani and others (2017): it rises to step W, where it is factor / sqrt(width W), and its
`initial_lr` is the factor, not a rate. The two stages of BitNet are in `bitnet`.

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
from .bitnet import TwoStage, build_weight_decay

if TYPE_CHECKING:
    from ..config.schema.optimizer import CosineSchedule, LinearSchedule, Optimizer


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


@dataclass(frozen=True)
class Exponential:
    """Times `gamma` at every step."""

    peak: float
    gamma: float

    def __post_init__(self) -> None:
        _check_peak(self.peak)
        _check_gamma(self.gamma)

    def rate(self, step: int) -> float:
        _check_step(step)
        return float(self.peak * self.gamma ** (step - 1))


@dataclass(frozen=True)
class Step:
    """Times `gamma` after every `size` steps."""

    peak: float
    gamma: float
    size: int

    def __post_init__(self) -> None:
        _check_peak(self.peak)
        _check_gamma(self.gamma)
        _check_shape(0, self.size)

    def rate(self, step: int) -> float:
        _check_step(step)
        return float(self.peak * self.gamma ** ((step - 1) // self.size))


@dataclass(frozen=True)
class Noam:
    """Up in a line to step `warmup`, then down with the root of the step; `factor` is not a rate."""

    factor: float
    width: int
    warmup: int

    def __post_init__(self) -> None:
        if not 0 < self.factor < math.inf or self.width < 1:
            raise ConfigError(
                f"noam needs a factor above 0 and a model_size of 1 or more, got {self.factor:g} and {self.width}"
            )
        _check_shape(0, self.warmup)

    def rate(self, step: int) -> float:
        _check_step(step)
        shape = min(1 / math.sqrt(step), step / (self.warmup * math.sqrt(self.warmup)))
        return self.factor / math.sqrt(self.width) * shape


def build_schedule(optimizer: Optimizer, total_steps: int, width: int = 1) -> Schedule:
    """The schedule that the `optimizer` table asks for, in a run of `total_steps` optimizer steps.

    A table `lr_schedule` wins over `schedule_mode`.

    Args:
        width: D of the model, which `noam` takes where it has no `model_size` of its own.
    Raises:
        ConfigError: values out of range, or a warm-up longer than an explicit `num_iters`.
    """
    if total_steps < 1:
        raise ConfigError(f"a run needs at least 1 step, got {total_steps}")
    table = optimizer.lr_schedule
    if table is None:
        if optimizer.schedule_mode == "bitnet_b158_reference":
            return TwoStage.of(optimizer.learning_rate, total_steps)
        return Constant(optimizer.learning_rate)
    peak = optimizer.learning_rate if table.initial_lr is None else table.initial_lr
    if table.type == "constant":
        return Constant(peak)
    if table.type == "exponential":
        return Exponential(peak, table.gamma)
    if table.type == "step":
        return Step(peak, table.gamma, table.step_size or total_steps)
    if table.type == "noam":
        return Noam(peak, table.model_size or width, table.warmup_steps or total_steps)
    return _falling(table, peak, total_steps)


def _falling(table: CosineSchedule | LinearSchedule, peak: float, total_steps: int) -> Cosine | Linear:
    """A schedule that goes up and down once."""
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
    line, key = _describe(optimizer, total_steps)
    if previous_total is None or previous_total == total_steps:
        return line
    if key is not None:
        keep = f" (set {key} to keep them)" if key else ""
        line += f"; it was {previous_total}, so the rates differ from here on{keep}"
    decays = [build_weight_decay(optimizer, total) for total in (previous_total, total_steps)]
    if decays[0].describe() != decays[1].describe():
        line += f"; weight decay was {decays[0].describe()} and is {decays[1].describe()}"
    return line


def _describe(optimizer: Optimizer, total_steps: int) -> tuple[str, str | None]:
    """A schedule in one line, and the key that would make it independent of the run's length.

    The key is None where it is independent already, and empty where no key can make it so.
    """
    table = optimizer.lr_schedule
    if table is None and optimizer.schedule_mode == "bitnet_b158_reference":
        return TwoStage.of(optimizer.learning_rate, total_steps).describe(), ""
    if table is None or table.type == "constant":
        return "constant: the same rate at every step", None
    if table.type == "exponential":
        return f"exponential: times {table.gamma:g} at every step", None
    if table.type == "step":
        size, key = table.step_size or total_steps, None if table.step_size else "step_size"
        return f"step: times {table.gamma:g} after every {size} steps", key
    late = "; the run ends before the warm-up does" if (table.warmup_steps or 0) >= total_steps else ""
    if table.type == "noam":
        if table.warmup_steps:
            return f"noam with {table.warmup_steps} steps of warm-up{late}", None
        return f"noam with {total_steps} steps of warm-up: the whole run", "warmup_steps"
    warmup = f", {table.warmup_steps} of them warm-up" if table.warmup_steps else ""
    if table.num_iters is not None:
        return f"{table.type} over {table.num_iters} steps{warmup}: num_iters is set", None
    return (
        f"{table.type} over {total_steps} steps{warmup}: the whole run, num_iters is not set{late}",
        "num_iters",
    )


def _check_peak(peak: float) -> None:
    if not 0 < peak <= 1:
        raise ConfigError(f"the peak of a schedule must be above 0 and at most 1, got {peak:g}")


def _check_gamma(gamma: float) -> None:
    if not 0 < gamma <= 1:
        raise ConfigError(f"optimizer.lr_schedule.gamma must be above 0 and at most 1, got {gamma:g}")


def _check_shape(warmup: int, length: int) -> None:
    if warmup < 0 or length < 1:
        raise ConfigError(
            f"a schedule needs warmup_steps >= 0 and at least 1 step, got {warmup} and {length}"
        )


def _check_step(step: int) -> None:
    if step < 1:
        raise ValueError(f"optimizer steps count from 1, got {step}")
