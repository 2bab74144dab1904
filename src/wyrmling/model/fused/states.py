"""The states between chunks, found again in the backward pass.

Rolled back: S before a chunk is S after it minus what the chunk wrote. Exact to rounding, needs no memory, and is
impossible where the state decays (it would divide by d^C). Otherwise every k-th state is kept by the forward pass, and
the k states from there on are made again when the backward pass comes to them.
"""

from __future__ import annotations

from torch import Tensor

from .call import LayerCall, Tile, add_state, product
from .forward import write_past


class StatesBefore:
    """Asked for chunk after chunk, last one first: the state before it, for some heads.

    Args:
        initial: the state before the first chunk [H, R, K, D] in the fused order, or None (empty).
        kept: states before certain chunks.
        chunks: their number.
    """

    def __init__(
        self,
        call: LayerCall,
        hidden: Tensor,
        rows: slice,
        initial: Tensor | None,
        kept: dict[int, Tensor],
        chunks: int,
    ) -> None:
        self._call, self._hidden, self._rows, self._chunks = call, hidden, rows, chunks
        self._initial, self._kept = initial, kept
        self._rolling = kept[chunks - 1].clone() if not call.plan.keep_every and chunks > 1 else None
        self._segment: dict[int, Tensor | None] = {}

    def enter(self, chunk: int) -> None:
        """Before the tiles of a chunk are asked for: make its segment's states where they are not there yet."""
        if self._rolling is None and chunk not in self._segment:
            self._segment = self._run_forward(chunk)

    def __call__(self, tile: Tile, q: Tensor) -> Tensor | None:
        """The state [G R, K, D] before the tile; None is the empty one. q [G R, C, K]: the tile's keys."""
        if tile.chunk == 0:
            state = self._initial
        elif self._rolling is None:
            state = self._segment[tile.chunk]
        else:
            state = self._rolling
            if tile.chunk < self._chunks - 1:
                add_state(state[tile.heads].flatten(0, 1), q, tile.by_head, -1)
        return None if state is None else state[tile.heads].flatten(0, 1)

    def _run_forward(self, last: int) -> dict[int, Tensor | None]:
        """The states before the chunks of the segment that ends with chunk `last`."""
        call = self._call
        first = last - last % max(1, call.plan.keep_every)
        state = self._kept[first] if first else self._initial
        states: dict[int, Tensor | None] = {first: state}
        for chunk in range(first, last):
            rows = self._rows.stop - self._rows.start
            state = call.empty_state(rows) if state is None else state.clone()
            for tile in call.tiles(self._hidden, self._rows, chunk, masks=False):
                x = product(tile.values, call.matrices.encoder[tile.heads], call.buffer("x", tile))
                q = call.encoding.fire(x, call.x_threshold, tile.phases, call.buffer("q", tile, call.keys))
                write_past(tile, q.flatten(0, 1), state[tile.heads].flatten(0, 1))
            states[chunk + 1] = state
        return states
