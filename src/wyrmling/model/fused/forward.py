"""The forward pass of the fused layer: chunk by chunk, head by head, in buffers that stay in the cache."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from .block import lower_products, weigh
from .call import LayerCall, Tile, add_state, product


@dataclass
class Kept:
    """What the backward pass finds again.

    Attributes:
        states: per row group, the float32 states [H, R, K, D] before certain chunks, by the chunk's number: the last
            one (to be rolled back), or every k-th.
        x, y: per tile, the firing neurons and gates [H, R, C, N], where neurons are kept.
        scores: per tile and head, blocks of rows.
        reads: per tile, [H, R, C, D] before the normalisation.
    """

    states: list[dict[int, Tensor]] = field(default_factory=list)
    x: list[Tensor] = field(default_factory=list)
    y: list[Tensor] = field(default_factory=list)
    scores: list[list[list[Tensor]]] = field(default_factory=list)
    reads: list[Tensor] = field(default_factory=list)


def run_forward(
    call: LayerCall, hidden: Tensor, rho: Tensor | None, kept: Kept | None
) -> tuple[Tensor, Tensor | None]:
    """What the layer adds before the outer normalisations, [B, T, D] in float32, and the final state [B, H, K, D].

    hidden [B, T, D]; rho [B, H, K, D] or None (empty). The scale of dropout is not applied.
    """
    batch, length, width = hidden.shape
    delta = torch.zeros_like(hidden, dtype=call.shared.sums)
    final = delta.new_empty(batch, call.shared.heads, call.keys, width) if call.carry else None
    chunks = -(-length // call.plan.chunk)
    for rows in call.row_groups(batch):
        state = call.state_in(rho, rows)
        states: dict[int, Tensor] = {}
        for tile in call.tiles(hidden, rows):
            if kept is not None and _keeps_state(call, tile.index, chunks):
                assert state is not None
                states[tile.index] = state.clone()
            last = tile.index + 1 == chunks
            fresh = state is None
            if state is None and (not last or call.carry):
                state = call.empty_state(tile.values.shape[0])
            _tile(call, tile, state, delta[rows, tile.tokens], kept, fresh=fresh, write=not last or call.carry)
        if final is not None:
            assert state is not None
            call.state_out(state, final, rows)
        if kept is not None:
            kept.states.append(states)
    return delta, final


def _keeps_state(call: LayerCall, index: int, chunks: int) -> bool:
    """Whether the backward pass wants the state before chunk `index`; that before the first one is an input."""
    if index == 0:
        return False
    every = call.plan.keep_every
    return index % every == 0 if every else index + 1 == chunks


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
    """One tile, all heads: adds to delta [R, C, D], and to the state [H, R, K, D] (`fresh`: it is still zero)."""
    m, rows, length = call.matrices, *tile.values.shape[:2]
    keep = kept is not None and call.keep
    if keep:
        assert kept is not None
        shape = (call.shared.heads, rows, length)
        kept.x.append(tile.values.new_empty(*shape, call.neurons))
        kept.y.append(tile.values.new_empty(*shape, call.neurons))
        kept.reads.append(delta.new_empty(*shape, call.shared.width))
        kept.scores.append([])
    q_buffer, gated = call.buffer("q", tile, call.keys), call.buffer("gated", tile)
    for head in range(call.shared.heads):
        x = kept.x[-1][head] if keep and kept is not None else call.buffer("x", tile)
        y = kept.y[-1][head] if keep and kept is not None else call.buffer("y", tile)
        product(tile.values, m.encoder[head], x)
        q = call.encoding.fire(x, call.x_threshold, tile.phases, q_buffer)
        scores = lower_products(q, q, tile.decay(head))
        read = read_past(call, tile, head, q, scores, None if fresh or state is None else state[head])
        if write and state is not None:
            write_past(tile, head, q, state[head])
        if keep and kept is not None:
            kept.reads[-1][head] = read
            kept.scores[-1].append(scores)
        normed = call.norm(read).to(call.shared.compute)
        product(normed, m.encoder_v[head], y)
        call.kernels.gate(y, x, tile.head_mask(head), call.y_threshold, gated)
        if call.observe:
            _observe(call, head, x, y, gated)
        delta += product(gated, m.decoder[head], call.buffer("stream", tile, call.shared.width))


def read_past(
    call: LayerCall, tile: Tile, head: int, q: Tensor, scores: list[Tensor], state: Tensor | None
) -> Tensor:
    """What the past says to the neurons of one head: [R, C, D] in float32."""
    within = call.buffer("stream", tile, call.shared.width)
    weigh(scores, tile.values, within)
    read = within.to(call.shared.sums, copy=True)
    if state is not None:
        before = torch.bmm(q, state.to(q.dtype))
        decay = tile.decay(head)
        read += before if decay is None else before * decay.since
    return read


def write_past(tile: Tile, head: int, q: Tensor, state: Tensor) -> None:
    """Take the tile's keys and values into the state [R, K, D] of one head."""
    decay = tile.decay(head)
    if decay is not None:
        state *= decay.whole
    # the factor of decay goes to the values, which are narrower than the keys
    add_state(state, q, tile.values if decay is None else tile.values * decay.until)


def _observe(call: LayerCall, head: int, x: Tensor, y: Tensor, gated: Tensor) -> None:
    """Add to the sums of what fires; activity is that before dropout."""
    assert call.sums is not None
    activity = gated if call.dropout is None or not call.dropout.threshold else x * y
    for total, what in zip(call.sums, (x > 0, y > 0, activity), strict=True):
        total[head] += what.sum((0, 1), dtype=torch.float32)
