"""The gate and the norm of Mamba-2, in either order, with an analytic backward pass.

Per token and group of channels, v = y silu(z) (gate first, as published) or v = y (norm first):

    r = (mean(v^2) + eps)^(-1/2),      n = r v,      out = n w     or, norm first: n w silu(z)

Backward, with g = dL/dout (times silu(z), norm first):

    dw = sum n g,      dv = r (w g - n mean(n w g)),      dy = dv silu(z),  ds = dv y
                                                          or, norm first: dy = dv,  ds = dL/dout n w

Kept are y, z as it was projected, and one number per token and group: about half of what autograd keeps.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional


def _times_groups(x: Tensor, factor: Tensor) -> Tensor:
    """x [B, T, C], which nobody else holds, times factor [B, T, G] of its groups; in place."""
    x.unflatten(-1, (factor.shape[-1], -1)).mul_(factor[..., None])
    return x


class _GatedNorm(torch.autograd.Function):
    """y [B, T, C], z [B, T, C] in any dtype, weight [C] -> [B, T, C] in y's dtype."""

    @staticmethod
    def forward(
        ctx: Any, y: Tensor, z: Tensor, weight: Tensor, groups: int, eps: float, norm_first: bool
    ) -> Tensor:
        gate = functional.silu(z.to(y.dtype))
        out = y.clone(memory_format=torch.contiguous_format) if norm_first else y * gate
        size = torch.linalg.vector_norm(out.unflatten(-1, (groups, -1)), dim=-1)
        scale = torch.rsqrt(size.square() / (y.shape[-1] // groups) + eps)
        out = _times_groups(out, scale).mul_(weight)
        ctx.save_for_backward(y, z, weight, scale)
        ctx.norm_first = norm_first
        return out.mul_(gate) if norm_first else out

    @staticmethod
    @once_differentiable  # the scale counts as constant: a second derivative must fail, not be wrong
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        y, z, weight, scale = ctx.saved_tensors
        g, groups = gradients[0], scale.shape[-1]
        z_wide = z.to(y.dtype)
        gate = functional.silu(z_wide)
        normed = y.clone(memory_format=torch.contiguous_format) if ctx.norm_first else y * gate
        normed = _times_groups(normed, scale)
        g_normed = g * gate if ctx.norm_first else g
        products = g_normed * normed
        g_weight = products.sum((0, 1))
        g_v = g_normed * weight
        with torch.autocast(y.device.type, enabled=False):  # whatever is in force where it is called
            weights = weight.unflatten(0, (groups, -1))
            shares = torch.linalg.vecdot(products.unflatten(-1, (groups, -1)), weights)
        along = _times_groups(normed.clone() if ctx.norm_first else normed, shares / -(y.shape[-1] // groups))
        g_v = _times_groups(g_v.add_(along), scale)
        if ctx.norm_first:
            g_gate, g_y = normed.mul_(weight).mul_(g), g_v
        else:
            g_gate, g_y = g_v * y, gate.mul_(g_v)
        g_z = torch.ops.aten.silu_backward(g_gate, z_wide).to(z.dtype)
        return g_y, g_z, g_weight, None, None, None


def gated_norm(y: Tensor, z: Tensor, weight: Tensor, *, groups: int, eps: float, norm_first: bool) -> Tensor:
    """Gate y by z and normalise, in the order asked for.

    Args:
        y: [B, T, C] in the dtype of the sums.
        z: [B, T, C] in any dtype.
        weight: [C], the gain.
        groups: equal shares of the channels; each has its own mean square.
        eps: added to the mean squares.
        norm_first: normalise before the gate.
    Returns: [B, T, C] in y's dtype.
    """
    out: Tensor = _GatedNorm.apply(y, z, weight, groups, eps, norm_first)
    return out
