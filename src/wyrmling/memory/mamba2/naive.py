"""Mamba-2 between its two projections, as a loop over tokens: the truth of every test.

With z_t | u_t | r_t the parts of the projected token, the K - 1 raw inputs u before it in the window, and per head the
state h [P, N]:

    x_t | B_t | C_t = silu(b + sum_k w_k u_{t-K+1+k})         short convolution, every channel alone
    dt = softplus(r_t + dt_bias),      A = -exp(a_log)
    h_t = exp(dt A) h_{t-1} + dt x_t B_t^T
    y_t = h_t C_t + d_skip x_t                                read after the write: a token sees itself
    out = rms_norm(y_t silu(z_t)) norm_weight                 or, norm first: rms_norm(y_t) norm_weight silu(z_t)

The mean square of the norm is taken over each group's channels, or over all of them.

Source: Dao and Gu 2024, "Transformers are SSMs" (arXiv 2405.21060), section 7, and the public code's block.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from ...numerics.decays import decayed
from ..base import MemoryState


@dataclass(frozen=True)
class Geometry:
    """Sizes and options of one block; the module has checked that they fit each other."""

    heads: int
    headdim: int
    groups: int
    d_state: int
    d_conv: int
    norm_groups: int
    norm_eps: float
    norm_before_gate: bool

    @property
    def inner(self) -> int:
        """Channels of x, y and z."""
        return self.heads * self.headdim

    @property
    def channels(self) -> int:
        """Channels of the convolution: x, B and C."""
        return self.inner + 2 * self.groups * self.d_state

    @property
    def projected(self) -> list[int]:
        """Widths of z, xBC and dt in the projected stream."""
        return [self.inner, self.channels, self.heads]

    @property
    def convolved(self) -> list[int]:
        """Widths of x, B and C in what is convolved."""
        return [self.inner, self.groups * self.d_state, self.groups * self.d_state]


class Weights(NamedTuple):
    """What the block owns between its projections, all in the dtype of the sums."""

    conv_weight: Tensor  # [channels, K]
    conv_bias: Tensor | None  # [channels]
    dt_bias: Tensor  # [H]
    a_log: Tensor  # [H]
    d_skip: Tensor  # [H]
    norm_weight: Tensor  # [inner]


def mix(
    projected: Tensor, weights: Weights, geometry: Geometry, state: MemoryState
) -> tuple[Tensor, MemoryState]:
    """projected [B, T, inner + channels + H] and the state before it -> [B, T, inner], state."""
    hidden, window = state["ssm"], state["conv"]
    outputs = []
    for t in range(projected.shape[1]):
        z, raw, step = projected[:, t].split(geometry.projected, dim=-1)
        seen = torch.cat([window, raw[:, :, None]], dim=2)
        window = seen[:, :, 1:]
        convolved = (seen * weights.conv_weight).sum(2)
        if weights.conv_bias is not None:
            convolved = convolved + weights.conv_bias
        x, b, c = functional.silu(convolved).split(geometry.convolved, dim=-1)
        x = x.unflatten(-1, (geometry.heads, geometry.headdim))
        share = geometry.heads // geometry.groups
        b = b.unflatten(-1, (geometry.groups, geometry.d_state)).repeat_interleave(share, dim=1)
        c = c.unflatten(-1, (geometry.groups, geometry.d_state)).repeat_interleave(share, dim=1)

        dt = functional.softplus(step + weights.dt_bias)
        log_decay = -dt * torch.exp(weights.a_log)
        written = (dt[..., None] * x)[..., None] * b[:, :, None, :]
        hidden = decayed(hidden, log_decay[..., None, None]) + written
        y = torch.einsum("bhpn,bhn->bhp", hidden, c) + weights.d_skip[:, None] * x
        outputs.append(_gated_norm(y.flatten(1), z, weights.norm_weight, geometry))
    return torch.stack(outputs, dim=1), {"ssm": hidden, "conv": window}


def _gated_norm(y: Tensor, z: Tensor, weight: Tensor, geometry: Geometry) -> Tensor:
    gate = functional.silu(z)
    if not geometry.norm_before_gate:
        y = y * gate
    grouped = y.unflatten(-1, (geometry.norm_groups, -1))
    grouped = grouped / torch.sqrt(grouped.square().mean(-1, keepdim=True) + geometry.norm_eps)
    normed = grouped.flatten(-2) * weight
    return normed * gate if geometry.norm_before_gate else normed
