"""The backward pass of the fused layer: the forward's tiles in reverse, neurons read again or computed again.

With g the gradient of the layer's sum [B, T, D], per head (see `memory/linear/dense.py` for the memory's part):

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

from .block import lower_products, symmetric_gram, weigh_transposed
from .call import LayerCall, Tile, add_outer, add_state, product
from .forward import Kept, read_past
from .states import StatesBefore


@dataclass
class Gradients:
    """Sums of one backward pass; None is zero."""

    hidden: Tensor  # [B, T, D]
    rho: Tensor | None  # [B, H, K, D]
    norm: list[Tensor | None]


@dataclass
class _Running:
    """What the tiles of one row group hand on, backwards."""

    before: StatesBefore
    gamma: Tensor | None  # dL/d(state after the tile), [H, R, K, D]; None is zero


def run_backward(
    call: LayerCall,
    hidden: Tensor,
    rho: Tensor | None,
    kept: Kept,
    g_delta: Tensor,
    g_final: Tensor | None,
    *,
    want_rho: bool,
) -> Gradients:
    """From the gradients of what `run_forward` returned to those of what it was given."""
    batch, length, _ = hidden.shape
    chunks = -(-length // call.plan.chunk)
    result = Gradients(
        torch.zeros_like(hidden, dtype=call.shared.sums),
        None if rho is None or not want_rho else torch.empty_like(rho, dtype=call.shared.sums),
        [None for _ in call.norm.parameters()],
    )
    for group, rows in enumerate(call.row_groups(batch)):
        before = StatesBefore(call, hidden, rows, call.state_in(rho, rows), kept.states[group], chunks)
        running = _Running(before, call.state_in(g_final, rows))
        for index in reversed(range(chunks)):
            tile = call.tile(hidden, rows, index)
            first = index == 0 and result.rho is None
            _tile(call, tile, running, kept, group * chunks + index, g_delta, result, hand_on=not first)
        if result.rho is not None:
            assert running.gamma is not None
            call.state_out(running.gamma, result.rho, rows)
    return result


def _tile(
    call: LayerCall,
    tile: Tile,
    running: _Running,
    kept: Kept,
    place: int,
    g_delta: Tensor,
    result: Gradients,
    *,
    hand_on: bool,
) -> None:
    running.before.enter(tile)
    if running.gamma is None and hand_on:
        gamma_is_zero = True
        gamma: Tensor | None = call.empty_state(tile.values.shape[0])
    else:
        gamma_is_zero, gamma = running.gamma is None, running.gamma
    g = g_delta[tile.rows, tile.tokens].to(call.shared.compute).contiguous()
    g_hidden = result.hidden[tile.rows, tile.tokens]
    for head in range(call.shared.heads):
        x, q = _neurons(call, tile, kept, place, head)
        state = running.before(tile, head, q)
        scores, read = _read(call, tile, kept, place, head, q, state)
        g_x, g_read = _gate(call, tile, kept, place, head, x, read, g, result)
        g_hidden += product(
            _memory(
                call, tile, head, x, q, scores, state, g_x, g_read,
                gamma=None if gamma is None else gamma[head],
                gamma_is_zero=gamma_is_zero, hand_on=hand_on, g_hidden=g_hidden,
            ),
            call.matrices.encoder[head].t(),
            call.buffer("stream", tile, call.shared.width),
        )  # fmt: skip
    running.gamma = gamma


def _neurons(call: LayerCall, tile: Tile, kept: Kept, place: int, head: int) -> tuple[Tensor, Tensor]:
    """x and its keys, from what was kept or from the stream."""
    q = call.buffer("q", tile, call.keys)
    if call.keep:
        x = kept.x[place][head]
        return x, call.encoding.keys(x, tile.phases, q)
    x = product(tile.values, call.matrices.encoder[head], call.buffer("x", tile))
    return x, call.encoding.fire(x, call.x_threshold, tile.phases, q)


def _read(
    call: LayerCall, tile: Tile, kept: Kept, place: int, head: int, q: Tensor, state: Tensor | None
) -> tuple[list[Tensor], Tensor]:
    """Scores and reads, from what was kept or as in the forward pass."""
    if call.keep:
        return kept.scores[place][head], kept.reads[place][head]
    scores = lower_products(q, q, tile.decay(head))
    return scores, read_past(call, tile, head, q, scores, state)


def _gate(
    call: LayerCall,
    tile: Tile,
    kept: Kept,
    place: int,
    head: int,
    x: Tensor,
    read: Tensor,
    g: Tensor,
    result: Gradients,
) -> tuple[Tensor, Tensor]:
    """Through decoder, gate, encoder_v and norm: (what x receives from the gate [R, C, N], dL/d(read) [R, C, D])."""
    m, totals = call.matrices, call.shared.gradients(call.neurons)
    with torch.enable_grad():
        leaf = read.detach().requires_grad_()
        normed = call.norm(leaf)
    narrow = normed.detach().to(call.shared.compute)
    gated, g_y = call.buffer("gated", tile), call.buffer("g_y", tile)
    if call.keep:
        y = kept.y[place][head]
    else:
        y = product(narrow, m.encoder_v[head], call.buffer("y", tile))
        call.kernels.fire(y, call.y_threshold)
    g_x = product(g, m.decoder[head].t(), call.buffer("g_x", tile))
    call.kernels.gate_backward(g_x, x, y, tile.head_mask(head), gated, g_y)
    add_outer(totals.decoder[head], gated, g)
    add_outer(totals.encoder_v[head], narrow, g_y)
    g_normed = product(g_y, m.encoder_v[head].t(), call.buffer("stream", tile, call.shared.width))
    parameters = list(call.norm.parameters())
    g_read, *g_norm = torch.autograd.grad(normed, [leaf, *parameters], g_normed.to(normed.dtype))
    for index, part in enumerate(g_norm):
        total = result.norm[index]
        result.norm[index] = part if total is None else total + part
    return g_x, g_read.to(call.shared.compute)


def _memory(
    call: LayerCall,
    tile: Tile,
    head: int,
    x: Tensor,
    q: Tensor,
    scores: list[Tensor],
    state: Tensor | None,
    g_x: Tensor,
    g_read: Tensor,
    *,
    gamma: Tensor | None,
    gamma_is_zero: bool,
    hand_on: bool,
    g_hidden: Tensor,
) -> Tensor:
    """Through the memory and the encoder's threshold: dL/d(pre-activation) [R, C, N].

    Adds the values' part to g_hidden [R, C, D], and makes gamma [R, K, D] that of the state before the tile.
    """
    decay, values = tile.decay(head), tile.values
    weigh_transposed(scores, g_read, g_hidden)
    gram = symmetric_gram(g_read, values, decay)
    g_q = call.buffer("gated", tile, call.keys)  # the gated neurons are done with
    for row in range(len(gram)):
        torch.mm(gram[row], q[row], out=g_q[row])
    g_since = g_read if decay is None else g_read * decay.since
    v_until = values if decay is None else values * decay.until
    # what reads the old state and what is read from the new one: both are products with K x D matrices, made as one
    sides, matrices = [], []
    if state is not None:
        sides.append(g_since)
        matrices.append(state)
    if gamma is not None and not gamma_is_zero:
        through = torch.bmm(q, gamma.to(q.dtype))
        g_hidden += through if decay is None else through * decay.until
        sides.append(v_until)
        matrices.append(gamma)
    if sides:
        both = torch.cat([matrix.to(q.dtype) for matrix in matrices], dim=-1)
        g_q += torch.bmm(torch.cat(sides, dim=-1), both.mT)
    if hand_on and gamma is not None:
        if decay is not None:
            gamma *= decay.whole
        add_state(gamma, q, g_since)
    call.encoding.backward(g_q, g_x, x, tile.phases)
    add_outer(call.shared.gradients(call.neurons).encoder[head], values, g_x)
    return g_x

