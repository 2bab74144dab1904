"""Which form of a memory runs, by counting operations. Pure functions; the choice is printed with its reason.

Multiply-adds per token and head of linear attention, K the width of a key and D that of a value, T tokens, chunks
of C (forward; the backward pass costs twice as much in either form, so the comparison stands):

    dense    K (T + R) / 2 + D (T + R) / 2                scores and their product with the values, R = 128 rows a block
    chunked  K (C + R) / 2 + D (C + R) / 2 + 2 K D        the same inside a chunk, one read and one write of the state

The narrow terms matter little (K is much larger than D), so the switch lies near T = C + 4 D.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Form = Literal["dense", "chunked", "sequential"]
BLOCK_ROWS = 128
DEFAULT_CHUNK = 128


@dataclass(frozen=True)
class FormChoice:
    """A form, the number of tokens it takes at a time, and why."""

    form: Form
    tile: int
    reason: str


def dense_cost(length: int, key_width: int, value_width: int) -> float:
    """Multiply-adds per token and head of one block-triangular block of `length` tokens."""
    seen = (length + min(length, BLOCK_ROWS)) / 2
    return seen * (key_width + value_width)


def chunked_cost(chunk: int, key_width: int, value_width: int) -> float:
    """Multiply-adds per token and head of chunks with carried state."""
    return dense_cost(chunk, key_width, value_width) + 2 * key_width * value_width


def choose_form(
    length: int, key_width: int, value_width: int, *, chunk: int = DEFAULT_CHUNK, forced: str = "auto"
) -> FormChoice:
    """Dense for short sequences, chunks for long ones, unless `forced` is "dense" or "chunked"."""
    if forced == "dense":
        return FormChoice("dense", length, "asked for by model.sequence_kernel.executor")
    if forced == "chunked":
        return FormChoice("chunked", chunk, "asked for by model.sequence_kernel.executor")
    if length <= chunk:
        return FormChoice("dense", length, f"{length} tokens fit one chunk of {chunk}")
    dense, chunked = dense_cost(length, key_width, value_width), chunked_cost(chunk, key_width, value_width)
    counts = f"{dense / 1e6:.2f} M multiply-adds per token and head dense, {chunked / 1e6:.2f} M in chunks of {chunk}"
    if dense <= chunked:
        return FormChoice("dense", length, counts)
    return FormChoice("chunked", chunk, counts)


# Neurons that a tile of the composed layer holds: a few such tensors stay in a third-level cache.
TILE_NEURONS = 1 << 21
SMALLEST_TILE = 128


def choose_recurrent_form(length: int, neurons: int, executor: str) -> FormChoice:
    """The form of a memory with a state of constant size, and how many tokens the composed layer takes at a time.

    Args:
        neurons: of all rows and heads, per token.
        executor: "reference" is the loop over tokens.
    """
    tile = max(SMALLEST_TILE, TILE_NEURONS // max(1, neurons) // SMALLEST_TILE * SMALLEST_TILE)
    tile = min(length, tile)
    if executor == "reference":
        return FormChoice("sequential", tile, "asked for by model.sequence_kernel.executor")
    return FormChoice(
        "chunked", tile, f"{neurons:,} neurons a token: tiles of {tile} tokens, which hand the state on"
    )
