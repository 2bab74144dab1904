"""The backward pass of the decayed normalised recurrence, last chunk first. The mathematics is told in `chunked`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .forward import Chunks, Kept
from .naive import EPS


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

    def run(self, kept: Kept, *, want_rho: bool) -> None:
        """All chunks. want_rho: whether the gradient of the first state is asked for."""
        chunks, count = self.chunks, len(self.chunks.cuts)
        every = Kept.every(count)
        for first in reversed(range(0, count, every)):
            segment = range(first, min(first + every, count))
            before = states_before(chunks, segment, kept.states[first // every])
            for index in reversed(segment):
                chunks.open(index, kept.sums[index])
                wanted = want_rho or index > 0
                self.step(kept.scores[index], before.pop(), kept.sums[index + 1], want_rho=wanted)

    def step(self, scores: Tensor, before: Tensor | None, sums_after: Tensor, *, want_rho: bool) -> None:
        """The open chunk.

        Args:
            scores: [H B, L, L].
            before: rho before it, as products take it.
            sums_after: z after it, [H, B, N].
            want_rho: whether anybody reads the gradient of rho before it.
        """
        chunks, block, length = self.chunks, self.chunks.block, self.chunks.length
        g_reads = self.g_reads[:, :, chunks.tokens] * chunks.inverse
        along = (g_reads * self.reads[:, :, chunks.tokens]).sum(-1, keepdim=True)
        g = g_reads.to(chunks.low).flatten(0, 1)
        g_values = torch.bmm(scores.mT, g).to(chunks.wide)
        block.g_scores[:, :length, :length] = torch.bmm(g, chunks.by_head.mT)
        # nothing is known of tokens that are none, not even that they are finite
        block.g_scores[:, length:] = 0
        scale = want_rho or before is not None or self.g_rho is not None
        block.find_gradients(self.g_decay, scale=scale)
        if self.g_rho is not None:
            g_values += self._through_write(self.g_rho, before)
        if before is not None:
            self._add_product(g, before, block.to_queries, chunks.powers.after(length))
        if want_rho:
            self.g_rho = chunks.products_into(self.g_rho, chunks.state_queries(), g)
        self.g_values[:, chunks.tokens] += g_values.unflatten(0, block.shape[:2]).sum(0)
        self._through_norm(sums_after)
        self.g_neurons[:, :, chunks.tokens] = block.to_keys[:, :, :length].sub_(along)

    def _through_write(self, g_rho: Tensor, before: Tensor | None) -> Tensor:
        """From rho after the chunk to the keys, to the decay, and (returned) to the values."""
        chunks, block, length = self.chunks, self.chunks.block, self.chunks.length
        gamma = chunks.lowered(g_rho)
        g_values = torch.bmm(chunks.state_keys(), gamma)
        flow = self._add_product(chunks.by_head, gamma, block.to_keys, chunks.powers.before(length))
        if self.g_decay is not None:
            # all that flows into rho after the chunk weighs its length
            flow.mul_(block.keys[:, :, :length])
            self.g_decay.add_(flow.sum(2).sum(1, keepdim=True), alpha=length)
            if before is not None:
                kept = chunks.workspace.buffer("state", chunks.state_shape, chunks.wide, g_rho.device)
                kept.copy_(before.view(chunks.state_shape)).mul_(g_rho)
                self.g_decay.addcmul_(
                    kept.sum(-1).sum(1, keepdim=True), chunks.powers.at(length), value=length
                )
        return g_values

    def _add_product(self, left: Tensor, right: Tensor, to: Tensor, table: Tensor) -> Tensor:
        """Add left right^T, of [H B, L, D] and [H B, N, D], times a table to the first L tokens of `to`.

        Returns the product, [H, B, L, N], in `block.spare`.
        """
        chunks, length = self.chunks, self.chunks.length
        shape = (*chunks.block.shape[:2], length, chunks.width)
        low = chunks.workspace.buffer("low spare", shape, chunks.low, left.device)
        torch.bmm(left, right.mT, out=low.flatten(0, 1))
        wide = chunks.workspace.buffer("spare", shape, chunks.wide, left.device).copy_(low)
        to[:, :, :length].addcmul_(wide, table)
        return wide

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
