"""One call of the fused layer: its sizes, cuts, weights and buffers, shared by the forward and the backward pass."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ...numerics.dropout import Dropout
from ...numerics.norms import Norm
from .block import Decays, products
from .encodings import Encoding, Phase
from .kernels import Kernels
from .planning import FusedPlan
from .shared import Matrices, SharedWeights, join_pairs, split_pairs


class Workspace:
    """Large buffers that are made once and used by every tile of a forward and a backward pass.

    Attributes:
        decays: those of groups of heads (first, last, rows, tokens), which all layers share.
    """

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}
        self.decays: dict[tuple[int, int, int, int], Decays] = {}

    def __call__(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A buffer [shape] whose contents are whatever the last user left."""
        size = math.prod(shape)
        buffer = self._buffers.get(name)
        if buffer is None or buffer.dtype != dtype or buffer.numel() < size:
            buffer = self._buffers[name] = torch.empty(size, dtype=dtype)
        return buffer[:size].view(shape)


@dataclass(frozen=True)
class Tile:
    """Some rows, some tokens and some heads of the batch: G heads, R rows, C tokens.

    Attributes:
        rows, tokens, heads: slices of the batch, of time, of the heads.
        chunk: number of the chunk.
        values: the stream here, in the products' type, [R, C, D] contiguous.
        by_head: the same once per head, [G R, C, D].
        phases: cosines and sines [1 or R, C, P], or None (alibi).
        decays: of these heads, or None.
        mask: kept values [G, R, C, N] as uint8 in the fused order, or None.
    """

    rows: slice
    tokens: slice
    heads: slice
    chunk: int
    values: Tensor
    by_head: Tensor
    phases: Phase | None
    decays: Decays | None
    mask: Tensor | None


