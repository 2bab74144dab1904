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
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from .halving import padded
from .naive import EPS
from .workspace import Workspace

KEPT_STATES = 16  # with more chunks than that, states are kept now and then and computed again from there
SLAB = 1 << 20  # numbers of [heads, rows, tokens, neurons] taken at a time on a CPU: they stay in its cache


class Chunks:
    """One pass over the chunks of some rows: what the tokens of a chunk are, and how they meet a state.

    Args:
        neurons: [H, B, T, N]; their type is that of the large products.
        values: [B, T, D].
        log_decay: [H, N]; its type is that of sums and states.
        chunk: C.
        gradients: whether there are buffers for gradients.
    """

    def __init__(
        self,
        neurons: Tensor,
        values: Tensor,
        log_decay: Tensor,
        chunk: int,
        workspace: Workspace,
        *,
        gradients: bool = False,
    ) -> None:
        self.neurons, self.values, self.chunk, self.workspace = neurons, values, chunk, workspace
        self.heads, self.rows, self.length, self.width = neurons.shape
        self.low, self.wide = neurons.dtype, log_decay.dtype
        self.powers = workspace.powers(log_decay, padded(min(chunk, self.length)))
        self.count = -(-self.length // chunk)
        self._gradients = gradients
        self.state_shape = (self.heads, self.rows, self.width, values.shape[2])

    def locate(self, index: int) -> None:
        """Go to a chunk: its tokens, its values, its block, whose contents are whatever the last chunk left."""
        self.tokens = slice(index * self.chunk, min(self.length, (index + 1) * self.chunk))
        self.tokens_here = self.tokens.stop - self.tokens.start
        shape = (self.heads, self.rows, padded(self.tokens_here), self.width)
        self.block = self.workspace.block(shape, self.powers, self.low, gradients=self._gradients)
        here = self.values[:, self.tokens].to(self.low)
        self.by_head = here.expand(self.heads, *here.shape).reshape(-1, *here.shape[1:])  # [H B, L, D]

    def open(self, index: int, sums: Tensor) -> None:
        """Go to a chunk and fill its block, `block.sums` with z + eps. sums: z before the chunk, [H, B, N]."""
        self.locate(index)
        block, length = self.block, self.tokens_here
        block.keys[:, :, :length] = self.neurons[:, :, self.tokens]
        block.keys[:, :, length:] = 0
        block.decayed_sums(sums)
        last = length - 1
        self.sums_after = torch.addcmul(block.keys[:, :, last], block.sums[:, :, last], self.powers.one)
        block.sums += EPS
        torch.div(block.keys, block.sums, out=block.queries)
        if self._gradients:
            block.unscaled.copy_(block.queries)
        # 1 / D_t, [H, B, L, 1]
        self.inverse = (block.keys[:, :, :length].sum(-1, keepdim=True) + EPS).reciprocal_()

    def front(self, name: str, dtype: torch.dtype) -> Tensor:
        """A buffer [H, B, L, N]."""
        shape = (self.heads, self.rows, self.tokens_here, self.width)
        return self.workspace.buffer(name, shape, dtype, self.neurons.device)

    def state_queries(self) -> Tensor:
        """lam^t u_t, after the pairs of the block: [H B, L, N]."""
        return (
            self.front("state queries", self.low)
            .copy_(self.block.queries[:, :, : self.tokens_here])
            .flatten(0, 1)
        )

    def state_keys(self, *, anew: bool = False) -> Tensor:
        """lam^(L-1-s) q_s: [H B, L, N]. `anew`: from the neurons, else after the pairs of the block."""
        length, keys = self.tokens_here, self.block.keys[:, :, : self.tokens_here]
        if anew or length < self.block.shape[2]:  # the block scales for the last token of a whole block
            keys.copy_(self.neurons[:, :, self.tokens]).mul_(self.powers.before(length))
        return self.front("state keys", self.low).copy_(keys).flatten(0, 1)

    def lowered(self, state: Tensor) -> Tensor:
        """A state as products take it: [H B, N, D], new."""
        return state.to(self.low, copy=True).flatten(0, 1)

    def products_into(self, state: Tensor | None, left: Tensor, right: Tensor) -> Tensor:
        """lam^L state + left^T right, in the place of the state [H, B, N, D] (a new one for None)."""
        shape, device = self.state_shape, left.device
        low = self.workspace.buffer("low state", shape, self.low, device)
        torch.bmm(left.mT, right, out=low.flatten(0, 1))
        if state is None:
            return low.to(self.wide, copy=True)
        added = self.workspace.buffer("state", shape, self.wide, device).copy_(low)
        return torch.addcmul(added, state, self.powers.at(self.tokens_here)[..., None], out=state)

    def write(self, state: Tensor | None, *, anew: bool = False) -> Tensor:
        """rho after the chunk, in the place of rho before it; `anew` as in `state_keys`."""
        return self.products_into(state, self.state_keys(anew=anew), self.by_head)


class Recurrence(torch.autograd.Function):
    """The whole pass over some rows, with the analytic backward pass of the module's text. Heads first."""

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
        chunks = Chunks(neurons, values, log_decay, chunk, workspace)
        count = chunks.count
        every = 1 if count <= KEPT_STATES else math.isqrt(count - 1) + 1
        reads = values.new_empty(*neurons.shape[:3], values.shape[2], dtype=log_decay.dtype)
        state = None if rho is None else rho.clone()
        sums = log_decay.new_zeros(*neurons.shape[:2], neurons.shape[3]) if norm is None else norm
        kept_scores, kept_sums, kept_states = [], [], []
        for index in range(count):
            chunks.open(index, sums)
            before = None if state is None else chunks.lowered(state)
            scores = chunks.block.scores()[:, : chunks.tokens_here, : chunks.tokens_here]
            read = torch.bmm(scores, chunks.by_head).to(chunks.wide)
            if before is not None:
                read += torch.bmm(chunks.state_queries(), before)
            reads[:, :, chunks.tokens] = read.unflatten(0, neurons.shape[:2]).mul_(chunks.inverse)
            kept_scores.append(scores)
            kept_sums.append(sums)
            if every == 1:
                kept_states.append(before)
            elif index % every == 0:
                kept_states.append(None if state is None else state.clone())
            if carry or index + 1 < count:
                state = chunks.write(state)
            sums = chunks.sums_after
        ctx.save_for_backward(neurons, values, log_decay, reads, *kept_scores, *kept_sums, *kept_states)
        ctx.chunk, ctx.every, ctx.workspace = chunk, every, workspace
        ctx.set_materialize_grads(False)  # a final state that nobody used costs nothing
        return reads, state if carry else None, sums if carry else None

    @staticmethod
    @once_differentiable  # the scores are saved as constants: a second derivative must fail, not be wrong
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        neurons, values, log_decay, reads, *kept = ctx.saved_tensors
        chunks = Chunks(neurons, values, log_decay, ctx.chunk, ctx.workspace, gradients=True)
        count, every = chunks.count, ctx.every
        scores, sums, states = kept[:count], kept[count : 2 * count], kept[2 * count :]
        _, _, want_decay, want_rho, want_norm, *_ = ctx.needs_input_grad
        backward = _Backward(chunks, reads, gradients, decays=want_decay)
        for first in reversed(range(0, count, every)):
            segment = range(first, min(first + every, count))
            for index, state in zip(
                reversed(segment),
                reversed(_states(chunks, segment, states[first // every])),
                strict=True,
            ):
                chunks.open(index, sums[index])
                backward.step(scores[index], state)
        return (
            backward.g_neurons,
            backward.g_values.to(values.dtype),
            backward.decay(),
            backward.g_rho if want_rho else None,
            backward.g_norm if want_norm else None,
            None,
            None,
            None,
        )


def _states(chunks: Chunks, segment: range, first: Tensor | None) -> list[Tensor | None]:
    """The states before the chunks of a segment, as products take them; `first` is kept, the others are made again."""
    if len(segment) == 1:
        return [first]
    state = None if first is None else first.clone()
    states = []
    for index in segment:
        states.append(None if state is None else chunks.lowered(state))
        if index != segment[-1]:
            chunks.locate(index)
            state = chunks.write(state, anew=True)
    return states


class _Backward:
    """The chunks' gradients, last chunk first.

    Attributes:
        g_neurons, g_values, g_decay (None where not wanted): what has been found so far.
        g_rho, g_norm: the gradients of the state before the chunk that was last; None where nothing depends on it.
    """

    def __init__(
        self, chunks: Chunks, reads: Tensor, gradients: tuple[Tensor | None, ...], *, decays: bool
    ) -> None:
        self.chunks, self.reads = chunks, reads
        g_reads, g_rho, self.g_norm = gradients
        self.g_reads = torch.zeros_like(reads) if g_reads is None else g_reads
        self.g_rho = None if g_rho is None else g_rho.to(chunks.wide, copy=True)
        self.g_neurons = torch.empty_like(chunks.neurons)
        self.g_values = torch.zeros_like(chunks.values, dtype=chunks.wide)
        self.g_decay = torch.zeros_like(chunks.powers.one) if decays else None
        self.g_pairs = None if self.g_decay is None else self.g_decay.repeat(2, 1, 1)

    def decay(self) -> Tensor | None:
        """The gradient of log lam, [H, N]."""
        if self.g_decay is None or self.g_pairs is None:
            return None
        return (self.g_decay + self.g_pairs.unflatten(0, (2, -1)).sum(0)).squeeze(1)

    def step(self, scores: Tensor, state: Tensor | None) -> None:
        """The open chunk, with its scores [H B, L, L] and the state before it as products take it."""
        chunks, block, length = self.chunks, self.chunks.block, self.chunks.tokens_here
        g_reads = self.g_reads[:, :, chunks.tokens] * chunks.inverse
        along = (g_reads * self.reads[:, :, chunks.tokens]).sum(-1, keepdim=True)
        g = g_reads.to(chunks.low).flatten(0, 1)
        block.to_queries.zero_()
        block.to_keys[:, :, :length] = along.neg_()  # through 1 / D_t: the same for all neurons
        block.to_keys[:, :, length:] = 0
        g_values = torch.bmm(scores.mT, g).to(chunks.wide)
        g_scores, missing = torch.bmm(g, chunks.by_head.mT), block.shape[2] - length
        if missing:
            g_scores = F.pad(g_scores, (0, missing, 0, missing))
        block.add_gradients(g_scores, self.g_pairs)
        if self.g_rho is not None:
            g_values += self._through_the_write(self.g_rho, state)
        queries = chunks.state_queries()
        if state is not None:
            self._through_product(g, state, falling=False)
        self.g_rho = chunks.products_into(self.g_rho, queries, g)
        self.g_values[:, chunks.tokens] = g_values.unflatten(0, block.shape[:2]).sum(0)
        self._through_the_norm()
        self.g_neurons[:, :, chunks.tokens] = block.to_keys[:, :, :length]

    def _through_the_write(self, g_rho: Tensor, state: Tensor | None) -> Tensor:
        """From the state after the chunk to the keys, to the decay of the state before, and (returned) the values."""
        chunks, length = self.chunks, self.chunks.tokens_here
        gamma = chunks.workspace.buffer("low state", chunks.state_shape, chunks.low, g_rho.device).copy_(
            g_rho
        )
        gamma = gamma.flatten(0, 1)
        g_values = torch.bmm(chunks.state_keys(), gamma)
        self._through_product(chunks.by_head, gamma, falling=True)
        if state is not None and self.g_decay is not None:
            kept = chunks.workspace.buffer("state", chunks.state_shape, chunks.wide, g_rho.device)
            kept.copy_(state.view(chunks.state_shape)).mul_(g_rho)
            lost = kept.sum(-1).sum(1, keepdim=True)
            self.g_decay.addcmul_(lost, chunks.powers.at(length), value=length)
        return g_values

    def _through_product(self, left: Tensor, state: Tensor, *, falling: bool) -> None:
        """Add left state^T, scaled, to the gradient of the keys (`falling`) or of the queries.

        And to that of log lam: the scaled keys or queries lie in the block.
        """
        chunks, block, length = self.chunks, self.chunks.block, self.chunks.tokens_here
        low, wide = chunks.front("low spare", chunks.low), chunks.front("spare", chunks.wide)
        torch.bmm(left, state.mT, out=low.flatten(0, 1))
        wide.copy_(low)
        powers = chunks.powers
        to, scaled, table, exponents = (
            (block.to_keys, block.keys, powers.before(length), powers.exponents[:length].flip(0))
            if falling
            else (block.to_queries, block.queries, powers.after(length), powers.exponents[:length])
        )
        to[:, :, :length].addcmul_(wide, table)
        if self.g_decay is not None:
            wide.mul_(scaled[:, :, :length])
            weights = exponents.repeat(chunks.rows).expand(chunks.heads, 1, -1)
            self.g_decay.baddbmm_(weights, wide.flatten(1, 2))

    def _through_the_norm(self) -> None:
        """From the queries to the neurons, through z."""
        chunks, block = self.chunks, self.chunks.block
        last, lam = chunks.tokens_here - 1, chunks.powers.one
        x = block.to_queries.div_(block.sums)
        block.to_keys += x
        drain = x.mul_(block.unscaled)  # -dz
        if self.g_decay is not None:
            block.sums -= EPS
        if self.g_norm is not None:
            drain[:, :, last].addcmul_(self.g_norm, lam, value=-1)
            block.to_keys[:, :, last] += self.g_norm
            if self.g_decay is not None:
                passed = (self.g_norm * block.sums[:, :, last]).sum(1, keepdim=True)
                self.g_decay.addcmul_(passed, lam)
        block.decayed_sums_from_the_end(drain)
        after, flow = drain[:, :, 1 : last + 1], block.spare
        block.to_keys[:, :, :last] -= after
        if self.g_decay is not None:
            torch.mul(after, block.sums[:, :, :last], out=flow[:, :, :last])
            flow[:, :, last:] = 0
            ones = torch.ones_like(lam[..., :1]).expand(-1, -1, flow[0, ..., 0].numel())
            self.g_decay.addcmul_(torch.bmm(ones, flow.flatten(1, 2)), lam, value=-1)
        self.g_norm = drain[:, :, 0].neg()


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
    rows, heads, length, width = neurons.shape
    wide = log_decay.dtype
    first = None if rho is None else rho.transpose(0, 1).to(wide).contiguous()
    sums = None if norm is None else norm.transpose(0, 1).to(wide).contiguous()
    at_once = rows if neurons.device.type != "cpu" else max(1, SLAB // (heads * width * min(chunk, length)))
    heads_first = neurons.transpose(0, 1)
    found = []
    for begin in range(0, rows, at_once):
        some = slice(begin, begin + at_once)
        state = (None if x is None else x[:, some] for x in (first, sums))
        found.append(
            Recurrence.apply(
                heads_first[:, some], values[some], log_decay, *state, chunk, carry, workspace or Workspace()
            )
        )
    reads, rhos, norms = zip(*found, strict=True)
    joined = reads[0] if len(found) == 1 else torch.cat(reads, dim=1)
    if not carry:
        return joined.transpose(0, 1), None, None
    last = (parts[0] if len(found) == 1 else torch.cat(parts, dim=1) for parts in (rhos, norms))
    final_rho, final_norm = last
    return joined.transpose(0, 1), final_rho.transpose(0, 1), final_norm.transpose(0, 1)


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
