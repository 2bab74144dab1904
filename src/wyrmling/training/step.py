"""One optimizer step.

Law 5: each backward pass takes the SUM of token losses; gradients are divided once, before clipping, by the number of
targets in the whole step. So accumulation, rows of unequal length and padding never change the scale of a gradient.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from ..config import Config
from ..data.batches import Batch
from ..errors import DivergedError
from ..model import Model, Observed, State
from ..numerics.dropout import Dropout
from ..optim import Limits, Scales, first_nonfinite, limits, scale_and_clip, set_rates
from ..optim.continual import Activity
from ..watch.profile import StageProfile
from .evaluation import loss_sums, zero_loss
from .machine import Machine
from .streams import Backward, Forward, Streams, backward_in_chunks


@dataclass(frozen=True)
class StepOutcome:
    """What a step did.

    Attributes:
        loss_sum: float64 scalar tensor on the device, nats summed over the targets; reading it synchronises.
        targets: number of targets.
        gradient_norm: global norm before clipping.
        textless_loss_sum: the part of `loss_sum` on targets without text.
    """

    loss_sum: torch.Tensor
    targets: int
    gradient_norm: float
    textless_loss_sum: torch.Tensor

    def loss(self) -> float:
        """Nats per token."""
        return float(self.loss_sum) / max(self.targets, 1)


@dataclass(frozen=True)
class StepRules:
    """What is the same for every step of a run.

    Attributes:
        dropout: probability; masks follow (seed, step, layer, row, position).
        limits: how gradients are clipped; see `optim.scale_and_clip`.
        chunk, window: tokens per chunk and chunks that a loss reaches; see `backward_in_chunks`.
        scales: parts of the model whose learning rate or gradient is scaled.
        textless: which ids stand for no text; see `evaluation.textless_tokens`.
    """

    dropout: float
    seed: int
    limits: Limits
    chunk: int | None = None
    window: int = 1
    scales: Scales = field(default_factory=Scales)
    textless: torch.Tensor | None = None

    @staticmethod
    def of(config: Config, scales: Scales, textless: torch.Tensor | None = None) -> StepRules:
        """The rules of a run."""
        training = config.training
        return StepRules(
            config.model.dropout,
            training.seed,
            limits(config.optimizer),
            training.tbptt_chunk_size,
            training.tbptt_window,
            scales,
            textless,
        )


def optimizer_step(
    model: Model,
    optimizer: torch.optim.Optimizer,
    batches: Sequence[Batch],
    machine: Machine,
    *,
    step: int,
    rate: float,
    decay: float | None = None,
    rules: StepRules,
    profile: StageProfile,
    streams: Streams | None = None,
    activity: Activity | None = None,
) -> StepOutcome:
    """Forward and backward over the micro-batches of optimizer step `step` (from 1), then one update.

    The gradient norm is checked before the update: one number per step is read from the device, none per micro-batch.

    Args:
        rate, decay: the step's learning rate and weight decay; a decay of None is that of the optimizer's groups.
        streams: states from the step before, which are replaced by those after this one; None starts every row anew.
        activity: adds up what neurons do.

    Raises:
        DivergedError: a loss or gradient is not finite; no weight, moment, state or counter was changed.
    """
    optimizer.zero_grad(set_to_none=True)  # whatever a callback may have left
    targets = sum(batch.target_count for batch in batches)
    loss_sum, textless_loss_sum = zero_loss(machine), zero_loss(machine)
    after: list[State | None] = []
    for index, batch in enumerate(batches):
        key = _masks(rules, step, batch)
        with profile.stage("copy"):
            tokens = batch.tokens.to(machine.device, non_blocking=True)
            wanted = batch.targets.to(machine.device, non_blocking=True)
        loss, state = backward_in_chunks(
            _forward(model, machine, key, profile, activity, rules.textless, textless_loss_sum),
            tokens,
            wanted,
            None if streams is None else streams.states[index],
            None if streams is None else batch.reset,
            chunk=rules.chunk,
            window=rules.window,
            carry=streams is not None,
            backward=_backward(profile),
        )
        loss_sum += loss
        after.append(state)
    with profile.stage("optimizer"):
        rules.scales.scale_gradients(model.named_parameters(), step)
        parameters = list(model.parameters())
        norm = scale_and_clip(parameters, 1.0 / max(targets, 1), **rules.limits)
        profile.waited()
        if not math.isfinite(norm):
            raise _diverged(model, step, float(loss_sum), rate)
        set_rates(optimizer, rate, decay, rules.scales.rates(step))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    if streams is not None:
        streams.states = after
    profile.step_done()
    return StepOutcome(loss_sum, targets, norm, textless_loss_sum)


def _masks(rules: StepRules, step: int, batch: Batch) -> Dropout | None:
    return Dropout(rules.dropout, rules.seed, step, tuple(batch.rows.tolist())) if rules.dropout else None


def _forward(
    model: Model,
    machine: Machine,
    dropout: Dropout | None,
    profile: StageProfile,
    activity: Activity | None,
    textless: torch.Tensor | None,
    textless_loss_sum: torch.Tensor,
) -> Forward:
    """The forward pass of a chunk, timed; adds to `textless_loss_sum`."""

    def forward(
        tokens: torch.Tensor,
        targets: torch.Tensor,
        state: State | None,
        reset: torch.Tensor | None,
        carry: bool,
    ) -> tuple[torch.Tensor, State | None]:
        with profile.stage("forward"), machine.autocast():
            seen: list[Observed] | None = None if activity is None else []
            hidden, after = model(tokens, state, reset=reset, dropout=dropout, observe=seen, carry=carry)
            if activity is not None and seen is not None:
                activity.add(seen)
            loss, apart = loss_sums(model, hidden, targets, textless)
            textless_loss_sum.add_(apart)
            return loss, after

    return forward


def _backward(profile: StageProfile) -> Backward:
    """A backward pass, timed."""

    def backward(ends: list[torch.Tensor], gradients: list[torch.Tensor], again: bool) -> None:
        with profile.stage("backward"):
            torch.autograd.backward(ends, gradients, retain_graph=again)

    return backward


def _diverged(model: Model, step: int, loss_sum: float, rate: float) -> DivergedError:
    name = first_nonfinite(model.named_parameters())
    what = f"the gradient of {name}" if name else "the norm of the gradients"
    loss = "" if math.isfinite(loss_sum) else " (the loss is not finite either)"
    return DivergedError(
        f"training diverged at step {step}: {what} is not finite{loss}; nothing was updated "
        f"(the learning rate is {rate:.3g} now)"
    )
