"""Running sums that run everywhere, deterministic algorithms on CUDA included."""

from __future__ import annotations

import torch
from torch import Tensor


def running_sum(x: Tensor, dim: int = -1, *, dtype: torch.dtype | None = None) -> Tensor:
    """sum_{s<=t} x_s along `dim`, in `dtype` (that of x).

    `torch.cumsum`, but where that refuses: on CUDA under `torch.use_deterministic_algorithms`.
    """
    if x.is_cuda and torch.are_deterministic_algorithms_enabled():
        return by_doubling(x.to(dtype or x.dtype), dim)
    return x.cumsum(dim, dtype=dtype)


def by_doubling(x: Tensor, dim: int) -> Tensor:
    """The same in log2 of the length additions of whole tensors (Hillis and Steele 1986)."""
    length, span = x.shape[dim], 1
    while span < length:
        later = x.narrow(dim, span, length - span) + x.narrow(dim, 0, length - span)
        x = torch.cat([x.narrow(dim, 0, span), later], dim)
        span *= 2
    return x
