"""One call of the fused layer: its sizes, cuts, weights and buffers, as the forward and the backward pass share them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ...numerics.dropout import Dropout
from ...numerics.norms import Norm
from .block import HeadDecay
from .encodings import Encoding, Phase
from .kernels import Kernels
from .plan import FusedPlan
from .shared import Matrices, SharedWeights, join_pairs, split_pairs


class Workspace:
    """Large buffers that are made once and used by every tile of a forward and a backward pass."""

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}

    def __call__(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A buffer [shape] whose contents are whatever the last user left."""
        size = 1
        for extent in shape:
            size *= extent
        buffer = self._buffers.get(name)
        if buffer is None or buffer.dtype != dtype or buffer.numel() < size:
            buffer = self._buffers[name] = torch.empty(size, dtype=dtype)
        return buffer[:size].view(shape)


@dataclass(frozen=True)
class Tile:
    """Some rows and some tokens of the batch, all heads.

    Attributes:
        rows, tokens: slices of the batch and of time.
        index: number of the chunk.
        values: the stream here, in the products' type, [R, C, D] contiguous.
        phases: cosines and sines, or None (alibi).
        decays: per head, or None.
        mask: kept values [H, R, C, N] as uint8 in the fused order, or None.
    """

    rows: slice
    tokens: slice
    index: int
    values: Tensor
    phases: Phase | None
    decays: list[HeadDecay] | None
    mask: Tensor | None

    def decay(self, head: int) -> HeadDecay | None:
        return None if self.decays is None else self.decays[head]

    def head_mask(self, head: int) -> Tensor | None:
        return None if self.mask is None else self.mask[head]


@dataclass
class LayerCall:
    """Everything about one call of one layer that is no input of autograd.

    Attributes:
        key_factor: K / N, 2 under pope.
        decay: exp(-slope) per head in float32 or float64, or None.
        phases: (start of each row [B], length) -> cosines and sines; None under alibi.
        keep: whether the forward pass keeps the neurons for the backward pass.
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
    decay: Tensor | None
    phases: Callable[[Tensor, int], Phase] | None
    observe: bool = False
    sums: list[Tensor] | None = None  # x firing, y firing, activity: [H, N] float32, where observed
    _decays: dict[int, list[HeadDecay]] = field(default_factory=dict)

    @property
    def matrices(self) -> Matrices:
        return self.shared.matrices(self.neurons)

    @property
    def keys(self) -> int:
        """K."""
        return self.neurons * self.key_factor

    def tiles(self, hidden: Tensor, rows: slice, *, masks: bool = True) -> Iterator[Tile]:
        """The tiles of these rows, in the order of time."""
        for index in range(-(-hidden.shape[1] // self.plan.chunk)):
            yield self.tile(hidden, rows, index, masks=masks)

    def tile(self, hidden: Tensor, rows: slice, index: int, *, masks: bool = True) -> Tile:
        """Chunk `index` of these rows."""
        begin = index * self.plan.chunk
        end = min(hidden.shape[1], begin + self.plan.chunk)
        values = hidden[rows, begin:end].to(self.shared.compute).contiguous()
        start = self.position[rows] + begin
        phases = None if self.phases is None else self.phases(start, end - begin)
        mask = None
        if masks and self.dropout is not None and self.dropout.threshold:
            part = Dropout(
                self.dropout.rate, self.dropout.seed, self.dropout.step, tuple(self.dropout.rows[rows])
            )
            mask = part.mask(
                self.layer,
                start,
                end - begin,
                self.shared.heads,
                self.neurons,
                halves=self.shared.split,
            ).view(torch.uint8)
        return Tile(rows, slice(begin, end), index, values, phases, self._head_decays(end - begin), mask)

    def _head_decays(self, length: int) -> list[HeadDecay] | None:
        if self.decay is None:
            return None
        if length not in self._decays:
            self._decays[length] = [HeadDecay.of(d, length, self.shared.compute) for d in self.decay]
        return self._decays[length]

    def row_groups(self, rows: int) -> Iterator[slice]:
        """Slices of the batch, `plan.rows` at a time."""
        for begin in range(0, rows, self.plan.rows):
            yield slice(begin, min(rows, begin + self.plan.rows))

    def buffer(self, name: str, tile: Tile, width: int | None = None) -> Tensor:
        """A buffer [R, C, N] (or another width) in the products' type."""
        rows, length, _ = tile.values.shape
        return self.workspace(name, (rows, length, width or self.neurons), self.shared.compute)

    def state_in(self, rho: Tensor | None, rows: slice) -> Tensor | None:
        """These rows of a state [B, H, K, D] as float32 sums [H, R, K, D] in the fused order; always a copy."""
        if rho is None:
            return None
        part = rho[rows].transpose(0, 1).to(self.shared.sums)
        return self._order(part, split_pairs).clone(memory_format=torch.contiguous_format)

    def state_out(self, state: Tensor, target: Tensor, rows: slice) -> None:
        """The inverse: write [H, R, K, D] into these rows of [B, H, K, D]."""
        target[rows] = self._order(state, join_pairs).transpose(0, 1)

    def _order(self, state: Tensor, change: Callable[[Tensor, int], Tensor]) -> Tensor:
        """Natural to fused order of keys, or back. Pope interleaves (cos, sin) per neuron, so it is split too."""
        return state if self.decay is not None else change(state, -2)

    def empty_state(self, rows: int) -> Tensor:
        """Zeros [H, R, K, D]."""
        return torch.zeros(
            self.shared.heads, rows, self.keys, self.shared.width, dtype=self.shared.sums
        )


def product(left: Tensor, right: Tensor, out: Tensor) -> Tensor:
    """left [R, C, K] times the matrix right [K, N], into out [R, C, N]; all contiguous (right may be a transpose)."""
    torch.mm(left.flatten(0, 1), right, out=out.view(-1, out.shape[-1]))
    return out


def add_outer(total: Tensor, left: Tensor, right: Tensor) -> None:
    """total [K, N] += left^T right over all rows and tokens, left [R, C, K], right [R, C, N]."""
    left, right = left.flatten(0, 1), right.flatten(0, 1)
    if total.dtype == left.dtype:
        total.addmm_(left.t(), right)
    else:
        total.add_(torch.mm(left.t(), right))


def add_state(state: Tensor, queries: Tensor, values: Tensor, factor: int = 1) -> None:
    """state [R, K, D] += factor q^T v, q [R, C, K], v [R, C, D]."""
    if state.dtype == queries.dtype:
        state.baddbmm_(queries.mT, values, alpha=factor)
    else:
        state.add_(torch.bmm(queries.mT, values), alpha=factor)
