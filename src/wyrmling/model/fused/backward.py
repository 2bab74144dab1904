"""The backward pass of the fused layer: the forward's tiles in reverse, neurons read again or computed again.

With g the gradient of the layer's sum [B, T, D], per tile (see `memory/linear/dense.py` for the memory's part):

    u = g Dec^T                        what the gated neurons receive
    dDec = (x y)^T g      g_y = u x [y > 0]      dE_v = norm(a)^T g_y
    g_a = through the norm of g_y E_v^T
    g_q = (G + G^T) q + g_a S^T + v Gamma^T      queries are keys: one symmetric product
    g_x = (rotation^T g_q + u y) [x > 0]         dE = v^T g_x
    g_h = g_x E^T + P^T g_a + q Gamma            the stream is read, and is what the memory stores
    Gamma <- Gamma + q^T g_a                     the gradient of the state before the chunk
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...numerics.decays import decayed
from .block import lower_products, products, symmetric_gram, weigh_transposed
from .call import LayerCall, Tile, add_outer, add_state, product
from .forward import Kept, read_past
from .shared import Matrices
from .states import StatesBefore


@dataclass
class Gradients:
    """Sums of one backward pass; None is zero."""

    hidden: Tensor  # [B, T, D]
    rho: Tensor | None  # [B, H, K, D]
    norm: list[Tensor | None]


@dataclass
class _Pass:
    """A backward pass, and where it stands."""

    call: LayerCall
    kept: Kept
    weights: Matrices | None  # where their gradients are summed; None where nobody wants them
    found: Gradients


def run_backward(
    call: LayerCall,
    hidden: Tensor,
    rho: Tensor | None,
    kept: Kept,
    g_delta: Tensor | None,
    g_final: Tensor | None,
    *,
    want_rho: bool,
) -> Gradients:
    """From the gradients of what `run_forward` returned to those of what it was given."""
    call.shared.check()
    batch, length, _ = hidden.shape
    chunks = call.chunks(length)
    groups = -(-call.shared.heads // call.plan.heads)
    found = Gradients(
        torch.zeros_like(hidden, dtype=call.shared.sums),
        None if rho is None or not want_rho else torch.empty_like(rho, dtype=call.shared.sums),
        [None for _ in call.norm.parameters()],
    )
    gated = g_delta is not None
    weights = None if call.shared.token is None else call.shared.gradients(call.neurons, gated=gated)
    if g_delta is None:
        g_delta = torch.zeros_like(hidden)
    run = _Pass(call, kept, weights, found)
    for group, rows in enumerate(call.row_groups(batch)):
        before = StatesBefore(call, hidden, rows, call.state_in(rho, rows), kept.states[group], chunks)
        gamma = call.state_in(g_final, rows)  # dL/d(state after the chunk)
        for chunk in reversed(range(chunks)):
            before.enter(chunk)
            hand_on, is_zero = chunk > 0 or found.rho is not None, gamma is None
            if gamma is None and hand_on:
                gamma = call.empty_state(rows.stop - rows.start)
            g = g_delta[rows, call.tokens(length, chunk)].to(call.shared.compute).contiguous()
            for number, tile in enumerate(call.tiles(hidden, rows, chunk)):
                part = None if gamma is None else gamma[tile.heads].flatten(0, 1)
                place = (group * chunks + chunk) * groups + number
                _tile(run, tile, place, before, g, part, gamma_is_zero=is_zero, hand_on=hand_on)
        if found.rho is not None:
            assert gamma is not None
            call.state_out(gamma, found.rho, rows)
    return found


def _tile(
    run: _Pass,
    tile: Tile,
    place: int,
    before: StatesBefore,
    g: Tensor,
    gamma: Tensor | None,
    *,
    gamma_is_zero: bool,
    hand_on: bool,
) -> None:
    """One tile: adds to the gradients of weights, stream and norm; gamma [G R, K, D] becomes that before the tile."""
    call, m = run.call, run.call.matrices
    x, q = _neurons(run, tile, place)
    state = before(tile, q)
    scores, read = _read(run, tile, place, q, state)
    g_x, g_read = _gate(run, tile, place, x, read, g)
    g_values = torch.zeros_like(g_read, dtype=call.shared.sums)
    weigh_transposed(scores, g_read, g_values)
    g_q = call.buffer("gated", tile, call.keys)  # the gated neurons are done with
    products(symmetric_gram(g_read, tile.by_head, tile.decays), q, out=g_q.flatten(0, 1))
    _through_state(tile, q, g_q.flatten(0, 1), g_read, g_values, state, None if gamma_is_zero else gamma)
    if hand_on and gamma is not None:
        _hand_on(tile, q, g_read, gamma)
    call.encoding.backward(g_q, g_x, x, tile.phases)
    if run.weights is not None:
        add_outer(run.weights.encoder[tile.heads], tile.values, g_x)
    g_stream = product(g_x, m.encoder[tile.heads].mT, call.buffer("stream", tile, call.shared.width))
    g_values += g_stream.flatten(0, 1)
    run.found.hidden[tile.rows, tile.tokens] += g_values.unflatten(0, (-1, len(tile.values))).sum(0)


def _neurons(run: _Pass, tile: Tile, place: int) -> tuple[Tensor, Tensor]:
    """x [G, R, C, N] and its keys [G R, C, K], from what was kept or from the stream."""
    call, q = run.call, run.call.buffer("q", tile, run.call.keys)
    if call.keep:
        x = run.kept.x[place]
        return x, call.encoding.keys(x, tile.phases, q).flatten(0, 1)
    x = product(tile.values, call.matrices.encoder[tile.heads], call.buffer("x", tile))
    return x, call.encoding.fire(x, call.x_threshold, tile.phases, q).flatten(0, 1)


def _read(run: _Pass, tile: Tile, place: int, q: Tensor, state: Tensor | None) -> tuple[list[Tensor], Tensor]:
    """Scores and reads, from what was kept or as in the forward pass."""
    if run.call.keep:
        return run.kept.scores[place], run.kept.reads[place]
    scores = lower_products(q, q, tile.decays)
    return scores, read_past(run.call, tile, q, scores, state)


def _gate(run: _Pass, tile: Tile, place: int, x: Tensor, read: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """Through decoder, gate, encoder_v and norm.

    Returns what x receives from the gate [G, R, C, N], and dL/d(read) [G R, C, D], both in the products' type.
    """
    call, m, heads = run.call, run.call.matrices, tile.heads
    with torch.enable_grad():
        leaf = read.detach().requires_grad_()
        normed = call.norm(leaf)
    narrow = normed.detach().to(call.shared.compute)
    gated, g_y = call.buffer("gated", tile), call.buffer("g_y", tile)
    if call.keep:
        y = run.kept.y[place]
    else:
        y = product(narrow, m.encoder_v[heads], call.buffer("y", tile))
        call.kernels.fire(y, call.y_threshold)
    g_x = product(g, m.decoder[heads].mT, call.buffer("g_x", tile))
    call.kernels.gate_backward(g_x, x, y, tile.mask, gated, g_y)
    if run.weights is not None:
        add_outer(run.weights.decoder[heads], gated, g)
        add_outer(run.weights.encoder_v[heads], narrow, g_y)
    g_normed = product(g_y, m.encoder_v[heads].mT, call.buffer("stream", tile, call.shared.width))
    parameters = list(call.norm.parameters())
    g_read, *g_norm = torch.autograd.grad(normed, [leaf, *parameters], g_normed.to(normed.dtype))
    for index, part in enumerate(g_norm):
        total = run.found.norm[index]
        run.found.norm[index] = part if total is None else total + part
    return g_x, g_read.to(call.shared.compute).flatten(0, 1)


def _through_state(
    tile: Tile,
    q: Tensor,
    g_q: Tensor,
    g_read: Tensor,
    g_values: Tensor,
    state: Tensor | None,
    gamma: Tensor | None,
) -> None:
    """Add to g_q and g_values what comes through the state before the tile and the one after it."""
    decays, sides, matrices = tile.decays, [], []
    if state is not None:
        sides.append(g_read if decays is None else g_read * decays.since)
        matrices.append(state)
    if gamma is not None:
        through = products(q, gamma.to(q.dtype))
        g_values += through if decays is None else through * decays.until
        sides.append(tile.by_head if decays is None else tile.by_head * decays.until)
        matrices.append(gamma)
    if sides:  # two products with K x D matrices, made as one
        both = torch.cat([matrix.to(q.dtype) for matrix in matrices], dim=-1)
        g_q += products(torch.cat(sides, dim=-1), both.mT)


def _hand_on(tile: Tile, q: Tensor, g_read: Tensor, gamma: Tensor) -> None:
    """From the gradient of the state after the tile to that of the state before it, in place."""
    decays = tile.decays
    if decays is not None:
        decayed(gamma, decays.whole, out=gamma)
    add_state(gamma, q, g_read if decays is None else g_read * decays.since)
