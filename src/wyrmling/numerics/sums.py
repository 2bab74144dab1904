"""Sums over time: running ones, on every device, and those of masked products, which later tokens must not reach."""

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


def for_masked_product(x: Tensor, dim: int, *, own: bool) -> tuple[Tensor, Tensor | None]:
    """The tokens of x along `dim` as a product with masked scores takes them, and what to add to the product.

    Such a product multiplies later tokens by 0, which makes NaN of what is not finite. So that is taken as 0, and each
    token is given what it has seen of it, channel by channel: NaN, or 0.

    Args:
        own: whether a token sees itself.
    Returns: x without what is not finite; 0 or NaN of the shape of x, or None where all is finite, which is only found
        out where asking waits for nothing (on a CPU).
    """
    if x.device.type == "cpu" and bool(x.sum().isfinite()):
        return x, None
    seen = running_sum(x * 0, dim)
    if not own:
        seen = torch.cat([torch.zeros_like(x.narrow(dim, 0, 1)), seen.narrow(dim, 0, x.shape[dim] - 1)], dim)
    return torch.where(x.isfinite(), x, 0), seen
