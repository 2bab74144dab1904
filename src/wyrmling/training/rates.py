"""About how long a run takes: coarse, and the same every time, for what is decided by it."""

from __future__ import annotations

import torch

from ..memory.choose import chunked_cost, dense_cost
from ..model.geometry import Geometry

# Operations per second and thread, in products of a middling size: what a current processor does, whichever it is.
# Decisions are coarse, and a measurement would make them differ between two runs of one command.
PER_THREAD = {torch.float64: 30e9, torch.float32: 60e9, torch.bfloat16: 240e9}
# A training step does its forward products once and twice as many again backward.
PASSES = 3
# What a step takes, over what its products alone would take at the measured rate.
STEP_OVER_PRODUCTS = 2.0


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


def run_seconds(tokens: int, operations: float, dtype: torch.dtype, threads: int) -> float:
    """About how long a run takes on a CPU, in seconds; a function of its arguments alone.

    Args:
        tokens: targets of the whole run.
        operations: of the forward pass per token.
        dtype: of the products.
    """
    return STEP_OVER_PRODUCTS * PASSES * tokens * operations / (PER_THREAD[dtype] * threads)
