"""Cosines and sines of the fused layers: in the products' type, one entry per pair of neurons, kept between steps."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor

from ...numerics.positions import PhaseTable

# Beyond this tables are made anew for each chunk: a product per entry, shared by all rows and heads.
KEPT_BYTES, KEPT_TABLES = 64 << 20, 16


class Phases:
    """Asks a `PhaseTable`, and remembers the last answers: layers, passes and training steps ask for the same ones."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[object, ...], tuple[Tensor, Tensor]] = OrderedDict()
        self._table: PhaseTable | None = None
        self._bytes = 0

    def __reduce__(self) -> tuple[type[Phases], tuple[()]]:
        # tables are made again where they are needed: copies and pickles do without
        return Phases, ()

    def __call__(
        self, table: PhaseTable, start: Tensor, length: int, entries: int, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        """cos and sin, [1 or B, length, entries], of positions start .. start+length-1.

        Args:
            start: int64 [B] on the CPU. Rows that start together share one table.
            entries: how many of the frequencies (the first ones) are wanted.
        """
        if table is not self._table:  # other frequencies
            self._kept.clear()
            self._table, self._bytes = table, 0
        together = bool((start == start[0]).all())
        key = (int(start[0]), length, entries, dtype)
        if together and key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        with torch.inference_mode(False), torch.no_grad():
            wide = torch.float64 if dtype == torch.float64 else torch.float32
            rotor = table(start[:1] if together else start, length, wide, torch.device("cpu"))
            rotor = rotor[..., :entries].reshape(-1, length, entries)
            pair = rotor.real.to(dtype).contiguous(), rotor.imag.to(dtype).contiguous()
        size = 2 * pair[0].nbytes
        if together and size <= KEPT_BYTES:
            self._kept[key] = pair
            self._bytes += size
            while self._bytes > KEPT_BYTES or len(self._kept) > KEPT_TABLES:
                _, (cos, _) = self._kept.popitem(last=False)
                self._bytes -= 2 * cos.nbytes
        return pair
