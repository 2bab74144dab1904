"""How a fused call cuts its work: the form, the chunk, rows and heads per tile, and which states are kept.

Pure functions of sizes. Costs are counted in multiply-adds; a byte moved between main memory and the processor counts
as a few of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from ...memory.choose import dense_cost

CHUNKS = (128, 256, 512)
# Numbers per tile of neurons: the few buffers that a tile needs stay in a third-level cache.
TILE_NUMBERS = 1 << 22
# Rolling a state back by subtraction is exact enough for this many chunks, and impossible where it decays.
ROLL_BACK_CHUNKS = 64
# What starting the operations of one tile costs, in bytes moved.
_TILE_OVERHEAD = 20e6
# Bytes per number of the state and chunk: read and written as float32 sums, read and written in the products' type.
_STATE_TRAFFIC = 14


@dataclass(frozen=True)
class FusedPlan:
    """The cuts of one call.

    Attributes:
        chunk: tokens per chunk; all of them in the dense form.
        rows, heads: batch rows and heads per tile.
        keep_every: the backward pass finds the states between chunks by running forward from every k-th one, which
            is kept; 0: by rolling the last one back.
        reason: why this form.
    """

    form: Literal["dense", "chunked"]
    chunk: int
    rows: int
    heads: int
    keep_every: int
    reason: str


ASKED = "asked for by model.sequence_kernel.executor"


def refusal(executor: str, device: str) -> str | None:
    """Why the composed layer runs where this executor is asked for on this type of device; None where it does not."""
    if executor in ("composed", "reference", "naive"):
        return ASKED
    return None if device == "cpu" else f"the fused layer is made for the CPU, not for {device}"


def multiply_adds_per_byte(element_size: int) -> float:
    """What moving a byte costs, in multiply-adds: bfloat16 products are several times faster than the memory."""
    return 8.0 if element_size == 2 else 2.0


def chunk_cost(chunk: int, keys: int, width: int, element_size: int, streams: int) -> float:
    """Multiply-adds per token and head of chunks with carried state, traffic and small change included.

    Args:
        streams: rows x heads of the call, which tiles take several of at a time.
    """
    in_tile = min(chunk * streams, max(chunk, TILE_NUMBERS // keys))
    moved = keys * width * _STATE_TRAFFIC / chunk + _TILE_OVERHEAD / in_tile
    return dense_cost(chunk, keys, width) + 2 * keys * width + moved * multiply_adds_per_byte(element_size)


def plan(
    rows: int,
    length: int,
    keys: int,
    width: int,
    *,
    heads: int,
    element_size: int,
    decays: bool,
    forced: str = "auto",
    chunk: int | None = None,
    keep_every: int | None = None,
) -> FusedPlan:
    """Cut a call of `rows` x `length` tokens with keys of width K and values of width D.

    Args:
        forced: "dense" or "chunked" where the configuration asks for one of them.
        chunk: tokens per chunk where somebody asks for a number.
        keep_every: the distance of kept states where somebody asks for it; 0 is no answer where the state decays.
    """

    def cost(size: int) -> float:
        return chunk_cost(size, keys, width, element_size, rows * heads)

    chosen = chunk or min(CHUNKS, key=cost)
    dense, chunked = dense_cost(length, keys, width), cost(chosen)
    counts = f"{dense / 1e6:.2f} M multiply-adds per token and head dense, {chunked / 1e6:.2f} M in chunks of {chosen}"
    if forced in ("dense", "chunked"):
        form, counts = forced, ASKED
    elif length <= chosen:
        form, counts = "dense", f"{length} tokens fit one chunk of {chosen}"
    else:
        form = "dense" if dense <= chunked else "chunked"
    if form == "dense":
        chosen = length
    chunks = -(-length // chosen)
    if keep_every is None or (decays and not keep_every):
        keep_every = math.isqrt(chunks - 1) + 1 if decays or chunks > ROLL_BACK_CHUNKS else 0
    size = max(1, min(chosen, length) * keys)
    tile_rows = max(1, min(rows, TILE_NUMBERS // size))
    tile_heads = max(1, min(heads, TILE_NUMBERS // (size * tile_rows)))
    return FusedPlan(
        "dense" if form == "dense" else "chunked", chosen, tile_rows, tile_heads, keep_every, counts
    )
