"""The forward pass of the decayed normalised recurrence: some heads and rows at a time, chunk by chunk.

The mathematics is told in `chunked`. Shapes are heads first.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ...numerics.sums import for_masked_product
from .halving import Powers, padded
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


def at_once(heads: int, rows: int, numbers: int, device: torch.device) -> tuple[int, int]:
    """How many heads and rows are taken at a time, of `numbers` numbers each: some on a CPU, else all."""
    room = max(1, SLAB // numbers) if device.type == "cpu" else heads * rows
    step = min(heads, max(1, room // rows))
    return step, rows if step > 1 else min(rows, room)


class Cut:
    """How a call is cut.

    Attributes:
        tokens: the chunks.
        block: the size that the longest one is padded to.
        heads, rows: which ones are taken at a time: so many that a chunk of them stays in the cache, and few heads
            rather than few rows, since the tables of powers are the same for all rows.
    """

    def __init__(self, shape: tuple[int, ...], chunk: int, device: torch.device) -> None:
        heads, rows, length, width = shape
        self.tokens = cuts(length, chunk)
        self.block = padded(min(chunk, length))
        step, some_rows = at_once(heads, rows, width * self.block, device)
        self.heads = [slice(head, head + step) for head in range(0, heads, step)]
        self.rows = [slice(row, row + some_rows) for row in range(0, rows, some_rows)]

    def places(self, log_decay: Tensor, workspace: Workspace) -> Iterator[tuple[tuple[slice, slice], Powers]]:
        """What is taken at a time, [heads, rows], with the powers of these heads' decays."""
        for heads in self.heads:
            powers = workspace.powers(log_decay[heads], self.block, heads.start)
            for rows in self.rows:
                yield (heads, rows), powers


class Chunks:
    """One pass over the chunks of some heads and rows: what their tokens are, and how they meet a state.

    Args:
        neurons: [H, B, T, N] of all heads and rows; their type is that of the large products.
        values: [B, T, D].
        place: which heads and rows: these are H and B from here on.
        powers: of the decays of these heads; their type is that of sums and states.
        cut: the chunks.
        gradients: whether there are buffers for gradients.
    """

    def __init__(
        self,
        neurons: Tensor,
        values: Tensor,
        place: tuple[slice, slice],
        powers: Powers,
        cut: Cut,
        workspace: Workspace,
        *,
        gradients: bool = False,
    ) -> None:
        self.neurons, self.values, self.workspace = neurons[place], values[place[1]], workspace
        self.heads, self.rows, _, self.width = self.neurons.shape
        self.low, self.wide = neurons.dtype, powers.tables.dtype
        self.powers, self.cuts = powers, cut.tokens
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
    chunks: Chunks, rho: Tensor | None, norm: Tensor | None, reads: Tensor, *, keep: bool, carry: bool
) -> tuple[Kept, Tensor | None, Tensor | None]:
    """Fill reads [H, B, T, D], from a state [H, B, N, D] and [H, B, N] or None.

    Args:
        keep: whether there will be a backward pass.
        carry: whether the final state is asked for.
    Returns: what is kept, the final rho, the final norm.
    """
    count, groups = len(chunks.cuts), reads.shape[:2]
    every = Kept.every(count)
    state = None if rho is None else rho.clone()
    sums = chunks.values.new_zeros(*groups, chunks.width, dtype=chunks.wide) if norm is None else norm
    kept = Kept([], [sums], [])
    for index in range(count):
        chunks.open(index, sums)
        before = None if state is None else chunks.lowered(state)
        write = carry or index + 1 < count
        chunks.block.find_scores(scale=write or state is not None)
        scores = chunks.block.scores[:, : chunks.length, : chunks.length]
        finite, seen = for_masked_product(chunks.by_head, 1, own=False)
        read = torch.bmm(scores, finite).to(chunks.wide)
        if seen is not None:
            read += seen
        if before is not None:
            read += torch.bmm(chunks.state_queries(), before)
        reads[:, :, chunks.tokens] = read.unflatten(0, groups).mul_(chunks.inverse)
        sums = chunks.sums_after
        if keep:
            kept.scores.append(scores.clone())
            kept.sums.append(sums)
        if keep and index % every == 0:
            kept.states.append(before if every == 1 or state is None else state.clone())
        if write:
            state = chunks.write(state)
    return kept, state if carry else None, sums if carry else None
