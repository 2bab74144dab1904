"""What steps of decay leave of a state, as exactly as the state's type can hold it.

A decay d = exp(log d) near 1 must not be rounded before it is raised to a power: next to 1 float32 has steps of 6e-8,
which is 6 % of log d = -1e-6, and every step after it repeats the error. So the exponent of all steps is formed first,
in float64, and its exponential is rounded once. And a state that loses little is reduced by what it loses,
S + S expm1(log d), for the same reason: S d would begin with the rounding of d.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def powers(log_decay: Tensor, steps: Tensor, dtype: torch.dtype, device: torch.device) -> Tensor:
    """exp(log_decay steps) of dtype on a device; the product, in float64, where `log_decay` is.

    Args:
        log_decay: float64, at most 0, broadcastable with `steps` (whole numbers on the same device).
    """
    return torch.exp(log_decay * steps).to(device, dtype)


def decayed(state: Tensor, exponent: Tensor, out: Tensor | None = None) -> Tensor:
    """state exp(exponent), in the state's type and on its device; gradients reach both.

    Args:
        exponent: at most 0, of the state's type or wider, broadcastable to the state; on its device or on the CPU.
        out: where to write it; the state itself is allowed.
    """
    slow = exponent > -math.log(2)
    loss = torch.where(slow, torch.expm1(exponent), 0).to(state.device, state.dtype)
    if slow.device.type == "cpu" and bool(slow.all()):
        return torch.addcmul(state, state, loss, out=out)
    # what decays fast is multiplied: S - S (1 - d) would leave the rounding of S
    kept = torch.where(slow, 0, exponent).exp().to(state.device, state.dtype)
    return torch.addcmul(state * kept, state, loss, out=out)
