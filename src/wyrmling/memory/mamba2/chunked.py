"""Mamba-2 between its two projections, all tokens at once: the fast form of `naive.py`."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from ..base import MemoryState
from ..ssd import chunked
from .convolution import causal_convolution
from .gate import gated_norm
from .naive import Geometry, Weights


def mix(
    projected: Tensor,
    weights: Weights,
    geometry: Geometry,
    state: MemoryState | None,
    *,
    chunk: int = chunked.CHUNK,
    carry: bool = True,
) -> tuple[Tensor, MemoryState | None]:
    """projected [B, T, inner + channels + H], any dtype, and the state before it -> [B, T, inner], state.

    Sums, and all that comes out, in the weights' dtype. Without `carry` no state is made.
    """
    wide = weights.a_log.dtype
    z, raw, step = projected.split(geometry.projected, dim=-1)
    kept = weights.conv_weight.shape[1] - 1
    window = raw.new_zeros(raw.shape[0], raw.shape[2], kept, dtype=wide) if state is None else state["conv"]
    convolved, window = causal_convolution(raw, weights.conv_weight, weights.conv_bias, window)
    x, b, c = convolved.split(geometry.convolved, dim=-1)
    x = x.unflatten(-1, (geometry.heads, geometry.headdim))
    b, c = (t.unflatten(-1, (geometry.groups, geometry.d_state)).transpose(1, 2) for t in (b, c))
    dt = functional.softplus(step.to(wide) + weights.dt_bias)
    log_decay = (dt * -torch.exp(weights.a_log)).mT
    values = (dt[..., None] * x).transpose(1, 2)
    ssm = None if state is None else state["ssm"]
    reads, ssm = chunked.ssd(log_decay, values, b, c, ssm, chunk=chunk, carry=carry)
    y = torch.addcmul(reads.transpose(1, 2), weights.d_skip[:, None], x).flatten(2)
    out = gated_norm(
        y,
        z,
        weights.norm_weight,
        groups=geometry.norm_groups,
        eps=geometry.norm_eps,
        norm_first=geometry.norm_before_gate,
    )
    return out, {"ssm": ssm, "conv": window} if ssm is not None and carry else None
