"""Gradients between the backward pass and the optimizer: scale, measure, clip.

The order is fixed (law 5): gradients are sums over tokens; they are divided once by the number of targets of the
whole optimizer step; what is measured and clipped is the quotient. Clipping sums, or gradients that still carry a
loss scale, would make the limit depend on the batch. Norms scale with their vectors, so the sums are measured, and
the division and the clipping are one multiplication.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, TypedDict

import torch

if TYPE_CHECKING:
    from ..config.schema.optimizer import Optimizer


class Limits(TypedDict):
    """How gradients are clipped: at most one of the three is set."""

    max_norm: float | None
    max_norm_per_tensor: float | None
    max_value: float | None


def limits(config: Optimizer) -> Limits:
    """The limit of the configuration, as `scale_and_clip` takes it."""
    norm = config.grad_clip_norm
    return {
        "max_norm": None if norm == "off" else norm,
        "max_norm_per_tensor": config.grad_clip_norm_per_tensor,
        "max_value": config.grad_clip_value,
    }


@torch.no_grad()
def scale_and_clip(
    parameters: Iterable[torch.nn.Parameter],
    factor: float = 1.0,
    *,
    max_norm: float | None = None,
    max_norm_per_tensor: float | None = None,
    max_value: float | None = None,
) -> float:
    """Multiply every gradient by `factor`, clip, both in place, and return the global norm between the two.

    With `max_norm`, all gradients are multiplied by max_norm / norm if the norm over all parameters
    together is larger. With `max_norm_per_tensor`, each gradient is so by its own norm, which stays on the
    device. With `max_value`, each element is clamped to [-max_value, max_value]. With none of them, the
    norm is only measured. The norm costs one transfer from the device. If it is not finite, the gradients
    are left as they are, so that `first_nonfinite` can name the culprit.

    Returns: the 2-norm over all gradients, tied weights counted once; 0.0 without gradients.

    Raises:
        ValueError: several limits are given, or one is not a positive number.
    """
    given = [limit for limit in (max_norm, max_norm_per_tensor, max_value) if limit is not None]
    if len(given) > 1:
        raise ValueError("gradients are clipped in one way, not in several")
    if any(not limit > 0 for limit in given):
        raise ValueError(f"the limit of clipping must be positive, got {given[0]}")
    gradients = _gradients(parameters)
    norms, total = _norms_and_total(gradients)
    norm = factor * total
    if not math.isfinite(norm):
        return norm
    if max_norm_per_tensor is not None:
        for gradient, own in zip(gradients, norms, strict=True):
            share = (max_norm_per_tensor / (factor * own)).clamp(max=1.0) * factor
            gradient.mul_(share.to(gradient.device))
        return norm
    if max_norm is not None and norm > max_norm:
        factor *= max_norm / norm
    for gradient in gradients:
        if factor != 1.0:
            gradient.mul_(factor)
        if max_value is not None:
            gradient.clamp_(-max_value, max_value)
    return norm


def global_norm(tensors: list[torch.Tensor]) -> float:
    """The 2-norm of all elements of all tensors together.

    Squares are summed in float32 (float64 for float64 tensors); if that overflows although every element is
    finite, the sum is repeated in float64. Elements that are not finite make the result so.
    """
    return _norms_and_total(tensors)[1]


def first_nonfinite(named_parameters: Iterable[tuple[str, torch.nn.Parameter]]) -> str | None:
    """The name of the first parameter whose gradient holds NaN or infinity; None if there is none.

    Meant for the error message after `scale_and_clip` returned a norm that is not finite: it looks at the parameters
    one by one.
    """
    for name, parameter in named_parameters:
        if parameter.grad is not None and not bool(torch.isfinite(parameter.grad).all()):
            return name
    return None


def _norms_and_total(tensors: list[torch.Tensor]) -> tuple[list[torch.Tensor], float]:
    """The norm of each tensor, on the device, and that of all together; see `global_norm`."""
    if not tensors:
        return [], 0.0
    norms = _norms(tensors, torch.float32)
    total = _whole(torch.linalg.vector_norm(torch.stack(norms))).item()
    if not math.isfinite(total) and all(bool(torch.isfinite(tensor).all()) for tensor in tensors):
        norms = _norms([tensor.cpu() for tensor in tensors], torch.float64)
        total = _whole(torch.linalg.vector_norm(torch.stack(norms))).item()
    return [_whole(norm) for norm in norms], float(total)


def _norms(tensors: list[torch.Tensor], accumulator: torch.dtype) -> list[torch.Tensor]:
    first = tensors[0].device
    return [
        torch.linalg.vector_norm(tensor, dtype=torch.promote_types(tensor.dtype, accumulator)).to(first)
        for tensor in tensors
    ]


def _whole(norm: torch.Tensor) -> torch.Tensor:
    """A sharded gradient's norm is a distributed scalar whose parts are still to be summed over the processes."""
    return norm.full_tensor() if hasattr(norm, "full_tensor") else norm


def _gradients(parameters: Iterable[torch.nn.Parameter]) -> list[torch.Tensor]:
    unique = {id(parameter): parameter for parameter in parameters}
    return [parameter.grad for parameter in unique.values() if parameter.grad is not None]
