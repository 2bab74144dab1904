"""Which tokens row r of optimizer step k reads: pure functions of (seed, split, k, row).

Nothing here remembers anything. A resumed run needs its step counter and no generator; another number of
processes, or another split of the batch into micro-batches, asks for other rows of the same global batch
and gets the same windows. `row` is always the number of a row of the *global* batch (batch_size x
accumulation x replicas).

A window at `start` of `length` reads the tokens start .. start+length: inputs are the first `length` of them,
targets the last `length`. So a split of n tokens has the n - 1 targets 1 .. n-1; token 0 is never a target.

1. `RandomWindows`: starts drawn uniformly, with replacement, from every legal start.
2. `EpochWindows`: every target exactly once per epoch, in permuted windows whose borders move between epochs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ..numerics.keyed import KeyedPermutation, hash_int, hash_key, uniform_integers
from ..numerics.targets import IGNORED as IGNORED

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Windows:
    """What the asked rows read at one step.

    starts: int64 [R], first token of each window, relative to the split.
    lengths: int64 [R], number of targets, 0 <= length <= block_size; 0 means that the row is all padding.
    reset: bool [R], rows in which a carried state starts anew, for the window does not continue the row's
        previous one; None where windows do not follow one another and no state is carried at all.
    """

    starts: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]
    reset: npt.NDArray[np.bool_] | None = None


class Order(Protocol):
    """A pure function from (step, rows) to windows."""

    def windows(self, step: int, rows: Rows) -> Windows:
        """The windows of `rows` (int64 [R], global row numbers) at optimizer step `step` (from 0)."""
        ...


def _check_sizes(n_tokens: int, block_size: int) -> None:
    if block_size < 1:
        raise ValueError(f"block_size must be at least 1, got {block_size}")
    if n_tokens < 2:
        raise ValueError(f"{n_tokens} tokens hold no target: at least 2 are needed")


def check_rows(rows: Rows, total: int) -> None:
    """Raises ValueError for a row outside [0, total), which would read what belongs to another."""
    if len(rows) and (rows.min() < 0 or rows.max() >= total):
        raise ValueError(f"rows {rows.min()}..{rows.max()} lie outside a batch of {total} rows")


class RandomWindows:
    """Full windows at starts hashed from (seed, split, step, row): uniform over every legal start.

    The legal starts are 0 .. n_tokens - block_size - 1, both included.

    Raises:
        ValueError: n_tokens < block_size + 1, so that no full window exists.
    """

    def __init__(self, n_tokens: int, block_size: int, seed: int, split_name: str) -> None:
        _check_sizes(n_tokens, block_size)
        self.starts = n_tokens - block_size
        if self.starts < 1:
            raise ValueError(f"{n_tokens} tokens hold no window of {block_size} tokens and their targets")
        self.block_size = block_size
        self._key = hash_int("random windows", seed, split_name)

    def windows(self, step: int, rows: Rows) -> Windows:
        """Windows of `rows` at `step`; every length is block_size."""
        starts = uniform_integers(hash_key(self._key, step, rows), self.starts)
        return Windows(starts, np.full(len(rows), self.block_size, dtype=np.int64))


class EpochWindows:
    """Each target exactly once per epoch; the windows do not overlap, move between epochs, and come permuted.

    With T = block_size and m = n_tokens - 1 targets, the windows of an epoch are cut by the length f of the
    first one (1 <= f <= T, hashed from the epoch): targets 1..f, then f+1..f+T, and so on; the last takes
    what is left. They are 1 + ceil((m - f) / T) in number. The number must not change between epochs, or
    the step would not tell the epoch. With q, R = divmod(m, T), m - f = q T + (R - f), so it is

        1 + q + ceil((R - f) / T), which is q + 1 exactly when -T < R - f <= 0, that is R <= f <= T - 1 + R.

    Together with 1 <= f <= T this allows f in [R, T] when R > 0 (f = T is the cut that is not shifted: the
    first window is full) and f in [1, T - 1] when R = 0: always q + 1 windows, none of them empty.
    Where m < 2 T or T = 1 nothing is shifted, f = min(T, m), and the number ceil(m / T) is constant too.

    Step k belongs to epoch e = k // steps_per_epoch. With j = k % steps_per_epoch, row r takes the window
    at place j * global_rows + r of the epoch's keyed permutation; places beyond the last window, in the
    epoch's last step, are padding.

    Attributes:
        count: windows per epoch.
        steps_per_epoch: ceil(count / global_rows).
    """

    def __init__(self, n_tokens: int, block_size: int, global_rows: int, seed: int, split_name: str) -> None:
        _check_sizes(n_tokens, block_size)
        if global_rows < 1:
            raise ValueError(f"global_rows must be at least 1, got {global_rows}")
        self.block_size = block_size
        self.global_rows = global_rows
        self.targets = n_tokens - 1
        rest = self.targets % block_size
        if self.targets < 2 * block_size or block_size == 1:
            self._shortest = self._longest = min(block_size, self.targets)
        elif rest:
            self._shortest, self._longest = rest, block_size
        else:
            self._shortest, self._longest = 1, block_size - 1
        self.count = 1 - (self._longest - self.targets) // block_size
        self.steps_per_epoch = -(-self.count // global_rows)
        self._key = hash_int("epoch windows", seed, split_name)
        self._of_epoch = lru_cache(maxsize=2)(self._draw)

    def first_length(self, epoch: int) -> int:
        """Targets in the first window of `epoch`: the cut that moves all later borders."""
        choices = self._longest - self._shortest + 1
        draw = uniform_integers(hash_key(self._key, "first length", epoch), choices)
        return self._shortest + int(draw)

    def _draw(self, epoch: int) -> tuple[int, KeyedPermutation]:
        return self.first_length(epoch), KeyedPermutation(self.count, self._key, "permutation", epoch)

    def windows(self, step: int, rows: Rows) -> Windows:
        """Windows of `rows` at `step`.

        Raises:
            ValueError: a row outside [0, global_rows), which would repeat another step's window.
        """
        check_rows(rows, self.global_rows)
        epoch, step_in_epoch = divmod(step, self.steps_per_epoch)
        first, permutation = self._of_epoch(epoch)
        places = step_in_epoch * self.global_rows + rows
        real = places < self.count
        number = permutation(np.where(real, places, 0))
        starts = np.where(number == 0, 0, first + (number - 1) * self.block_size)
        lengths = np.minimum(np.where(number == 0, first, self.block_size), self.targets - starts)
        return Windows(np.where(real, starts, 0), np.where(real, lengths, 0))
