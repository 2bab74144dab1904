"""Mamba-3 as a loop over tokens: the truth of every test.

Per head, with dt_t > 0 the step, a_t = dt_t A_t <= 0, l_t in (0, 1) the blend of the trapezoid, theta_t the angles, and
keys and queries rotated by the angle of their own token (k_t = R(theta_t) k~_t, q_t = R(theta_t) q~_t):

    theta_t = theta_{t-1} + pi s_t dt_t
    S_t = exp(a_t) (S_{t-1} + dt_t (1 - l_t) v_{t-1} k_{t-1}^T) + dt_t l_t v_t k_t^T       [P, N]
    y_t = S_t q_t + D v_t                                                                  read after the write

The state holds S, theta and the last key (rotated) and value: the write at t needs both ends of its step. l = 1 is
Mamba-2's rule, l = 1/2 the trapezoid's.

Source: "Mamba-3: Improved Sequence Modeling using State Space Principles" (arXiv 2603.15569), the recurrence by the
exponential trapezoid with one input and one output per head, and its public code (state-spaces/mamba).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ...numerics.decays import decayed
from ..base import MemoryState
from .angles import wrap


class Tokens(NamedTuple):
    """What a stretch of tokens brings to the recurrence. Heads before time."""

    log_decay: Tensor  # [B, H, T], dt A, never positive
    step: Tensor  # [B, H, T], dt
    blend: Tensor  # [B, H, T], lambda: the share of the step that the newer end gets
    spin: Tensor  # [B, T, R] in (-1, 1), half turns per unit of time
    values: Tensor  # [B, H, T, P]
    keys: Tensor  # [B, H, T, N], not yet rotated
    queries: Tensor  # [B, H, T, N], not yet rotated


def rotated(x: Tensor, angle: Tensor) -> Tensor:
    """Pairs (2i, 2i+1) of x [..., N] turned by angle [..., R]; what is behind the 2R-th component stays."""
    width = 2 * angle.shape[-1]
    even, odd = x[..., 0:width:2], x[..., 1:width:2]
    cos, sin = torch.cos(angle), torch.sin(angle)
    turned = torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1).flatten(-2)
    return torch.cat([turned, x[..., width:]], dim=-1)


def mamba3(tokens: Tokens, skip: Tensor, state: MemoryState) -> tuple[Tensor, MemoryState]:
    """Read and write token after token.

    Args:
        skip: [H], D.
        state: ssm [B, H, P, N], angle [B, H, R] (radians), key [B, H, N] (rotated), value [B, H, P].
    Returns: reads [B, H, T, P], final state.
    """
    memory, angle, key, value = (state[name] for name in ("ssm", "angle", "key", "value"))
    reads = []
    for t in range(tokens.step.shape[2]):
        step, blend = tokens.step[:, :, t, None, None], tokens.blend[:, :, t, None, None]
        angle = wrap(angle + math.pi * step[..., 0] * tokens.spin[:, None, t])
        before = memory + step * (1 - blend) * value[..., None] * key[..., None, :]
        key, query = rotated(tokens.keys[:, :, t], angle), rotated(tokens.queries[:, :, t], angle)
        value = tokens.values[:, :, t]
        memory = (
            decayed(before, tokens.log_decay[:, :, t, None, None])
            + step * blend * value[..., None] * key[..., None, :]
        )
        reads.append(torch.einsum("bhpn,bhn->bhp", memory, query) + skip[:, None] * value)
    return torch.stack(reads, dim=2), {"ssm": memory, "angle": angle, "key": key, "value": value.clone()}
