"""From rewards to advantages.

With a hard reward h and an easy one e of G continuations of each of B prompts, float64 [B, G]:

    1.  e <- e where the gate lets it, else 0
    2.  n(r) = (r - mean_g r) / sqrt(var_g r + eps)          over the group, for each reward on its own
    3.  A = hard_weight n(h) + easy_weight n(e)
    4.  A <- (A - mean A) / sqrt(var A + eps)                over the whole batch
    5.  A <- A within [-clip, clip]

Normalising before adding is the point (GDPO, 2026, arXiv 2601.05242, against GRPO, Shao and others 2024): rewards of
different size keep their say, and (0, 1) is told from (0, 2). Variances are those of the population, and eps is added
to them, as in the described system; the paper divides by the sample's deviation plus 1e-4.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...config.schema.gdpo import FixedGate, Gdpo, HardGate, NoGate

SMALLEST_EPSILON = 1e-12
LARGEST = float(torch.finfo(torch.float32).max)


@dataclass(frozen=True)
class Running:
    """Running mean and mean square of advantages before they are whitened: a value, to be handed on.

    Attributes:
        weight: what the batches so far add up to, 1 - decay^batches; the sums are divided by it.
    """

    mean: float = 0.0
    square: float = 0.0
    weight: float = 0.0

    def after(self, values: Tensor, decay: float) -> Running:
        """With one more batch; a decay of 0 leaves that batch alone."""
        fresh = 1 - decay
        return Running(
            decay * self.mean + fresh * float(values.mean()),
            decay * self.square + fresh * float(values.square().mean()),
            decay * self.weight + fresh,
        )

    def whiten(self, values: Tensor, epsilon: float) -> Tensor:
        """Values in units of the running deviation from the running mean."""
        mean, square = self.mean / self.weight, self.square / self.weight
        return (values - mean) / (max(square - mean * mean, 0.0) + epsilon) ** 0.5


@torch.no_grad()
def advantages(
    hard: Tensor, easy: Tensor, settings: Gdpo, running: Running | None = None
) -> tuple[Tensor, Running]:
    """How much better each continuation did than its group; no gradient flows through it.

    Args:
        hard, easy: rewards, [B, G]. NaN counts as 0, infinities as the largest float32 number.
        running: what the batch before handed on; it matters where `advantage_ema_decay` is above 0.
    Returns: float64 [B, G], and what to hand on to the next batch.
    Raises:
        ValueError: rewards of different or other shapes, or none.
    """
    if hard.dim() != 2 or hard.shape != easy.shape or not hard.numel():
        raise ValueError(
            f"rewards must both be [prompts, group], got {tuple(hard.shape)} and {tuple(easy.shape)}"
        )
    hard, easy = _finite(hard), _finite(easy)
    epsilon = max(settings.norm_epsilon, SMALLEST_EPSILON)
    easy = gated(hard, easy, settings.hard_gate)
    values = settings.hard_weight * within_groups(hard, epsilon)
    values += settings.easy_weight * within_groups(easy, epsilon)
    running = (running or Running()).after(values, settings.advantage_ema_decay)
    values = running.whiten(values, epsilon)
    if settings.advantage_clip > 0:
        values = values.clamp(-settings.advantage_clip, settings.advantage_clip)
    return values, running


def gated(hard: Tensor, easy: Tensor, gate: HardGate) -> Tensor:
    """The easy reward where the hard one is high enough, else 0; [B, G]."""
    if isinstance(gate, NoGate):
        return easy
    if isinstance(gate, FixedGate):
        return easy * (hard >= gate.threshold)
    return easy * (hard >= torch.quantile(hard, gate.quantile, dim=1, keepdim=True))


def within_groups(rewards: Tensor, epsilon: float) -> Tensor:
    """A reward [B, G] in units of its group's deviation from the group's mean; 0 where all of a group are equal."""
    variance, mean = torch.var_mean(rewards, dim=1, correction=0, keepdim=True)
    return (rewards - mean) / (variance + epsilon).sqrt()


def _finite(rewards: Tensor) -> Tensor:
    return torch.nan_to_num(rewards.detach().double(), nan=0.0, posinf=LARGEST, neginf=-LARGEST)
