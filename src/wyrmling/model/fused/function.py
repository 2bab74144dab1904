"""The fused layer as one autograd function."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .backward import run_backward
from .call import LayerCall
from .forward import Kept, run_forward


def run_layer(call: LayerCall, hidden: Tensor, rho: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """The layer's sum [B, T, D] before the outer normalisations, and the final state [B, H, K, D] (with `carry`).

    Gradients reach hidden, rho, the weights (through the token) and the parameters of the norm.
    """
    inputs = [hidden, rho, call.shared.token, *call.norm.parameters()]
    with torch.autocast("cpu", enabled=False):
        if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in inputs):
            return FusedLayer.apply(call, *inputs)
        with torch.no_grad():
            return run_forward(call, hidden, rho, None)


class FusedLayer(torch.autograd.Function):
    """Inputs: the call, hidden, rho or None, the weights' token or None, the parameters of the norm."""

    @staticmethod
    def forward(
        ctx: Any, call: LayerCall, hidden: Tensor, rho: Tensor | None, token: Tensor | None, *norm: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        kept = Kept()
        delta, final = run_forward(call, hidden, rho, kept)
        tensors: list[Tensor] = []
        ctx.kept = _numbered(vars(kept), tensors)
        ctx.call = call
        ctx.save_for_backward(hidden, rho, *tensors)
        ctx.set_materialize_grads(False)  # a final state that nobody used costs nothing
        return delta, final

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g_delta: Tensor | None, g_final: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, rho, *tensors = ctx.saved_tensors
        kept = Kept(**_fetched(ctx.kept, tensors))
        with torch.autocast("cpu", enabled=False):
            found = run_backward(
                ctx.call, hidden, rho, kept, g_delta, g_final, want_rho=bool(ctx.needs_input_grad[2])
            )
        token = ctx.call.shared.token
        return (
            None,
            found.hidden.to(hidden.dtype),
            None if found.rho is None else found.rho.to(rho.dtype),
            None if token is None else torch.zeros_like(token),
            *found.norm,
        )


def _numbered(value: Any, tensors: list[Tensor]) -> Any:
    """The same nest of lists and dictionaries with numbers for tensors, which are appended to the list."""
    if isinstance(value, Tensor):
        tensors.append(value)
        return len(tensors) - 1
    if isinstance(value, dict):
        return {key: _numbered(part, tensors) for key, part in value.items()}
    return [_numbered(part, tensors) for part in value]


def _fetched(value: Any, tensors: list[Tensor]) -> Any:
    """The inverse of `_numbered`."""
    if isinstance(value, int):
        return tensors[value]
    if isinstance(value, dict):
        return {key: _fetched(part, tensors) for key, part in value.items()}
    return [_fetched(part, tensors) for part in value]
