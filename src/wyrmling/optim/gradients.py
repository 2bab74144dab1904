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
    """How gradients are clipped: at most one of the two is set."""

    max_norm: float | None
    max_value: float | None


def limits(config: Optimizer) -> Limits:
    """The `grad_clip_norm` or `grad_clip_value` of the configuration, as `scale_and_clip` takes them."""
    norm = config.grad_clip_norm
    return {"max_norm": None if norm == "off" else norm, "max_value": config.grad_clip_value}


@torch.no_grad()
def scale_and_clip(
    parameters: Iterable[torch.nn.Parameter],
    factor: float = 1.0,
    *,
    max_norm: float | None = None,
    max_value: float | None = None,
) -> float:
    """Multiply every gradient by `factor`, clip, both in place, and return the global norm between the two.

    With `max_norm`, all gradients are multiplied by max_norm / norm if the norm over all parameters
    together is larger. With `max_value`, each element is clamped to [-max_value, max_value]. With neither,
    the norm is only measured. The norm costs one transfer from the device. If it is not finite, the
    gradients are left as they are, so that `first_nonfinite` can name the culprit.

    Returns: the 2-norm over all gradients, tied weights counted once; 0.0 without gradients.

    Raises:
        ValueError: both limits are given, or one is not a positive number.
    """
    if max_norm is not None and max_value is not None:
        raise ValueError("gradients are clipped by norm or by value, not by both")
    for limit in (max_norm, max_value):
        if limit is not None and not limit > 0:
            raise ValueError(f"the limit of clipping must be positive, got {limit}")
    gradients = _gradients(parameters)
    norm = factor * global_norm(gradients)
    if not math.isfinite(norm):
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
    if not tensors:
        return 0.0
    norm = _norm(tensors, torch.float32)
    if not math.isfinite(norm) and all(bool(torch.isfinite(tensor).all()) for tensor in tensors):
        norm = _norm([tensor.cpu() for tensor in tensors], torch.float64)
    return norm


def first_nonfinite(named_parameters: Iterable[tuple[str, torch.nn.Parameter]]) -> str | None:
    """The name of the first parameter whose gradient holds NaN or infinity; None if there is none.

    Meant for the error message after `scale_and_clip` returned a norm that is not finite: it looks at the parameters
    one by one.
    """
    for name, parameter in named_parameters:
        if parameter.grad is not None and not bool(torch.isfinite(parameter.grad).all()):
            return name
    return None


def _norm(tensors: list[torch.Tensor], accumulator: torch.dtype) -> float:
    first = tensors[0].device
    norms = [
        torch.linalg.vector_norm(tensor, dtype=torch.promote_types(tensor.dtype, accumulator)).to(first)
        for tensor in tensors
    ]
    total = torch.linalg.vector_norm(torch.stack(norms))
    # A sharded gradient's norm is a distributed scalar whose parts are still to be summed over the processes.
    if hasattr(total, "full_tensor"):
        total = total.full_tensor()
    return float(total.item())


def _gradients(parameters: Iterable[torch.nn.Parameter]) -> list[torch.Tensor]:
    unique = {id(parameter): parameter for parameter in parameters}
    return [parameter.grad for parameter in unique.values() if parameter.grad is not None]
