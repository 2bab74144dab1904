"""The data-dependent rotation of Mamba-3: angles that add up over a stream, and the rotation itself.

Each token turns the keys and queries of a head by pi s_t dt_t radians further, s_t in (-1, 1) for each of R pairs:

    theta_t = theta_{t-1} + pi s_t dt_t                      (mod 2 pi)

Only the angle modulo one turn matters, so it is counted in turns, where a whole turn can be dropped without rounding,
and summed in float64. In float32 a sum of 65,536 steps grows to thousands of turns and loses a tenth of a radian.
The state keeps the angle within half a turn, where float32 holds it to 1e-7 however long the stream. What is dropped
is constant almost everywhere, so gradients are those of the plain sum.

The gradient of an increment is the sum of those of all later angles, and nearly all of it cancels: two tokens that are
turned together do not notice. Summed over a long stream, float32 would leave the rounding of what cancels. So the sum
ends with a segment of the stream, and what lies behind it is found from the state on the border. Write S for the state
(with the last key), Gamma for its gradient, and tau(Gamma, S) for the derivative of <Gamma, S> by an angle that S is
turned by. Turning all tokens of a segment, and what comes out of it, is turning everything, which later reads do not
notice, and the state before it back:

    dL/dtheta_in = tau(Gamma_out, S_out) + dL/dtheta_out - tau(Gamma_in, S_in)

Tokens give nothing to theta_in: `leave` adds the first two terms, `enter` the third. From segment to segment the terms
of a border cancel exactly, in float64. An increment gets what the tokens of its segment say, and dL/dtheta_out.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ...numerics.sums import running_sum
from ..base import MemoryState

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
    Returns: radians in [-pi, pi], [B, H, T, R], in float64 (on a device that has it; else of the dtype of `step`).
    """
    turns = running_sum(_exact(0.5 * step[..., None] * spin[:, None]), 2)
    if start is not None:
        turns = turns + _exact(start)[:, :, None] / TURN
    angle = TURN * (turns - torch.round(turns))
    return angle if angle.device == step.device else angle.to(step.device, step.dtype)


def rotors(angle: Tensor) -> Tensor:
    """exp(i angle): complex, the shape of `angle`."""
    return torch.complex(torch.cos(angle), torch.sin(angle))


def rotate_pairs(x: Tensor, rotor: Tensor) -> Tensor:
    """Rotate the first R pairs (2i, 2i+1) of the last axis and leave the rest. x [..., N], rotor [..., R]."""
    width = 2 * rotor.shape[-1]
    pairs = torch.complex(x[..., 0:width:2], x[..., 1:width:2])
    turned = torch.view_as_real(pairs * rotor).flatten(-2)
    return turned if width == x.shape[-1] else torch.cat([turned, x[..., width:]], dim=-1)


class _Border(torch.autograd.Function):
    """x [B, H, P, N] as it is; `angle` [B, H, R] gets `sign` times tau of x. It takes no other part."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, angle: Tensor, sign: int) -> Tensor:
        ctx.save_for_backward(x)
        ctx.angle, ctx.sign = (angle.device, angle.dtype, angle.shape[-1]), sign
        return x.view_as(x)

    @staticmethod
    @once_differentiable  # x is saved as a constant: a second derivative must fail, not be wrong
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        device, dtype, angles = ctx.angle
        of_pairs = (t[..., : 2 * angles].unflatten(-1, (-1, 2)) for t in (gradient, *ctx.saved_tensors))
        g, x = (_exact(t) for t in of_pairs)  # [B, H, P, R, 2]
        turned = (g[..., 1] * x[..., 0] - g[..., 0] * x[..., 1]).sum(2)
        return gradient, (ctx.sign * turned).to(device, dtype), None


def enter(state: MemoryState) -> MemoryState:
    """The state before a segment: its angle in float64, and the gradients of that as the module's text has them.

    The tokens' own angles begin at the angle without its graph.
    """
    angle = state["angle"]
    angle = angle if angle.device.type == "mps" else angle.double()
    return {**state, "angle": angle, **_bordered(state, angle, -1)}


def leave(state: MemoryState, start: Tensor | None) -> MemoryState:
    """The state after a segment, to be handed on. `start`: the angle that `enter` gave; None is a constant 0."""
    if start is None:
        return state
    return {**state, "angle": state["angle"] + (start - start.detach()), **_bordered(state, start, 1)}


def _bordered(state: MemoryState, angle: Tensor, sign: int) -> MemoryState:
    key = _Border.apply(state["key"][:, :, None], angle, sign)[:, :, 0]
    return {"ssm": _Border.apply(state["ssm"], angle, sign), "key": key}
