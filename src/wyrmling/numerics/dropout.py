"""Dropout whose masks are a function of (seed, step, layer, global row, position tile), never of a history.

The backward pass can replay a mask, a resumed run draws the same ones, another number of processes draws the same
ones, and a cut in time does not change them: token t of a row lies in tile t // 64, and each tile has its own stream.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .keyed import WordStream, hash_int

TILE = 64
_RESOLUTION = 1 << 16


_buffers = threading.local()


def _stream(words: int) -> WordStream:
    """A stream with buffers of this thread's own, kept from call to call."""
    stream: WordStream | None = getattr(_buffers, "stream", None)
    if stream is None or stream.words != words:
        stream = _buffers.stream = WordStream(words)
    return stream


@dataclass(frozen=True)
class Dropout:
    """What decides the masks of one forward pass.

    Attributes:
        rate: probability of dropping, in [0, 1); rounded to a multiple of 2^-16, and `scale` uses the rounded rate,
            so that the expectation is exact.
        seed, step: the run's seed and the optimizer step.
        rows: the global row number of each row of the batch.
    """

    rate: float
    seed: int
    step: int
    rows: tuple[int, ...]

    @property
    def threshold(self) -> int:
        """The rate in units of 2^-16."""
        return min(round(self.rate * _RESOLUTION), _RESOLUTION - 1)

    @property
    def scale(self) -> float:
        """What kept values are multiplied by: 1 / (1 - rate)."""
        return _RESOLUTION / (_RESOLUTION - self.threshold)

    def mask(self, layer: int, position: Tensor, length: int, heads: int, neurons: int) -> Tensor:
        """Which values are kept.

        Args:
            position: int64 [B] on the CPU, the position of each row's first token.
        Returns: bool [H, B, T, N] on the CPU.
        """
        kept = torch.empty(heads, len(self.rows), length, neurons, dtype=torch.bool)
        values = TILE * heads * neurons
        stream = _stream(-(-values // 4))
        for index, (row, start) in enumerate(zip(self.rows, position.tolist(), strict=True)):
            for tile in range(start // TILE, (start + length - 1) // TILE + 1):
                first, last = max(start, tile * TILE), min(start + length, (tile + 1) * TILE)
                words = stream(hash_int("dropout", self.seed, self.step, layer, row, tile))
                draws = torch.from_numpy(words.view(np.int16)[:values]).view(TILE, heads, neurons)
                chosen = draws[first - tile * TILE : last - tile * TILE] >= self.threshold - _RESOLUTION // 2
                kept[:, index, first - start : last - start] = chosen.transpose(0, 1)
        return kept
