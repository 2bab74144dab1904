"""Dropout whose masks are a function of (seed, step, layer, global row, position tile), never of a history.

The backward pass can replay a mask, a resumed run draws the same ones, another number of processes draws the same
ones, and a cut in time does not change them: token t of a row lies in tile t // 64, and each tile has its own stream.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .keyed import WordStream, hash_int

TILE = 64
_RESOLUTION = 1 << 16
# Words that are drawn at a time. One thread is fastest where they stay in its cache; two get into each other's way
# less the longer each works on its own, and two megabytes are enough for that.
_PIECE = 1 << 16
_SHARED_PIECE = 1 << 18


_buffers = threading.local()


def _stream(words: int) -> WordStream:
    """A stream of `words` words or more with buffers of this thread's own, kept from call to call."""
    stream: WordStream | None = getattr(_buffers, "stream", None)
    if stream is None or stream.words < words:
        stream = _buffers.stream = WordStream(words)
    return stream


@cache
def _helper() -> ThreadPoolExecutor:
    """A second thread that draws: NumPy works outside the interpreter's lock."""
    return ThreadPoolExecutor(1, "dropout")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_helper.cache_clear)  # threads do not survive a fork


@dataclass(frozen=True)
class _Piece:
    """Some tokens of a row that lie in one tile, or some whole tiles; and where their mask goes.

    Attributes:
        keys: of the tiles' streams.
        first: number of the first token within its tile.
        kept: bool [t, H, N], a view of the mask.
    """

    keys: tuple[int, ...]
    first: int
    kept: npt.NDArray[np.bool_]

    def draw(self, least: int, halves: bool) -> None:
        """Keep where the 16 random bits of a value, as a signed number, are `least` or more."""
        tokens, heads, neurons = self.kept.shape
        begin, values = self.first * heads * neurons, self.kept.size
        word = begin // 4
        # whole tiles are whole words
        count = -(-(begin + values // len(self.keys)) // 4) - word
        words = _stream(count * len(self.keys))(*self.keys, first=word, count=count)
        if not halves:
            draws = words.view(np.int16)[begin - 4 * word :][:values]
            np.greater_equal(draws.reshape(self.kept.shape), np.int16(least), out=self.kept)
            return
        # Two neighbours are one 32-bit number, whose upper half alone decides its comparison with a number
        # whose lower half is zero.
        pairs = words.view(np.int32)[begin // 2 - 2 * word :][: values // 2].reshape(
            tokens, heads, neurons // 2
        )
        threshold = np.int32(least * _RESOLUTION)
        np.greater_equal(pairs, threshold, out=self.kept[..., neurons // 2 :])
        np.left_shift(pairs, np.int32(16), out=pairs)
        np.greater_equal(pairs, threshold, out=self.kept[..., : neurons // 2])


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

    def mask(
        self,
        layer: int,
        position: Tensor,
        length: int,
        heads: int,
        neurons: int,
        *,
        halves: bool = False,
    ) -> Tensor:
        """Which values are kept.

        Args:
            position: int64 [B] on the CPU, the position of each row's first token.
            halves: order the neurons 0, 2, 4, ..., 1, 3, 5, ... instead of 0, 1, 2, ...
        Returns: bool [H, B, T, N] on the CPU.
        Raises:
            ValueError: halves of an odd number of neurons.
        """
        if halves and neurons % 2:
            raise ValueError(f"{neurons} neurons have no halves")
        kept = torch.empty(heads, len(self.rows), length, neurons, dtype=torch.bool)
        places = kept.numpy().transpose(1, 2, 0, 3)
        threads = min(torch.get_num_threads(), 2)
        words = _PIECE if threads == 1 else _SHARED_PIECE
        pieces = deque(self._pieces(layer, position.tolist(), places, words))

        def work() -> None:
            while pieces:
                try:
                    piece = pieces.popleft()
                except IndexError:  # the other thread took the last one
                    return
                piece.draw(self.threshold - _RESOLUTION // 2, halves)

        if threads > 1 and len(pieces) > 1:
            other = _helper().submit(work)
            work()
            other.result()
        else:
            work()
        return kept

    def _pieces(
        self, layer: int, position: list[int], kept: npt.NDArray[np.bool_], words: int
    ) -> Iterator[_Piece]:
        """Cut bool [B, T, H, N] into pieces of one row and of about `words` words each."""
        _, length, heads, neurons = kept.shape
        most = max(1, 4 * words // (heads * neurons))  # tokens
        for row, start, row_kept in zip(self.rows, position, kept, strict=True):
            begin, stop = start, start + length
            while begin < stop:
                tile, first = divmod(begin, TILE)
                tiles = 1 if first else max(1, min(most, stop - begin) // TILE)
                end = min(begin + most, (tile + tiles) * TILE, stop)
                keys = (
                    hash_int("dropout", self.seed, self.step, layer, row, number)
                    for number in range(tile, tile + tiles)
                )
                yield _Piece(tuple(keys), first, row_kept[begin - start : end - start])
                begin = end
