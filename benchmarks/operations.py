"""What a training step computes, in multiply-adds, and how fast this machine multiplies matrices.

Only the products are counted, once each: what the backward pass computes again, and everything elementwise, is time
without operations. So operations / time, as a share of the measured rate of products, says how much of a step is not
products.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from wyrmling.memory.choose import BLOCK_ROWS

from .harness import Timing
from .sizes import VOCABULARY, Size

# rows, inner, columns: one square, and those of BDH
SHAPES = [(2048, 2048, 2048), (1024, 256, 8192), (1024, 8192, 256), (512, 8192, 512)]


def operations(
    *,
    layers: int,
    width: int,
    heads: int,
    neurons: int,
    vocabulary: int,
    rows: int,
    length: int,
    tile: int,
) -> dict[str, int]:
    """Multiply-adds of the products of one training step, forward and backward, by what they are for.

    A tile of C tokens takes its scores by blocks of 128 rows up to the diagonal; tiles after the first read the
    state, tiles before the last add to it. The backward pass of q q^T is one full product, (G + G^T) q; every other
    product has two of its own size.

    Args:
        neurons: per head.
        tile: tokens that attend to each other directly; at least `length` where no state is read.
    """
    tiles = [min(tile, length - begin) for begin in range(0, length, tile)]
    triangles = sum(_triangle(tokens) for tokens in tiles)
    squares = sum(tokens * tokens for tokens in tiles)
    all_neurons = heads * neurons
    matrix = 3 * layers * rows * length * width * all_neurons
    carried = (length - tiles[0]) + (length - tiles[-1])
    return {
        "encoder": matrix,
        "encoder_v": matrix,
        "decoder": matrix,
        "scores": layers * rows * (triangles + squares) * all_neurons,
        "reads": 3 * layers * rows * triangles * heads * width,
        "state": 3 * layers * rows * carried * all_neurons * width,
        "head": 3 * rows * length * width * vocabulary,
    }


def _triangle(tokens: int) -> int:
    """Entries of a lower triangle that is cut into blocks of 128 rows, the diagonal's squares whole."""
    ends = [min(begin + BLOCK_ROWS, tokens) for begin in range(0, tokens, BLOCK_ROWS)]
    return sum((end - begin) * end for begin, end in zip([0, *ends], ends, strict=False))


def step_operations(size: Size, tile: int) -> int:
    """Floating-point operations (two per multiply-add) of a training step of this size."""
    parts = operations(
        layers=size.n_layer,
        width=size.n_embd,
        heads=size.n_head,
        neurons=size.neurons,
        vocabulary=VOCABULARY,
        rows=size.rows,
        length=size.length,
        tile=tile,
    )
    return 2 * sum(parts.values())


def products(dtype: torch.dtype) -> dict[str, Callable[[], object]]:
    """Matrix products to be timed, by name; `rate` reads what came of them."""

    def product(rows: int, inner: int, columns: int) -> Callable[[], object]:
        left, right = torch.randn(rows, inner).to(dtype), torch.randn(inner, columns).to(dtype)
        result = torch.empty(rows, columns, dtype=dtype)
        return lambda: torch.mm(left, right, out=result)

    return {_name(dtype, shape): product(*shape) for shape in SHAPES}


def rate(dtype: torch.dtype, times: dict[str, Timing]) -> float:
    """Operations per second of the fastest of `products`, by medians."""
    return max(2 * shape[0] * shape[1] * shape[2] / times[_name(dtype, shape)].median for shape in SHAPES)


def _name(dtype: torch.dtype, shape: tuple[int, int, int]) -> str:
    return f"product {dtype} {'x'.join(map(str, shape))}"
