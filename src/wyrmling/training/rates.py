"""How fast this processor multiplies matrices, and what a run of a given length takes at that rate."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator, Sequence

import torch

from ..memory.choose import chunked_cost, dense_cost
from ..model.geometry import Geometry

PRODUCT_ROWS = 512
PRODUCT_COLUMNS = 4096
ROUNDS = 7
PATIENCE = 0.3
# A training step does its forward products once and twice as many again backward.
PASSES = 3
# What a step takes, over what its products alone would take at the measured rate.
STEP_OVER_PRODUCTS = 2.0


def product_rates(
    width: int,
    columns: int,
    dtypes: Sequence[torch.dtype],
    threads: int,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[torch.dtype, float]:
    """GFLOP/s of the product that a model does most, [512, width] x [width, columns], per dtype on the CPU.

    The median over rounds that take the dtypes in turn, so that other load falls on all alike. Takes some tens of
    milliseconds, and no more than three rounds where those take longer than `PATIENCE` seconds.

    Args:
        columns: neurons of all heads; at most 4096 of them are used.
        threads: how many the run will use.
    """
    columns = min(columns, PRODUCT_COLUMNS)
    generator = torch.Generator().manual_seed(0)
    left = torch.randn(PRODUCT_ROWS, width, generator=generator)
    right = torch.randn(width, columns, generator=generator)
    operands = {dtype: (left.to(dtype), right.to(dtype)) for dtype in dtypes}
    times: dict[torch.dtype, list[float]] = {dtype: [] for dtype in dtypes}
    with _threads(threads), torch.no_grad():
        results = {dtype: a @ b for dtype, (a, b) in operands.items()}  # the first product prepares kernels
        begun = clock()
        while len(times[dtypes[0]]) < (ROUNDS if clock() - begun < PATIENCE else 3):
            for dtype, (a, b) in operands.items():
                before = clock()
                torch.mm(a, b, out=results[dtype])
                times[dtype].append(max(clock() - before, 1e-9))
    operations = 2 * PRODUCT_ROWS * width * columns
    return {dtype: operations / statistics.median(taken) / 1e9 for dtype, taken in times.items()}


def operations_per_token(geometry: Geometry, length: int, tile: int) -> float:
    """Additions and multiplications of the forward pass per token of a window of `length` tokens.

    Three products with the weights per layer, the memory's form (see `memory.choose`), and the head.
    """
    g = geometry
    form = dense_cost if tile >= length else chunked_cost
    total = float(g.width * g.vocab_size)
    for neurons in g.layer_neurons:
        total += g.heads * (3 * g.width * neurons + form(min(tile, length), neurons * g.key_factor, g.width))
    return 2 * total


def run_seconds(tokens: int, operations: float, rate: float) -> float:
    """About how long a run takes, in seconds.

    Args:
        tokens: targets of the whole run.
        operations: of the forward pass per token.
        rate: GFLOP/s of products.
    """
    return STEP_OVER_PRODUCTS * PASSES * tokens * operations / (rate * 1e9)


@contextlib.contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
