"""The two stages of BitNet b1.58: a high rate with weight decay, then a lower rate whose decay fades.

Both are functions of the step alone. With T steps in the run, k = min(step, T) - 1 and the half-way mark
h = round((T - 1) / 2), halves up:

    later = 0 for k <= h, else (k - h) / (T - 1 - h)
    rate = peak step / W for steps <= W, else peak + (final - peak) later,    final = 2/3 peak
    decay = initial + (final - initial) later

W, where it is not given, is a twentieth of the run, rounded up, at most 375 steps.

After Ma and others, "The Era of 1-bit LLMs: Training Tips, Code and FAQ" (2024). The paper's own rates fall in a line
from the first peak, drop to a second peak half way, and its decay is 0 from there on at once; here both stages join.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import ConfigError

if TYPE_CHECKING:
    from ..config.schema.optimizer import Optimizer

FINAL_SHARE = 2 / 3
LONGEST_WARMUP = 375


@dataclass(frozen=True)
class TwoStage:
    """Warm-up, then `peak` to the middle of `total` steps, then a line to `final` at the last, then `final`."""

    peak: float
    final: float
    warmup: int
    total: int

    def __post_init__(self) -> None:
        if not 0 < self.peak <= 1 or not 0 <= self.final <= 1:
            raise ConfigError(
                f"the rates of two stages must be between 0 and 1, got {self.peak:g} and {self.final:g}"
            )
        if self.total < 1 or not 1 <= self.warmup <= self.total:
            raise ConfigError(
                f"two stages need 1 <= warmup <= steps of the run, got {self.warmup} and {self.total}"
            )

    @staticmethod
    def of(peak: float, total: int) -> TwoStage:
        """The published proportions in a run of `total` steps."""
        warmup = min(max(1, -(-total // 20)), LONGEST_WARMUP, total)
        return TwoStage(peak, peak * FINAL_SHARE, warmup, total)

    def rate(self, step: int) -> float:
        """The learning rate of optimizer step `step` (the first is 1)."""
        later = second_stage(step, self.total)
        if step <= self.warmup:
            return self.peak * (step / self.warmup)
        return self.final if later == 1 else self.peak + (self.final - self.peak) * later

    def describe(self) -> str:
        """The whole of it in one line."""
        half = min(self.total // 2 + 1, self.total)
        return (
            f"two stages over {self.total} steps, {self.warmup} of them warm-up: {self.peak:g} to step {half}, then in "
            f"a line to {self.final:.3g}"
        )


@dataclass(frozen=True)
class WeightDecay:
    """Weight decay as a function of the step: `initial` to the middle of `total` steps, then a line to `final`."""

    initial: float
    final: float
    total: int

    def __post_init__(self) -> None:
        for value in (self.initial, self.final):
            if not 0 <= value < math.inf:
                raise ConfigError(f"weight decay must be 0 or more, got {value:g}")

    def at(self, step: int) -> float:
        """The weight decay of optimizer step `step` (the first is 1)."""
        later = second_stage(step, self.total)
        return self.final if later == 1 else self.initial + (self.final - self.initial) * later

    def describe(self) -> str:
        """The whole of it, short."""
        half = self.total // 2 + 1
        if self.initial == self.final or half >= self.total:
            return f"{self.initial:g}"
        return f"{self.initial:g} to step {half}, then in a line to {self.final:g} at step {self.total}"


def build_weight_decay(optimizer: Optimizer, total_steps: int) -> WeightDecay:
    """The weight decay that the `optimizer` table asks for, in a run of `total_steps` optimizer steps."""
    initial, final = optimizer.weight_decay, optimizer.weight_decay_final
    if optimizer.name == "bitnet_published":
        return WeightDecay(initial, 0.0 if final is None else final, total_steps)
    if optimizer.schedule_mode == "bitnet_b158_reference" and final is not None:
        return WeightDecay(initial, final, total_steps)
    return WeightDecay(initial, initial, total_steps)


def second_stage(step: int, total: int) -> float:
    """How far into the second stage a step is: 0 to the middle of the run, 1 at its last step and after."""
    if step < 1:
        raise ValueError(f"optimizer steps count from 1, got {step}")
    last = max(1, total) - 1
    done, half = min(step - 1, last), (last + 1) // 2
    return 0.0 if done <= half else (done - half) / (last - half)
