"""The decayed normalised recurrence by chunks. Work is linear in T, memory that of the stream and some states.

With u_t = w_t / (z_t + eps) as queries and q_s as keys, the recurrence is attention with a decay per neuron:

    a_t = lam^t u_t . rho_0 + sum_{s<t} P_ts v_s            P_ts = sum_n lam^(t-1-s) u_t q_s
    rho_T = lam^T rho_0 + sum_s lam^(T-1-s) q_s v_s^T

Inside a chunk P is made by halving (see `halving`), and so are the sums z; between chunks the state carries the rest.
lam does not depend on time: one table of its powers serves all chunks.

Backward, chunks last to first, with g_t = dL/da_t, Gamma and h the gradients of the chunk's final rho and z:

    dP_ts = g_t . v_s                                        dv_s = sum_h (P^T g)_s + lam^(T-1-s) q_s . Gamma
    du_t = (dP lam^(t-1-s) q)_t + lam^t rho_0 g_t            dw_t = du_t / (z_t + eps)
    dq_s = (dP^T lam^(t-1-s) u)_s + lam^(T-1-s) Gamma v_s    dz_t = -dw_t u_t + lam dz_{t+1},  dz_T = h
    dq_t += dz_{t+1} + (dw_t - sum_n dw_t w_t) / (sum_n q_t + eps)
    d rho_0 = lam^T Gamma + sum_t lam^t u_t g_t^T

The gradient of log lam gathers every product above times its exponent, which is never negative, so nothing large
cancels. Products with a state, and those of larger halves, run in the neurons' type (bfloat16 under autocast), all
else in float32 or better.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .halving import (
    Powers,
    add_pair_gradients,
    decayed_sums,
    decayed_sums_from_the_end,
    padded,
    pair_scores,
)
from .naive import EPS

KEPT_STATES = 16  # with more chunks than that, states are kept now and then and computed again from there
SLAB = 1 << 20  # numbers of [heads, rows, tokens, neurons] taken at a time on a CPU: they stay in its cache


@dataclass
class Chunk:
    """What the tokens of one chunk are to the recurrence. [H, B, P, N], zeros after the L real tokens."""

    length: int  # L
    keys: Tensor  # q
    inverse: Tensor  # 1 / (sum_n q + eps), [H, B, P, 1]
    sums: Tensor  # z before each token
    queries: Tensor  # u

    @classmethod
    def of(cls, neurons: Tensor, norm: Tensor, powers: Powers) -> Chunk:
        """From neurons [H, B, L, N] and the norm before them [H, B, N]."""
        heads, rows, length, width = neurons.shape
        keys = norm.new_empty(heads, rows, padded(length), width)
        keys[:, :, :length] = neurons
        keys[:, :, length:] = 0
        inverse = (keys.sum(-1, keepdim=True) + EPS).reciprocal_()
        sums = decayed_sums(keys, norm, powers)
        return cls(length, keys, inverse, sums, (keys * inverse).div_(sums + EPS))

    def state_queries(self, powers: Powers, low: torch.dtype) -> Tensor:
        """lam^t u_t: [H B, L, N]."""
        length = self.length
        return (self.queries[:, :, :length] * powers.after(length)[0]).to(low).flatten(0, 1)

    def state_keys(self, powers: Powers, low: torch.dtype) -> Tensor:
        """lam^(L-1-s) q_s: [H B, L, N]."""
        length = self.length
        return (self.keys[:, :, :length] * powers.before(length)[0]).to(low).flatten(0, 1)

    def norm_after(self, powers: Powers) -> Tensor:
        """z after the last token, [H, B, N]."""
        last = self.length - 1
        return torch.addcmul(self.keys[:, :, last], self.sums[:, :, last], powers.at(1)[0])


def written(chunk: Chunk, values: Tensor, rho: Tensor | None, powers: Powers) -> Tensor:
    """rho after a chunk: values [H B, L, D], rho [H, B, N, D] or None (empty), which is left as it is."""
    added = torch.bmm(chunk.state_keys(powers, values.dtype).mT, values)
    added = added.unflatten(0, chunk.keys.shape[:2]).to(chunk.keys.dtype)
    return added if rho is None else added.addcmul_(rho, powers.at(chunk.length)[0][..., None])


def _by_heads(values: Tensor, heads: int, dtype: torch.dtype) -> Tensor:
    """values [B, L, D], the same for all heads: [H B, L, D]."""
    return values.to(dtype).expand(heads, *values.shape).reshape(-1, *values.shape[1:])


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
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """neurons [H, B, T, N], values [B, T, D], log_decay [H, N], rho [H, B, N, D], norm [H, B, N] (None: empty)."""
        heads, rows, length, width = neurons.shape
        low, wide = neurons.dtype, log_decay.dtype
        powers = Powers(log_decay, padded(min(chunk, length)))
        chunks = -(-length // chunk)
        every = 1 if chunks <= KEPT_STATES else math.isqrt(chunks - 1) + 1
        reads = values.new_empty(heads, rows, length, values.shape[2], dtype=wide)
        state = rho
        sums = values.new_zeros(heads, rows, width, dtype=wide) if norm is None else norm
        kept_scores, kept_sums, kept_states = [], [], []
        for index in range(chunks):
            part = slice(index * chunk, (index + 1) * chunk)
            piece = Chunk.of(neurons[:, :, part], sums, powers)
            v = _by_heads(values[:, part], heads, low)
            scores = pair_scores(piece.queries, piece.keys, powers, low)
            scores = scores[..., : piece.length, : piece.length].flatten(0, 1)
            read = torch.bmm(scores, v).to(wide)
            low_state = None if state is None else state.flatten(0, 1).to(low)
            if low_state is not None:
                read += torch.bmm(piece.state_queries(powers, low), low_state)
            reads[:, :, part] = read.unflatten(0, (heads, rows))
            kept_scores.append(scores)
            kept_sums.append(sums)
            if index % every == 0:
                kept_states.append(low_state if every == 1 else state)
            if carry or index + 1 < chunks:
                state = written(piece, v, state, powers)
            sums = piece.norm_after(powers)
        ctx.save_for_backward(neurons, values, log_decay, *kept_scores, *kept_sums, *kept_states)
        ctx.chunk, ctx.chunks, ctx.every = chunk, chunks, every
        ctx.set_materialize_grads(False)  # a final state that nobody used costs nothing
        return reads, state if carry else None, sums if carry else None

    @staticmethod
    @once_differentiable  # the scores are saved as constants: a second derivative must fail, not be wrong
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        neurons, values, log_decay, *kept = ctx.saved_tensors
        chunks, every = ctx.chunks, ctx.every
        scores, sums, states = kept[:chunks], kept[chunks : 2 * chunks], kept[2 * chunks :]
        work = _Backward(neurons, values, log_decay, ctx.chunk, gradients, decays=ctx.needs_input_grad[2])
        for first in reversed(range(0, chunks, every)):
            segment = range(first, min(first + every, chunks))
            before = [states[first // every]]
            for index in segment[:-1]:
                before.append(work.advance(index, sums[index], before[-1]))
            for index in reversed(segment):
                work.step(index, scores[index], sums[index], before.pop())
        g_rho = work.g_rho if ctx.needs_input_grad[3] else None
        g_norm = work.g_norm if ctx.needs_input_grad[4] else None
        g_decay = work.g_decay if ctx.needs_input_grad[2] else None
        return work.g_neurons, work.g_values.to(values.dtype), g_decay, g_rho, g_norm, None, None


class _Backward:
    """One backward pass over the chunks, last to first.

    Attributes:
        g_neurons, g_values, g_decay: what has been found so far.
        g_rho, g_norm: the gradients of the state before the chunk that was last; None where nothing depends on it.
    """

    def __init__(
        self,
        neurons: Tensor,
        values: Tensor,
        log_decay: Tensor,
        chunk: int,
        gradients: tuple[Tensor | None, ...],
        *,
        decays: bool,
    ) -> None:
        self.neurons, self.values, self.chunk = neurons, values, chunk
        self.low, self.wide = neurons.dtype, log_decay.dtype
        self.powers = Powers(log_decay, padded(min(chunk, neurons.shape[2])))
        self.parts = 2 if decays else 1
        self.g_reads, self.g_rho, self.g_norm = gradients
        self.g_neurons = torch.empty_like(neurons)
        self.g_values = values.new_zeros(values.shape, dtype=self.wide)
        self.g_decay = torch.zeros_like(log_decay)

    def _open(self, index: int, sums: Tensor) -> tuple[slice, Chunk, Tensor]:
        part = slice(index * self.chunk, (index + 1) * self.chunk)
        piece = Chunk.of(self.neurons[:, :, part], sums, self.powers)
        return part, piece, _by_heads(self.values[:, part], piece.keys.shape[0], self.low)

    def advance(self, index: int, sums: Tensor, rho: Tensor | None) -> Tensor:
        """rho after a chunk, once more."""
        _, piece, values = self._open(index, sums)
        return written(piece, values, rho, self.powers)

    def step(self, index: int, scores: Tensor, sums: Tensor, rho: Tensor | None) -> None:
        """One chunk with its scores, and the state before it."""
        part, piece, values = self._open(index, sums)
        shape = piece.keys.shape
        to_queries, to_keys = (piece.keys.new_zeros(self.parts, *shape) for _ in range(2))
        g_values = torch.zeros_like(values, dtype=self.wide)
        if self.g_rho is not None:
            g_values += self._through_written(piece, values, to_keys)
        if self.g_reads is not None:
            g = self.g_reads[:, :, part].to(self.low).flatten(0, 1)
            g_values += torch.bmm(scores.mT, g)
            g_scores = torch.bmm(g, values.mT)
            missing = shape[2] - piece.length
            g_scores = torch.nn.functional.pad(g_scores, (0, missing, 0, missing)).unflatten(0, shape[:2])
            add_pair_gradients(
                g_scores, piece.queries, piece.keys, self.powers, self.low, to_queries, to_keys
            )
        else:
            g = None
        self._through_state(piece, g, rho, to_queries)
        self.g_values[:, part] = g_values.unflatten(0, shape[:2]).sum(0)
        if self.parts == 2:
            gathered = torch.mul(piece.queries, to_queries[1]).addcmul_(piece.keys, to_keys[1])
            self.g_decay += gathered.sum((1, 2))
        self.g_neurons[:, :, part] = self._through_queries(piece, to_queries[0], to_keys[0])

    def _through_written(self, piece: Chunk, values: Tensor, to_keys: Tensor) -> Tensor:
        """Of the tokens' part in the state after the chunk; the gradient of the values."""
        assert self.g_rho is not None
        gamma, length = self.g_rho.flatten(0, 1).to(self.low), piece.length
        g_keys = torch.bmm(values, gamma.mT).unflatten(0, piece.keys.shape[:2]).to(self.wide)
        factor = self.powers.before(length)[: self.parts]
        torch.mul(g_keys, factor, out=to_keys[..., :length, :])
        return torch.bmm(piece.state_keys(self.powers, self.low), gamma)

    def _through_state(self, piece: Chunk, g: Tensor | None, rho: Tensor | None, to_queries: Tensor) -> None:
        """Of the reads of the state before the chunk, and of what the chunk leaves of it."""
        length, groups = piece.length, piece.keys.shape[:2]
        kept = self.g_rho
        if kept is not None:
            if rho is not None and self.parts == 2:
                along = (rho.to(self.wide).view_as(kept) * kept).sum(-1)
                self.g_decay += (along * self.powers.at(length)[1]).sum(1)
            kept = kept * self.powers.at(length)[0][..., None]
        if g is not None:
            if rho is not None:
                state = rho.to(self.low).view(-1, *rho.shape[-2:])
                g_queries = torch.bmm(g, state.mT).unflatten(0, groups).to(self.wide)
                factor = self.powers.after(length)[: self.parts]
                to_queries[..., :length, :].addcmul_(g_queries, factor)
            read = torch.bmm(piece.state_queries(self.powers, self.low).mT, g)
            read = read.unflatten(0, groups).to(self.wide)
            kept = read if kept is None else kept.add_(read)
        self.g_rho = kept

    def _through_queries(self, piece: Chunk, g: Tensor, g_keys: Tensor) -> Tensor:
        """From queries and keys to neurons, through the two divisions and the sums z."""
        last, lam = piece.length - 1, self.powers.at(1)[0]
        along = (g * piece.queries).sum(-1, keepdim=True)
        g.div_(piece.sums + EPS)  # now that of the weights w
        g_sums = torch.mul(g, piece.queries).neg_()
        if self.g_norm is not None:
            g_sums[:, :, last].addcmul_(self.g_norm, lam)
            g_keys[:, :, last] += self.g_norm
            if self.parts == 2:
                self.g_decay += (self.g_norm * piece.sums[:, :, last] * lam).sum(1)
        decayed_sums_from_the_end(g_sums, self.powers)
        g_keys[:, :, :last] += g_sums[:, :, 1 : last + 1]
        if self.parts == 2:
            passed = g_sums[:, :, 1 : last + 1] * piece.sums[:, :, :last]
            self.g_decay += passed.sum((1, 2)) * lam.squeeze(1)
        self.g_norm = g_sums[:, :, 0].clone()
        return g_keys.add_(g.sub_(along).mul_(piece.inverse))[:, :, : piece.length]


def decayed_recurrence(
    neurons: Tensor,
    values: Tensor,
    log_decay: Tensor,
    rho: Tensor | None,
    norm: Tensor | None,
    *,
    chunk: int,
    carry: bool = True,
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
        found.append(Recurrence.apply(heads_first[:, some], values[some], log_decay, *state, chunk, carry))
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
