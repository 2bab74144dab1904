"""The nearest half-orthogonal matrix, roughly, by products alone: what Muon makes of a gradient.

A matrix G = U S V^T becomes U S' V^T with every singular value in S' near 1. Newton-Schulz iteration with the quintic
of Jordan and others (2024, "Muon: an optimizer for hidden layers in neural networks"), from X = G / |G|_F:

    A = X X^T,   X <- a X + (b A + c A^2) X      (a, b, c) = (3.4445, -4.7750, 2.0315)

The coefficients favour speed: they push small values up as fast as they can and do not converge; after five steps the
singular values of a matrix that is not nearly singular lie between about 0.7 and 1.2.

Every factor is a polynomial in A. So where the matrix is long, the iteration can run on the small square alone:
with P = a I + b A + c A^2 a step is Q <- P Q, A <- P A P, and the result is Q X. That form takes the large products
twice instead of ten times. It is as exact in float32, but not in bfloat16, where rounding A loses the small values.
"""

from __future__ import annotations

import torch
from torch import Tensor

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
EPSILON = 1e-7


def orthogonalize(matrices: Tensor, steps: int = 5, dtype: torch.dtype = torch.float32) -> Tensor:
    """Each matrix of a stack [..., R, C] with its singular values near 1; a zero matrix stays zero.

    Does not depend on the scale of a matrix, except that one with a norm below 1e-7 becomes less than orthogonal.
    Finite for every finite input.

    Args:
        steps: of the iteration.
        dtype: of the products; float64 matrices are always computed in float64. Sums of squares and scaling are in
            float32 or better.
    Returns: a new tensor [..., R, C], of `dtype`.
    """
    wide = matrices.to(torch.promote_types(matrices.dtype, torch.float32))
    dtype = torch.float64 if wide.dtype == torch.float64 else dtype
    rows, columns = matrices.shape[-2:]
    if rows > columns:
        wide = wide.mT
    unit = _unit(wide).to(dtype).reshape(-1, min(rows, columns), max(rows, columns))
    result = _on_the_square(unit, steps) if _square_pays(unit, steps) else _direct(unit, steps)
    result = result.reshape(wide.shape)
    return result.mT if rows > columns else result


def _unit(matrices: Tensor) -> Tensor:
    """Divided by their Frobenius norm, without overflow on the way."""
    tiny = torch.finfo(matrices.dtype).tiny
    largest = matrices.abs().amax(dim=(-2, -1), keepdim=True).clamp_min(tiny)
    scaled = matrices / largest
    norm = torch.linalg.vector_norm(scaled, dim=(-2, -1), keepdim=True)
    return scaled / torch.maximum(norm, EPSILON / largest)


def _square_pays(unit: Tensor, steps: int) -> bool:
    """Whether the form on the square multiplies less, in a dtype that bears it."""
    rows, columns = unit.shape[-2:]
    long, square = rows * rows * columns, rows**3
    fewer = 2 * long + (4 * steps - 3) * square < steps * (2 * long + square)
    return fewer and unit.dtype in (torch.float32, torch.float64)


def _direct(unit: Tensor, steps: int) -> Tensor:
    a, b, c = COEFFICIENTS
    for _ in range(steps):
        gram = unit @ unit.mT
        factor = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        unit = torch.baddbmm(unit, factor, unit, beta=a)
    return unit


def _on_the_square(unit: Tensor, steps: int) -> Tensor:
    a, b, c = COEFFICIENTS
    gram = unit @ unit.mT
    product: Tensor | None = None
    for step in range(steps):
        factor = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        factor.diagonal(dim1=-2, dim2=-1).add_(a)
        product = factor if product is None else factor @ product
        if step < steps - 1:
            gram = factor @ gram @ factor
    return unit if product is None else product @ unit
