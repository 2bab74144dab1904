"""Muon: momentum whose matrices are made orthogonal before they become an update; AdamW for everything else.

With gradient G, momentum M (zero at first) and a parameter's matrices W [inputs, outputs]:

    M <- mu M + (1 - mu) G,   U = mu M + (1 - mu) G (Nesterov) or M
    W <- (1 - rate decay) W - rate s orthogonalize(U)

s is sqrt(max(1, outputs / inputs)) ("original", Jordan and others 2024) or 0.2 sqrt(max(inputs, outputs))
("match_rms_adamw", Liu and others 2025, "Muon is scalable for LLM training"). The second gives an element of the
update the size that AdamW's elements have, about 0.2, so that both halves take the same learning rate and decay.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from ..numerics.roles import heads_of, parts_of
from .adamw import AdamW, update_moments
from .newton_schulz import orthogonalize

Adjustment = Literal["match_rms_adamw", "original"]


@dataclass(frozen=True)
class MuonSettings:
    """What Muon does with a matrix.

    Attributes:
        momentum: mu.
        steps: of the Newton-Schulz iteration.
        split_heads: each head's matrix on its own; else all heads of a parameter as the one matrix they make up.
        dtype: of the products.
    """

    momentum: float = 0.95
    nesterov: bool = True
    steps: int = 5
    adjustment: Adjustment = "match_rms_adamw"
    split_heads: bool = True
    dtype: torch.dtype = torch.float32


class Muon(AdamW):
    """Muon for the groups that hold `muon` = True, AdamW for the others.

    State: `momentum_buffer` of a parameter under Muon, AdamW's own of the others. The arguments are those of AdamW,
    and what Muon does.
    """

    def __init__(self, params: Any, settings: MuonSettings, **adamw: Any) -> None:
        super().__init__(params, **adamw)
        self.settings = settings
        for group in self.param_groups:
            group.setdefault("muon", False)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Not AdamW's: it wants a step counter of every parameter."""
        torch.optim.Optimizer.__setstate__(self, state)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One update; a `closure` computes the loss again before it."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        everything = self.param_groups
        try:
            self.param_groups = [group for group in everything if not group["muon"]]
            update_moments(self)
        finally:
            self.param_groups = everything
        for group in everything:
            if group["muon"]:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        self._update(parameter, group["lr"], group["weight_decay"])
        return loss

    def _update(self, parameter: torch.nn.Parameter, rate: float, decay: float) -> None:
        chosen, gradient, state = self.settings, parameter.grad, self.state[parameter]
        assert gradient is not None
        if not state:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        momentum = state["momentum_buffer"]
        momentum.lerp_(gradient, 1 - chosen.momentum)
        update = gradient.lerp(momentum, chosen.momentum) if chosen.nesterov else momentum
        if rate * decay != 0:
            parameter.mul_(1 - rate * decay)
        pairs = (matrices(parameter, chosen.split_heads), matrices(parameter, chosen.split_heads, update))
        for weights, direction in zip(*pairs, strict=True):
            inputs, outputs = weights.shape[-2:]
            if chosen.split_heads or weights.dim() == 2:
                change = orthogonalize(direction, chosen.steps, chosen.dtype)
            else:
                change = _as_one(direction, chosen)
                outputs *= weights.shape[:-2].numel()
            weights.add_(change.to(weights.dtype), alpha=-rate * scale(inputs, outputs, chosen.adjustment))


def matrices(
    parameter: torch.nn.Parameter, split_heads: bool, tensor: Tensor | None = None
) -> Iterator[Tensor]:
    """The matrices that a parameter holds as it declared them, as views [..., inputs, outputs].

    Args:
        split_heads: whether heads one below the other are apart; an axis in front of the last two always is.
        tensor: of the parameter's shape, taken apart in its place.
    Raises:
        ValueError: less than two axes hold no matrix.
    """
    tensor = parameter if tensor is None else tensor
    if tensor.dim() < 2:
        raise ValueError(f"a parameter {tuple(tensor.shape)} holds no matrix: declare another role")
    heads, parts = heads_of(parameter) if split_heads else 1, parts_of(parameter)
    for part in tensor.split(parts, dim=-1) if parts else (tensor,):
        yield part.unflatten(-2, (heads, -1)) if heads > 1 else part


def scale(inputs: int, outputs: int, adjustment: Adjustment) -> float:
    """What the orthogonal matrix is multiplied by, besides the learning rate."""
    if adjustment == "original":
        return math.sqrt(max(1.0, outputs / inputs))
    return 0.2 * math.sqrt(max(inputs, outputs))


def _as_one(stack: Tensor, chosen: MuonSettings) -> Tensor:
    """Orthogonalise a stack [..., inputs, outputs] as the one matrix whose outputs lie side by side."""
    inputs, outputs = stack.shape[-2:]
    side_by_side = stack.reshape(-1, inputs, outputs).transpose(0, 1).reshape(inputs, -1)
    change = orthogonalize(side_by_side, chosen.steps, chosen.dtype)
    return change.reshape(inputs, -1, outputs).transpose(0, 1).reshape(stack.shape)
