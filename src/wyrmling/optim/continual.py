"""Continual backprop: neurons that contribute least are replaced, a few at a time.

A neuron (h, n) has weights in (column n of head h of `encoder` and `encoder_v`) and weights out (its row of `decoder`);
all layers share them. With the mean over the tokens of a step of what reaches the decoder, summed over layers,

    c = sum over layers of mean (x * y)  *  sum |out|                                  utility = "contribution"
    c = the same  /  max(epsilon, sum |in|)                                            "contribution_per_input"
    u <- decay u + (1 - decay) c,   utility = u / (1 - decay^samples)                  in sampled steps
    age <- age + 1,   budget <- budget + rate m |mature|,   mature: age > maturity     in every step
    the floor(budget) mature neurons of the lowest utility, or all, are replaced       at intervals
    budget <- budget - floor(budget)                                                   whether there were so many or not

and m couples the rate to the learning rate. x * y is never negative, so it is its own size.

Everything here is a function of sums over the global batch, so replicas that add them up agree on what to replace.

Source: Dohare and others, "Loss of plasticity in deep continual learning", Nature 632 (2024): its contribution utility.
Divided by the weights in as what its code calls "adaptable contribution", but without the running mean of a neuron that
is subtracted there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ..config.schema.continual import ContinualBackprop as Table
from ..errors import CheckpointError
from ..model import Model, Observed
from .replacement import neuron_views, replace_neurons
from .scales import Scales


class Activity:
    """What neurons did in one optimizer step: sums over layers, chunks and micro-batches.

    Attributes:
        total: [H, N], sums of x * y over layers, rows and tokens; on the device of what was added, so that nothing
            waits for it; float64 where the device has it.
        tokens: how many tokens a layer has read. Replicas add up both before anybody reads them.
    """

    def __init__(self, heads: int, neurons: int) -> None:
        self.total = torch.zeros(heads, neurons, dtype=torch.float64)
        self.tokens = 0

    def add(self, layers: Sequence[Observed]) -> None:
        """One call of the model; a narrow layer has the first neurons of every head."""
        for layer in layers:
            device = layer.activity.device
            if self.total.device != device:
                wide = torch.float32 if device.type == "mps" else torch.float64
                self.total = self.total.to(device, wide, non_blocking=True)
            self.total[:, : layer.activity.shape[1]] += layer.activity
        self.tokens += layers[0].tokens if layers else 0

    def mean(self) -> Tensor:
        """Per token, summed over layers: float64 [H, N] on the CPU."""
        return self.total.to("cpu", torch.float64) / max(self.tokens, 1)


class ContinualBackprop:
    """Utilities and ages of the neurons of a model, and the replacement of the least useful.

    Args:
        table: the settings.
        base_rate: `optimizer.learning_rate`, the unit of the coupling.
        seed: decides new weights.
        scales: of the parts of the model; those of gradients count for the coupling like those of rates.

    Attributes:
        utility: float64 [H, N], u above.
        age: int64 [H, N], optimizer steps since a neuron was new.
        samples: int64 [H, N], how many of them were sampled.
        budget: neurons to be replaced, the part of one included.
    """

    def __init__(
        self,
        table: Table,
        heads: int,
        neurons: int,
        *,
        base_rate: float,
        seed: int,
        scales: Scales | None = None,
    ) -> None:
        self.table, self.base_rate, self.seed = table, base_rate, seed
        self.scales = Scales() if scales is None else scales
        self.utility = torch.zeros(heads, neurons, dtype=torch.float64)
        self.age = torch.zeros(heads, neurons, dtype=torch.int64)
        self.samples = torch.zeros(heads, neurons, dtype=torch.int64)
        self.budget = 0.0

    def activity(self, step: int) -> Activity | None:
        """Where optimizer step `step` (from 1) adds up what neurons do; None where it is not sampled."""
        return None if step % self.table.sample_interval_steps else Activity(*self.utility.shape)

    def after_step(
        self,
        step: int,
        activity: Activity | None,
        model: Model,
        optimizer: torch.optim.Optimizer,
        rate: float,
    ) -> Tensor | None:
        """Take note of optimizer step `step`, and replace neurons where one is due.

        Args:
            activity: of the step, where it was sampled.
            rate: the step's learning rate, which the groups of `optimizer` have times their own scale.
        Returns: bool [H, N], what was replaced; None for nothing.
        """
        self.age += 1
        if activity is not None:
            self._measure(activity, model)
        mature = self.mature()
        self.budget += (
            self.table.replacement_rate * self._ratio(step, model, optimizer, rate) * int(mature.sum())
        )
        if step % self.table.replace_interval_steps:
            return None
        chosen = least(self.corrected(), mature, int(self.budget))
        self.budget -= int(self.budget)  # what could not be spent is gone: it would pile up
        if not bool(chosen.any()):
            return None
        replace_neurons(model, optimizer, chosen, seed=self.seed, step=self._draw(step))
        for state in (self.utility, self.age, self.samples):
            state[chosen] = 0
        return chosen

    def mature(self) -> Tensor:
        """bool [H, N]: what may be replaced: older than the protected age, and measured at least once."""
        return (self.age > self.table.maturity_steps) & (self.samples > 0)

    def corrected(self) -> Tensor:
        """The utilities, float64 [H, N], as means over the samples so far; 0 before the first."""
        weight = 1 - self.table.utility_decay ** self.samples.to(torch.float64)
        return torch.where(self.samples > 0, self.utility / weight.clamp_min(1e-300), 0.0)

    def tensors(self) -> dict[str, Tensor]:
        """For a checkpoint."""
        budget = torch.tensor(self.budget, dtype=torch.float64)
        return {"utility": self.utility, "age": self.age, "samples": self.samples, "budget": budget}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Take what `tensors` gave.

        Raises:
            CheckpointError: a tensor is missing, of another shape or dtype, or holds what cannot be; nothing was
                taken.
        """
        for name, mine in self.tensors().items():
            theirs = tensors.get(name)
            if theirs is None:
                reason = "is missing"
            elif theirs.shape != mine.shape or theirs.dtype != mine.dtype:
                reason = f"is {_described(theirs)} there and {_described(mine)} here"
            elif not bool(((theirs >= 0) & (theirs < math.inf)).all()):
                reason = "holds numbers that are negative or not finite"
            else:
                continue
            raise CheckpointError(
                f"the checkpoint's {name} of continual backprop {reason}; use another checkpoint, or start a new run "
                "from its weights with training.launch_mode = init_from_checkpoint"
            )
        self.utility, self.age, self.samples = (
            tensors[name].to("cpu", copy=True) for name in ("utility", "age", "samples")
        )
        self.budget = float(tensors["budget"])

    def describe(self) -> str:
        """The whole of it in one line."""
        table = self.table
        coupled = "" if table.lr_coupling == "none" else f", times {table.lr_coupling}"
        if coupled and table.lr_coupling_power != 1:
            coupled += f"^{table.lr_coupling_power:g}"
        return (
            f"{table.replacement_rate:g} of the mature neurons per step{coupled}, every {table.replace_interval_steps} "
            f"steps, after {table.maturity_steps} steps, with {table.new_weights} weights"
        )

    def _measure(self, activity: Activity, model: Model) -> None:
        decay = self.table.utility_decay
        divides = self.table.utility == "contribution_per_input"
        found = contribution(activity.mean(), model, self.table.utility_epsilon if divides else None)
        self.utility = decay * self.utility + (1 - decay) * found
        self.samples += 1

    def _draw(self, step: int) -> int | None:
        return step if self.table.new_weights == "fresh" else None

    def _ratio(self, step: int, model: Model, optimizer: torch.optim.Optimizer, rate: float) -> float:
        """What the replacement rate is multiplied by."""
        if self.table.lr_coupling == "none":
            return 1.0
        if self.table.lr_coupling == "target_group_ratio":
            own = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
            rates = [
                own.get(id(parameter), rate) * self.scales.of_gradient(name, step)
                for name, parameter, _ in neuron_views(model)
            ]
            rate = sum(rates) / len(rates)
        return float(max(0.0, rate / self.base_rate) ** self.table.lr_coupling_power)


@torch.no_grad()
def contribution(activity: Tensor, model: Model, epsilon: float | None) -> Tensor:
    """What neurons contribute, float64 [H, N]: activity [H, N] times sum |out|, over sum |in| where `epsilon` is given.

    Args:
        activity: mean of x * y per token, summed over layers.
        epsilon: least size of the weights in.
    """
    g = model.geometry
    out = model.decoder.view(g.heads, g.neurons, g.width).abs().sum(-1).to("cpu", torch.float64)
    if epsilon is None:
        return activity * out
    into = (model.encoder.abs().sum(1) + model.encoder_v.abs().sum(1)).to("cpu", torch.float64)
    return activity * out / into.clamp_min(epsilon)


def least(utility: Tensor, mature: Tensor, count: int) -> Tensor:
    """bool [H, N]: the `count` mature neurons of the lowest utility, or all; of equal ones the first in order."""
    candidates = mature.flatten().nonzero().squeeze(1)
    order = torch.sort(utility.flatten()[candidates], stable=True).indices
    chosen = torch.zeros(mature.numel(), dtype=torch.bool)
    chosen[candidates[order[: max(count, 0)]]] = True
    return chosen.view(mature.shape)


def _described(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
