"""The forward pass of the fused layer: chunk by chunk, some heads at a time, in buffers that stay in the cache."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from ...numerics.decays import decayed
from ...numerics.sums import for_masked_product
from .block import lower_products, products, weigh
from .call import LayerCall, Tile, add_state, product


@dataclass
class Kept:
    """What the backward pass finds again.

    Attributes:
        states: per row group, the states [H, R, K, D] before certain chunks, by the chunk's number: the last one (to
            be rolled back), or every k-th.
        x, y: per tile, the firing neurons and gates [G, R, C, N], where neurons are kept.
        scores: per tile, blocks of rows.
        reads: per tile, [G, R, C, D] before the normalisation.
    """

    states: list[dict[int, Tensor]] = field(default_factory=list)
    x: list[Tensor] = field(default_factory=list)
    y: list[Tensor] = field(default_factory=list)
    scores: list[list[Tensor]] = field(default_factory=list)
    reads: list[Tensor] = field(default_factory=list)


def run_forward(
    call: LayerCall, hidden: Tensor, rho: Tensor | None, kept: Kept | None
) -> tuple[Tensor, Tensor | None]:
    """What the layer adds before the outer normalisations, [B, T, D] as sums, and the final state [B, H, K, D].

    hidden [B, T, D]; rho [B, H, K, D] or None (empty). The scale of dropout is not applied.
    """
    batch, length, width = hidden.shape
    delta = torch.zeros_like(hidden, dtype=call.shared.sums)
    final = delta.new_empty(batch, call.shared.heads, call.keys, width) if call.carry else None
    chunks = call.chunks(length)
    for rows in call.row_groups(batch):
        state = call.state_in(rho, rows)
        states: dict[int, Tensor] = {}
        for chunk in range(chunks):
            if kept is not None and _keeps_state(call, chunk, chunks):
                assert state is not None
                states[chunk] = state.clone()
            fresh, write = state is None, chunk + 1 < chunks or call.carry
            if state is None and write:
                state = call.empty_state(rows.stop - rows.start)
            for tile in call.tiles(hidden, rows, chunk):
                part = None if state is None else state[tile.heads].flatten(0, 1)
                _tile(call, tile, part, delta[rows, tile.tokens], kept, fresh=fresh, write=write)
        if final is not None:
            assert state is not None
            call.state_out(state, final, rows)
        if kept is not None:
            kept.states.append(states)
    return delta, final


def _keeps_state(call: LayerCall, chunk: int, chunks: int) -> bool:
    """Whether the backward pass wants the state before this chunk; that before the first one is an input."""
    if chunk == 0:
        return False
    every = call.plan.keep_every
    return chunk % every == 0 if every else chunk + 1 == chunks


def _tile(
    call: LayerCall,
    tile: Tile,
    state: Tensor | None,
    delta: Tensor,
    kept: Kept | None,
    *,
    fresh: bool,
    write: bool,
) -> None:
    """Adds to delta [R, C, D], and to the state [G R, K, D] (`fresh`: it is still zero)."""
    m, heads = call.matrices, tile.heads
    keeper = kept if call.keep else None  # of neurons
    gated = call.buffer("gated", tile)
    x, y = (call.buffer(name, tile) if keeper is None else torch.empty_like(gated) for name in ("x", "y"))
    product(tile.values, m.encoder[heads], x)
    q = call.encoding.fire(x, call.x_threshold, tile.phases, call.buffer("q", tile, call.keys))
    flat = q.flatten(0, 1)
    scores = lower_products(flat, flat, tile.decays)
    read = read_past(call, tile, flat, scores, None if fresh else state)
    if write and state is not None:
        write_past(tile, flat, state)
    product(call.norm(read).to(call.shared.compute), m.encoder_v[heads], y)
    call.kernels.gate(y, x, tile.mask, call.y_threshold, gated)
    if call.sums is not None:
        _observe(call, tile, x, y, gated)
    out = product(gated, m.decoder[heads], call.buffer("stream", tile, call.shared.width))
    delta += out[0] if len(out) == 1 else out.sum(0, dtype=delta.dtype)
    if keeper is not None:
        keeper.x.append(x)
        keeper.y.append(y)
        keeper.scores.append(scores)
        keeper.reads.append(read)


def read_past(call: LayerCall, tile: Tile, q: Tensor, scores: list[Tensor], state: Tensor | None) -> Tensor:
    """What the past says to the neurons, [G, R, C, D] as sums. q [G R, C, K], state [G R, K, D]."""
    finite, seen = for_masked_product(tile.values, 1, own=False)
    heads = len(tile.by_head) // len(finite)
    by_head = tile.by_head if seen is None else finite.repeat(heads, 1, 1)
    read = weigh(scores, by_head).to(call.shared.sums)
    if seen is not None:
        read += seen.repeat(heads, 1, 1)
    if state is not None:
        before = products(q, state.to(q.dtype))
        read = read + (before if tile.decays is None else before * tile.decays.since)
    return read.unflatten(0, (-1, len(tile.values)))


def write_past(tile: Tile, q: Tensor, state: Tensor) -> None:
    """Take the tile's keys [G R, C, K] and values into the state [G R, K, D]."""
    decays = tile.decays
    if decays is not None:
        decayed(state, decays.whole, out=state)
    # the factor of decay goes to the values, which are narrower than the keys
    add_state(state, q, tile.by_head if decays is None else tile.by_head * decays.until)


def _observe(call: LayerCall, tile: Tile, x: Tensor, y: Tensor, gated: Tensor) -> None:
    """Add to the sums of what fires; activity is that before dropout."""
    assert call.sums is not None
    activity = gated if tile.mask is None else x * y
    for total, what in zip(call.sums, (x > 0, y > 0, activity), strict=True):
        total[tile.heads] += what.sum((1, 2), dtype=torch.float32)