@dataclass
class LayerCall:
    """Everything about one call of one layer that is no input of autograd.

    Attributes:
        key_factor: K / N, 2 under pope.
        log_decay: -slope per head in float64, or None.
        phases: (start of each row [B], length) -> cosines and sines; None under alibi.
        keep: whether the forward pass keeps the neurons for the backward pass.
        sums: x firing, y firing, activity: [H, N] float32, where observed.
    """

    shared: SharedWeights
    neurons: int
    key_factor: int
    plan: FusedPlan
    kernels: Kernels
    encoding: Encoding
    norm: Norm
    x_threshold: float
    y_threshold: float
    position: Tensor
    layer: int
    dropout: Dropout | None
    carry: bool
    keep: bool
    workspace: Workspace
    log_decay: Tensor | None
    phases: Callable[[Tensor, int], Phase] | None
    sums: list[Tensor] | None = None

    @property
    def matrices(self) -> Matrices:
        """The weights of this layer."""
        return self.shared.matrices(self.neurons)

    @property
    def keys(self) -> int:
        """K."""
        return self.neurons * self.key_factor

    def row_groups(self, rows: int) -> Iterator[slice]:
        """Slices of the batch, `plan.rows` at a time."""
        for begin in range(0, rows, self.plan.rows):
            yield slice(begin, min(rows, begin + self.plan.rows))

    def chunks(self, length: int) -> int:
        """How many chunks T tokens are."""
        return -(-length // self.plan.chunk)

    def tokens(self, length: int, chunk: int) -> slice:
        """Those of this chunk of T tokens."""
        return slice(chunk * self.plan.chunk, min(length, (chunk + 1) * self.plan.chunk))

    def tiles(self, hidden: Tensor, rows: slice, chunk: int, *, masks: bool = True) -> Iterator[Tile]:
        """The tiles of these rows in one chunk, by groups of heads. What heads share is made once."""
        heads, step = self.shared.heads, self.plan.heads
        tokens = self.tokens(hidden.shape[1], chunk)
        values = hidden[rows, tokens].to(self.shared.compute).contiguous()
        by_head = values.expand(min(step, heads), *values.shape).reshape(-1, *values.shape[1:])
        start, length = self.position[rows] + tokens.start, values.shape[1]
        phases = None if self.phases is None else self.phases(start, length)
        mask = self._mask(rows, start, length) if masks else None
        for first in range(0, heads, step):
            part = slice(first, min(heads, first + step))
            count = part.stop - first
            yield Tile(
                rows,
                tokens,
                part,
                chunk,
                values,
                by_head[: count * len(values)],
                phases,
                self._head_decays(part, len(values), length),
                None if mask is None else mask[part],
            )

    def _mask(self, rows: slice, start: Tensor, length: int) -> Tensor | None:
        dropout = self.dropout
        if dropout is None or not dropout.threshold:
            return None
        key = Dropout(dropout.rate, dropout.seed, dropout.step, dropout.rows[rows])
        mask = key.mask(self.layer, start, length, self.shared.heads, self.neurons, halves=self.shared.split)
        return mask.view(torch.uint8)

    def _head_decays(self, heads: slice, rows: int, length: int) -> Decays | None:
        if self.log_decay is None:
            return None
        known, key = self.workspace.decays, (heads.start, heads.stop, rows, length)
        if key not in known:
            known[key] = Decays.of(self.log_decay[heads], rows, length, self.shared.compute)
        return known[key]

    def buffer(self, name: str, tile: Tile, width: int | None = None) -> Tensor:
        """A buffer [G, R, C, N] (or another width) in the products' type."""
        heads = tile.heads.stop - tile.heads.start
        shape = (heads, *tile.values.shape[:2], width or self.neurons)
        return self.workspace(name, shape, self.shared.compute)

    def state_in(self, rho: Tensor | None, rows: slice) -> Tensor | None:
        """These rows of a state [B, H, K, D] as sums [H, R, K, D] in the fused order; always a copy."""
        if rho is None:
            return None
        part = self._order(rho[rows].transpose(0, 1).to(self.shared.sums), split_pairs)
        return part.clone(memory_format=torch.contiguous_format)

    def state_out(self, state: Tensor, target: Tensor, rows: slice) -> None:
        """The inverse: write [H, R, K, D] into these rows of [B, H, K, D]."""
        target[rows] = self._order(state, join_pairs).transpose(0, 1)

    def _order(self, state: Tensor, change: Callable[[Tensor, int], Tensor]) -> Tensor:
        """Natural to fused order of keys, or back. Pope interleaves (cos, sin) per neuron, so it is split too."""
        return state if self.log_decay is not None else change(state, -2)

    def empty_state(self, rows: int) -> Tensor:
        """Zeros [H, R, K, D]."""
        return torch.zeros(self.shared.heads, rows, self.keys, self.shared.width, dtype=self.shared.sums)


def product(left: Tensor, right: Tensor, out: Tensor) -> Tensor:
    """Per head: left [R, C, K] (shared by heads) or [G, R, C, K] times right [G, K, N], into out [G, R, C, N].

    One product per head: a batched one copies operands whose batches do not follow each other in memory.
    """
    target = out.flatten(1, 2)
    for head, matrix in enumerate(right):
        one = left if left.dim() == 3 else left[head]
        torch.mm(one.flatten(0, 1), matrix, out=target[head])
    return out


def add_outer(total: Tensor, left: Tensor, right: Tensor) -> None:
    """total [G, K, N] += left^T right over all rows and tokens; left and right are [R, C, .] or [G, R, C, .]."""
    for head, sums in enumerate(total):
        one, other = ((x if x.dim() == 3 else x[head]).flatten(0, 1) for x in (left, right))
        if sums.dtype == one.dtype:
            sums.addmm_(one.t(), other)
        else:
            sums.add_(torch.mm(one.t(), other))


def add_state(state: Tensor, queries: Tensor, values: Tensor, factor: int = 1) -> None:
    """state [M, K, D] += factor q^T v, q [M, C, K], v [M, C, D]."""
    if state.dtype == queries.dtype:
        state.baddbmm_(queries.mT, values, alpha=factor)
    else:
        state.add_(products(queries.mT, values), alpha=factor)
