"""The decayed normalised recurrence by chunks. Work is linear in T, memory that of the stream and some states.

With D_t = sum_n q_t + eps, u_t = q_t / (z_t + eps) as queries and q_s as keys, the recurrence is attention with a decay
per neuron:

    D_t a_t = lam^t u_t . rho_0 + sum_{s<t} P_ts v_s        P_ts = sum_n lam^(t-1-s) u_t q_s
    rho_T = lam^T rho_0 + sum_s lam^(T-1-s) q_s v_s^T

Inside a chunk P and the sums z are made by halving (see `halving`); between chunks the state carries the rest. lam does
not depend on time: one table of its powers serves all chunks.

Backward, chunks last to first, with g_t = dL/da_t / D_t, Gamma and h the gradients of the chunk's final rho and z:

    dP_ts = g_t . v_s                                       dv_s = sum_h (P^T g)_s + lam^(T-1-s) q_s . Gamma
    du_t = (dP lam^(t-1-s) q)_t + lam^t rho_0 g_t           x_t = du_t / (z_t + eps)
    dq_s = (dP^T lam^(t-1-s) u)_s + lam^(T-1-s) Gamma v_s   dz_t = lam dz_{t+1} - x_t u_t,  dz_T = h
    dq_t += x_t + dz_{t+1} - g_t . a_t
    drho_0 = lam^T Gamma + sum_t lam^t u_t g_t^T

The gradient of log lam gathers every product above times its exponent, which is never negative, so nothing large
cancels. Products with a state, and those of larger halves, run in the neurons' type (bfloat16 under autocast), all
else in float32 or better.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .halving import padded
from .naive import EPS
from .workspace import Workspace

KEPT_STATES = 16  # with more chunks than that, states are kept now and then and computed again from there
SLAB = 1 << 19  # numbers of [heads, rows, tokens, neurons] taken at a time on a CPU: they stay in its cache


def cuts(length: int, chunk: int) -> list[slice]:
    """Chunks of `chunk` tokens, and what is left: whole where padding it to a power of two adds less than half."""
    ends = list(range(chunk, length + 1, chunk))
    end = ends[-1] if ends else 0
    while end < length:
        left = length - end
        size = padded(left)
        end += left if 2 * size < 3 * left else min(left, size // 2)
        ends.append(end)
    return [slice(begin, end) for begin, end in zip([0, *ends], ends, strict=False)]


class Cut:
    """How a call is cut.

    Attributes:
        tokens: the chunks.
        block: the size that the longest one is padded to.
        places: (heads, rows) that are taken at a time: so many that a chunk of them stays in the cache, and few heads
            rather than few rows, since the tables of powers are the same for all rows.
    """

    def __init__(self, shape: tuple[int, ...], chunk: int, device: torch.device) -> None:
        heads, rows, length, width = shape
        self.tokens = cuts(length, chunk)
        self.block = padded(min(chunk, length))
        at_once = SLAB // (width * self.block) if device.type == "cpu" else heads * rows
        step = min(heads, max(1, at_once // rows))
        some_rows = rows if step > 1 else min(rows, max(1, at_once))
        self.places = [
            (slice(head, head + step), slice(row, row + some_rows))
            for head in range(0, heads, step)
            for row in range(0, rows, some_rows)
        ]


class Chunks:
    """One pass over the chunks of some heads and rows: what their tokens are, and how they meet a state.

    Args:
        neurons: [H, B, T, N] of all heads and rows; their type is that of the large products.
        values: [B, T, D].
        log_decay: [H, N]; its type is that of sums and states.
        cut: the chunks.
        place: which heads and rows: these are H and B from here on.
        gradients: whether there are buffers for gradients.
    """

    def __init__(
        self,
        neurons: Tensor,
        values: Tensor,
        log_decay: Tensor,
        cut: Cut,
        place: tuple[slice, slice],
        workspace: Workspace,
        *,
        gradients: bool = False,
    ) -> None:
        heads, rows = place
        self.neurons, self.values, self.workspace = neurons[place], values[rows], workspace
        self.heads, self.rows, _, self.width = self.neurons.shape
        self.low, self.wide = neurons.dtype, log_decay.dtype
        self.powers, self.cuts = workspace.powers(log_decay[heads], cut.block), cut.tokens
        self._gradients = gradients
        self.state_shape = (self.heads, self.rows, self.width, values.shape[2])

    def locate(self, index: int) -> None:
        """Go to a chunk: its tokens, its values, its block, whose contents are whatever the last chunk left."""
        self.tokens = self.cuts[index]
        self.length = self.tokens.stop - self.tokens.start  # L
        shape = (self.heads, self.rows, padded(self.length), self.width)
        self.block = self.workspace.block(shape, self.powers, self.low, gradients=self._gradients)
        here = self.values[:, self.tokens].to(self.low)
        self.by_head = here.expand(self.heads, *here.shape).reshape(-1, *here.shape[1:])  # [H B, L, D]

    def open(self, index: int, sums: Tensor) -> None:
        """Go to a chunk and fill its block, `block.sums` with 1 / (z + eps). sums: z before the chunk, [H, B, N]."""
        self.locate(index)
        block, length = self.block, self.length
        block.keys[:, :, :length] = self.neurons[:, :, self.tokens]
        block.keys[:, :, length:] = 0
        if self._gradients:
            block.plain.copy_(block.keys)
        block.decayed_sums(sums)
        last = length - 1
        self.sums_after = torch.addcmul(block.keys[:, :, last], block.sums[:, :, last], self.powers.one)
        block.sums.add_(EPS).reciprocal_()
        torch.mul(block.keys, block.sums, out=block.queries)
        # 1 / D_t, [H, B, L, 1]
        self.inverse = (block.keys[:, :, :length].sum(-1, keepdim=True) + EPS).reciprocal_()

    def _front(self, name: str, x: Tensor) -> Tensor:
        """The first L tokens in the type of products, [H B, L, N]."""
        shape = (self.heads, self.rows, self.length, self.width)
        front = self.workspace.buffer(name, shape, self.low, x.device)
        return front.copy_(x[:, :, : self.length]).flatten(0, 1)

    def state_queries(self) -> Tensor:
        """lam^t u_t, after the pairs of the block: [H B, L, N]."""
        return self._front("low pair", self.block.queries)

    def state_keys(self, *, anew: bool = False) -> Tensor:
        """lam^(L-1-s) q_s: [H B, L, N]. `anew`: from the neurons, else after the pairs of the block."""
        length, keys = self.length, self.block.keys[:, :, : self.length]
        if anew or length < self.block.shape[2]:  # the block scales for the last token of a whole block
            keys.copy_(self.neurons[:, :, self.tokens]).mul_(self.powers.before(length))
        return self._front("low pair", self.block.keys)

    def lowered(self, state: Tensor) -> Tensor:
        """A state as products take it: [H B, N, D], new."""
        return state.to(self.low, copy=True).flatten(0, 1)

    def products_into(self, state: Tensor | None, left: Tensor, right: Tensor) -> Tensor:
        """lam^L state + left^T right, in the place of the state [H, B, N, D] (a new one for None)."""
        low = self.workspace.buffer("low state", self.state_shape, self.low, left.device)
        torch.bmm(left.mT, right, out=low.flatten(0, 1))
        if state is None:
            return low.to(self.wide, copy=True)
        added = self.workspace.buffer("state", self.state_shape, self.wide, left.device).copy_(low)
        return torch.addcmul(added, state, self.powers.at(self.length)[..., None], out=state)

    def write(self, state: Tensor | None, *, anew: bool = False) -> Tensor:
        """rho after the chunk, in the place of rho before it; `anew` as in `state_keys`."""
        return self.products_into(state, self.state_keys(anew=anew), self.by_head)


@dataclass
class Kept:
    """What the backward pass over some heads and rows needs of the forward pass.

    Attributes:
        scores: of every chunk.
        sums: z before every chunk, and after the last one.
        states: rho before every chunk as products take it; or, of many chunks, before every n-th one.
    """

    scores: list[Tensor]
    sums: list[Tensor]
    states: list[Tensor | None]

    @staticmethod
    def every(count: int) -> int:
        """n, for `count` chunks."""
        return 1 if count <= KEPT_STATES else math.isqrt(count - 1) + 1


def forward_pass(
    chunks: Chunks, rho: Tensor | None, norm: Tensor | None, reads: Tensor, *, carry: bool
) -> tuple[Kept, Tensor | None]:
    """Fill reads [H, B, T, D] from a state [H, B, N, D], [H, B, N] or None; returns also the final rho."""
    count, groups = len(chunks.cuts), reads.shape[:2]
    every = Kept.every(count)
    state = None if rho is None else rho.clone()
    sums = chunks.values.new_zeros(*groups, chunks.width, dtype=chunks.wide) if norm is None else norm
    kept = Kept([], [sums], [])
    for index in range(count):
        chunks.open(index, kept.sums[-1])
        before = None if state is None else chunks.lowered(state)
        chunks.block.find_scores()
        scores = chunks.block.scores[:, : chunks.length, : chunks.length]
        read = torch.bmm(scores, chunks.by_head).to(chunks.wide)
        if before is not None:
            read += torch.bmm(chunks.state_queries(), before)
        reads[:, :, chunks.tokens] = read.unflatten(0, groups).mul_(chunks.inverse)
        kept.scores.append(scores.clone())
        kept.sums.append(chunks.sums_after)
        if index % every == 0:
            kept.states.append(before if every == 1 or state is None else state.clone())
        if carry or index + 1 < count:
            state = chunks.write(state)
    return kept, state if carry else None


class Recurrence(torch.autograd.Function):
    """The whole pass, with the analytic backward pass of the module's text. Heads first."""

    @staticmethod
    def forward(
        ctx: Any,
        neurons: Tensor,
        values: Tensor,
        log_decay: Tensor,
        rho: Tensor | None,
        norm: Tensor | None,
        chunk: int,
        carry: bool,
        workspace: Workspace,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """neurons [H, B, T, N], values [B, T, D], log_decay [H, N], rho [H, B, N, D], norm [H, B, N] (None: empty)."""
        cut = Cut(neurons.shape, chunk, neurons.device)
        reads = values.new_empty(*neurons.shape[:3], values.shape[2], dtype=log_decay.dtype)
        kept, finals = [], []
        for place in cut.places:
            chunks = Chunks(neurons, values, log_decay, cut, place, workspace)
            first, sums = (None if x is None else x[place] for x in (rho, norm))
            found, final = forward_pass(chunks, first, sums, reads[place], carry=carry)
            kept.append(found)
            finals.append(final)
        rho, norm = None, None
        if carry:
            rho, norm = whole(cut, finals), whole(cut, [found.sums[-1] for found in kept])
        saved = [x for found in kept for x in (*found.scores, *found.sums, *found.states)]
        ctx.save_for_backward(neurons, values, log_decay, reads, rho, *saved)
        ctx.chunk, ctx.workspace = chunk, workspace
        ctx.set_materialize_grads(False)  # a final state that nobody used costs nothing
        return reads, rho, norm

    @staticmethod
    @once_differentiable  # the scores are saved as constants: a second derivative must fail, not be wrong
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        neurons, values, log_decay, reads, rho, *saved = ctx.saved_tensors
        cut = Cut(neurons.shape, ctx.chunk, neurons.device)
        count, each = len(cut.tokens), len(saved) // len(cut.places)
        _, _, want_decay, want_rho, want_norm, *_ = ctx.needs_input_grad
        g_neurons = torch.empty_like(neurons)
        g_values = torch.zeros_like(values, dtype=log_decay.dtype)
        g_decay = torch.zeros_like(log_decay) if want_decay else None
        g_rhos, g_norms = [], []
        for place, first in zip(cut.places, range(0, len(saved), each), strict=True):
            chunks = Chunks(neurons, values, log_decay, cut, place, ctx.workspace, gradients=True)
            some = saved[first : first + each]
            kept = Kept(some[:count], some[count : 2 * count + 1], some[2 * count + 1 :])
            given = [None if x is None else x[place] for x in gradients]
            decays = None if g_decay is None else g_decay[place[0], None]
            backward = Backward(chunks, reads[place], given, g_neurons[place], g_values[place[1]], decays)
            backward.run(kept, None if rho is None else rho[place], want_rho=want_rho)
            g_rhos.append(backward.g_rho)
            g_norms.append(backward.g_norm)
        g_rho = whole(cut, g_rhos) if want_rho else None
        g_norm = whole(cut, g_norms) if want_norm else None
        return g_neurons, g_values.to(values.dtype), g_decay, g_rho, g_norm, None, None, None


def whole(cut: Cut, parts: Sequence[Tensor | None]) -> Tensor | None:
    """Tensors [H, B, ...] of the places of a cut, as one; None where there are none."""
    found = [part for part in parts if part is not None]
    if len(found) < 2:
        return found[0] if found else None
    heads, rows = cut.places[-1]
    shape = (heads.start + len(found[-1]), rows.start + found[-1].shape[1], *found[0].shape[2:])
    joined = found[0].new_empty(shape)
    for place, part in zip(cut.places, found, strict=True):
        joined[place] = part
    return joined


def states_before(chunks: Chunks, segment: range, first: Tensor | None) -> list[Tensor | None]:
    """The states before the chunks of a segment, as products take them; `first` is kept, the others are made again."""
    if len(segment) == 1:
        return [None if first is None else first.flatten(0, -3).to(chunks.low)]
    state = None if first is None else first.clone()
    states = []
    for index in segment:
        states.append(None if state is None else chunks.lowered(state))
        if index != segment[-1]:
            chunks.locate(index)
            state = chunks.write(state, anew=True)
    return states


class Backward:
    """The chunks' gradients for some rows, last chunk first.

    Args:
        chunks: what the forward pass did.
        reads: what it found, [H, B, T, D].
        gradients: of reads, final rho and final norm; None where nothing depends on them.
        g_neurons: to be filled, [H, B, T, N].
        g_values: to be added to, [B, T, D].
        g_decay: where that of log lam is added, [H, 1, N], or None.

    Attributes:
        g_rho, g_norm: the gradients of the state before the chunk that was last; None where nothing depends on it.
    """

    def __init__(
        self,
        chunks: Chunks,
        reads: Tensor,
        gradients: Sequence[Tensor | None],
        g_neurons: Tensor,
        g_values: Tensor,
        g_decay: Tensor | None,
    ) -> None:
        self.chunks, self.reads = chunks, reads
        g_reads, g_rho, self.g_norm = gradients
        self.g_reads = torch.zeros_like(reads) if g_reads is None else g_reads
        self.g_rho = None if g_rho is None else g_rho.to(chunks.wide, copy=True)
        self.g_neurons, self.g_values, self.g_decay = g_neurons, g_values, g_decay

    def run(self, kept: Kept, rho: Tensor | None, *, want_rho: bool) -> None:
        """All chunks. rho: the final one, [H, B, N, D]; needed where its gradient was given."""
        chunks, count = self.chunks, len(self.chunks.cuts)
        every, after = Kept.every(count), rho
        for first in reversed(range(0, count, every)):
            segment = range(first, min(first + every, count))
            before = states_before(chunks, segment, kept.states[first // every])
            for index in reversed(segment):
                chunks.open(index, kept.sums[index])
                state = before.pop()
                self.step(
                    kept.scores[index], state, after, kept.sums[index + 1], want_rho=want_rho or index > 0
                )
                after = state

    def step(
        self,
        scores: Tensor,
        before: Tensor | None,
        after: Tensor | None,
        sums_after: Tensor,
        *,
        want_rho: bool,
    ) -> None:
        """The open chunk.

        Args:
            scores: [H B, L, L].
            before, after: rho before and after it, [..., N, D].
            sums_after: z after it, [H, B, N].
            want_rho: whether anybody reads the gradient of rho before it.
        """
        chunks, block, length = self.chunks, self.chunks.block, self.chunks.length
        g_reads = self.g_reads[:, :, chunks.tokens] * chunks.inverse
        along = (g_reads * self.reads[:, :, chunks.tokens]).sum(-1, keepdim=True)
        g = g_reads.to(chunks.low).flatten(0, 1)
        g_values = torch.bmm(scores.mT, g).to(chunks.wide)
        block.g_scores[:, :length, :length] = torch.bmm(g, chunks.by_head.mT)
        block.g_scores[:, length:] = (
            0  # nothing is known of tokens that are none, not even that they are finite
        )
        block.find_gradients()
        if self.g_rho is not None:
            self._through_end(self.g_rho, after)
            gamma = chunks.lowered(self.g_rho)
            g_values += torch.bmm(chunks.state_keys(), gamma)
            self._add_product(chunks.by_head, gamma, block.to_keys, chunks.powers.before(length))
        if before is not None:
            self._add_product(g, before, block.to_queries, chunks.powers.after(length))
        if want_rho:
            self.g_rho = chunks.products_into(self.g_rho, chunks.state_queries(), g)
        self.g_values[:, chunks.tokens] += g_values.unflatten(0, block.shape[:2]).sum(0)
        self._through_norm(sums_after)
        self.g_neurons[:, :, chunks.tokens] = block.to_keys[:, :, :length].sub_(along)

    def _through_end(self, g_rho: Tensor, after: Tensor | None) -> None:
        """To the decay: rho after the chunk is as old as the chunk is long."""
        if self.g_decay is not None and after is not None:
            chunks = self.chunks
            product = chunks.workspace.buffer("state", chunks.state_shape, chunks.wide, g_rho.device)
            product.copy_(after.view(chunks.state_shape)).mul_(g_rho)
            self.g_decay.add_(product.sum(-1).sum(1, keepdim=True), alpha=chunks.length)

    def _add_product(self, left: Tensor, right: Tensor, to: Tensor, table: Tensor) -> None:
        """Add left right^T, of [H B, L, D] and [H B, N, D], times a table to the first L tokens of `to`."""
        chunks, length = self.chunks, self.chunks.length
        shape = (*chunks.block.shape[:2], length, chunks.width)
        low = chunks.workspace.buffer("low spare", shape, chunks.low, left.device)
        torch.bmm(left, right.mT, out=low.flatten(0, 1))
        wide = chunks.workspace.buffer("spare", shape, chunks.wide, left.device).copy_(low)
        to[:, :, :length].addcmul_(wide, table)

    def _through_norm(self, sums_after: Tensor) -> None:
        """From the queries to the keys, through the sums z; to_keys gets all but what goes through 1 / D_t."""
        chunks, block, last = self.chunks, self.chunks.block, self.chunks.length - 1
        x = block.to_queries.mul_(block.sums)
        drain = block.sums.mul_(x).mul_(block.plain)  # -dz, but for later tokens
        self._weigh(drain, 0, EPS)
        if self.g_norm is not None:
            drain[:, :, last].addcmul_(self.g_norm, chunks.powers.one, value=-1)
            block.to_keys[:, :, last] += self.g_norm
            if self.g_decay is not None:
                end = (self.g_norm * sums_after).sum(1, keepdim=True)
                self.g_decay.add_(end, alpha=chunks.length)
        block.decayed_sums_from_the_end()
        block.to_keys[:, :, :last] -= drain[:, :, 1 : last + 1]
        self.g_norm = drain[:, :, 0].neg()
        if self.g_decay is not None:
            self._weigh(torch.mul(block.plain, block.to_keys, out=block.spare), 1, -1)
        block.to_keys += x

    def _weigh(self, flow: Tensor, first: int, factor: float) -> None:
        """Add factor (first + t) flow_t, [H, B, P, N], to the gradient of log lam."""
        if self.g_decay is not None:
            self.g_decay.baddbmm_(self.chunks.block.ages[first], flow.flatten(1, 2), alpha=factor)


def decayed_recurrence(
    neurons: Tensor,
    values: Tensor,
    log_decay: Tensor,
    rho: Tensor | None,
    norm: Tensor | None,
    *,
    chunk: int,
    carry: bool = True,
    workspace: Workspace | None = None,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """neurons [B, H, T, N], values [B, T, D], log_decay [H, N] <= 0, rho [B, H, N, D], norm [B, H, N] or None (empty).

    `chunk` tokens at a time, the last chunk shorter where T is not a multiple. Sums and states have the type of
    log_decay (float32 or float64), products with a state that of the neurons.

    Returns: reads [B, H, T, D], final rho and norm, or None without `carry`.
    """
    wide = log_decay.dtype
    first = None if rho is None else rho.transpose(0, 1).to(wide)
    sums = None if norm is None else norm.transpose(0, 1).to(wide)
    heads_first = neurons.transpose(0, 1)
    reads, final, last = Recurrence.apply(
        heads_first, values, log_decay, first, sums, chunk, carry, workspace or Workspace()
    )
    if not carry:
        return reads.transpose(0, 1), None, None
    return reads.transpose(0, 1), final.transpose(0, 1), last.transpose(0, 1)


def single_token(
    neurons: Tensor, values: Tensor, log_decay: Tensor, rho: Tensor, norm: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The recurrence for one token, without chunks. Shapes as in `naive` with T = 1."""
    q = neurons.to(rho.dtype)
    queries = q / (q.sum(-1, keepdim=True) + EPS) / (norm[:, :, None] + EPS)
    # states are heads first in memory: products in that order need no copy of them
    reads = torch.matmul(queries.transpose(0, 1), rho.transpose(0, 1)).transpose(0, 1)
    decay = log_decay.exp()
    rho = torch.addcmul(decay[:, :, None] * rho, q.mT, values[:, None].to(rho.dtype))
    return reads, rho, torch.addcmul(q[:, :, 0], decay, norm)
