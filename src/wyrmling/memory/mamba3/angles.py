"""The data-dependent rotation of Mamba-3: angles that add up over a stream, and the rotation itself.

Each token turns the keys and queries of a head by pi s_t dt_t radians further, s_t in (-1, 1) for each of R pairs:

    theta_t = theta_{t-1} + pi s_t dt_t                      (mod 2 pi)

Only the angle modulo one turn matters, so it is counted in turns, where a whole turn can be dropped without rounding,
and summed in float64. In float32 a sum of 65,536 steps grows to thousands of turns and loses a tenth of a radian.
The state keeps the angle within half a turn, where float32 holds it to 1e-7 however long the stream. What is dropped
is constant almost everywhere, so gradients are those of the plain sum.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ...numerics.sums import running_sum

TURN = 2 * math.pi


def _exact(x: Tensor) -> Tensor:
    """float64, on the CPU where the device has no such numbers."""
    return x.to("cpu" if x.device.type == "mps" else x.device, torch.float64)


def wrap(angle: Tensor) -> Tensor:
    """Radians reduced by whole turns to [-pi, pi]; same shape, dtype and device.

    In float64: a turn of float32 is 2e-7 too long, and dropping it again and again would add up.
    """
    turns = _exact(angle) / TURN
    return (TURN * (turns - torch.round(turns))).to(angle.device, angle.dtype)


def accumulate(start: Tensor | None, step: Tensor, spin: Tensor) -> Tensor:
    """The angle after every token.

    Args:
        start: [B, H, R] radians before the first token; None is 0.
        step: [B, H, T], dt.
        spin: [B, T, R] in (-1, 1), half turns per unit of time; the same for all heads.
    Returns: radians in [-pi, pi], [B, H, T, R], dtype and device of `step`.
    """
    turns = running_sum(_exact(0.5 * step[..., None] * spin[:, None]), 2)
    if start is not None:
        turns = turns + _exact(start)[:, :, None] / TURN
    return (TURN * (turns - torch.round(turns))).to(step.device, step.dtype)


def rotors(angle: Tensor) -> Tensor:
    """exp(i angle): complex, the shape of `angle`."""
    return torch.complex(torch.cos(angle), torch.sin(angle))


def rotate_pairs(x: Tensor, rotor: Tensor) -> Tensor:
    """Rotate the first R pairs (2i, 2i+1) of the last axis and leave the rest. x [..., N], rotor [..., R]."""
    width = 2 * rotor.shape[-1]
    pairs = torch.complex(x[..., 0:width:2], x[..., 1:width:2])
    turned = torch.view_as_real(pairs * rotor).flatten(-2)
    return turned if width == x.shape[-1] else torch.cat([turned, x[..., width:]], dim=-1)
