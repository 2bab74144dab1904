"""How fast this machine multiplies matrices, measured between other things, and what a step of a size computes."""

from __future__ import annotations

import torch

from wyrmling.training.profiling.operations import operations
from wyrmling.watch.matrix_rate import SHAPES, operations_of, product_name, products

from .harness import Timing
from .sizes import VOCABULARY, Size

__all__ = ["SHAPES", "operations", "products", "rate", "step_operations"]


def step_operations(size: Size, tile: int) -> int:
    """Floating-point operations (two per multiply-add) of a training step of this size."""
    parts = operations(
        neurons=[size.neurons] * size.n_layer,
        width=size.n_embd,
        heads=size.n_head,
        vocabulary=VOCABULARY,
        rows=size.rows,
        length=size.length,
        tile=tile,
    )
    return 2 * sum(parts.values())


def rate(dtype: torch.dtype, times: dict[str, Timing]) -> float:
    """Operations per second of the fastest of `products`, by medians."""
    return max(operations_of(shape) / times[product_name(dtype, shape)].median for shape in SHAPES)
