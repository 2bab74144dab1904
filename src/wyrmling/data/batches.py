"""Batches: what the windows of an order read from a split, as tensors."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..errors import DataError
from .order import IGNORED, Order, Rows, Windows
from .prefetch import Prefetcher
from .store import Split

PADDING = 0
"""The input token of a position without a target; whatever it is, nothing learns from it."""


@dataclass
class Batch:
    """Some rows of the global batch of one optimizer step.

    step: the optimizer step, from 0.
    rows: int64 [R], global row numbers.
    tokens: int64 [R, T], inputs.
    targets: int64 [R, T], the token after each input, or IGNORED where there is none.
    target_count: targets that are not ignored.
    reset: bool [R], rows in which a carried state starts anew; None where no state is carried between steps.
    """

    step: int
    rows: Tensor
    tokens: Tensor
    targets: Tensor
    target_count: int
    reset: Tensor | None = None

    def digest(self) -> str:
        """16 hexadecimal digits that tell this batch (step, rows, contents) from any other."""
        digest = hashlib.blake2b(self.step.to_bytes(8, "little"), digest_size=8)
        for tensor in (self.rows, self.tokens, self.targets, self.reset):
            if tensor is not None:
                digest.update(str(tuple(tensor.shape)).encode())
                digest.update(tensor.contiguous().cpu().numpy().data)
        return digest.hexdigest()


class BatchLoader:
    """Makes the batches that an order asks for: any step, at any time, from any thread. It keeps nothing."""

    def __init__(self, split: Split, order: Order, block_size: int) -> None:
        self.split = split
        self.order = order
        self.block_size = block_size

    def batch(self, step: int, rows: Iterable[int] | Rows) -> Batch:
        """The given global rows of the batch of `step`.

        Raises:
            ValueError: the order asks for tokens outside the split, or for windows longer than a block.
            DataError: the token file was altered.
        """
        numbers = np.array(rows if isinstance(rows, range | np.ndarray) else list(rows), dtype=np.int64)
        windows = self.order.windows(step, numbers)
        tokens, targets = gather(self.split, windows, self.block_size)
        reset = None if windows.reset is None else torch.from_numpy(windows.reset.copy())
        return Batch(
            step,
            torch.from_numpy(numbers),
            torch.from_numpy(tokens),
            torch.from_numpy(targets),
            int(windows.lengths.sum()),
            reset,
        )

    def prefetching(
        self, first_step: int, row_groups: Sequence[range], depth: int, *, stop: int | None = None
    ) -> Prefetcher[list[Batch]]:
        """The batches of the steps from `first_step` on: for each a list with one batch per group of rows.

        Close the iterator (a `with` block does) when it is not read to its end.

        Args:
            row_groups: the global rows of each micro-batch.
            depth: how many steps a thread makes ahead; 0 makes them when they are asked for.
            stop: the step to stop before; without it there is no end.
        """

        def make(step: int) -> list[Batch]:
            return [self.batch(step, rows) for rows in row_groups]

        return Prefetcher(make, first_step, stop, depth)


def gather(
    split: Split, windows: Windows, block_size: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Inputs and targets [R, block_size] of windows: one contiguous copy per row, then masks for what they leave empty.

    Raises:
        ValueError, DataError: as `BatchLoader.batch`.
    """
    starts, lengths, source = windows.starts, windows.lengths, split.tokens
    stops = starts + lengths + 1
    if len(starts) and (starts.min() < 0 or stops[lengths > 0].max(initial=0) > len(source)):
        raise ValueError(f"windows reach {stops.max()}, the split has {len(source)} tokens")
    if len(lengths) and (lengths.min() < 0 or lengths.max() > block_size):
        raise ValueError(f"windows of up to {lengths.max()} tokens do not fit blocks of {block_size}")
    read = np.full((len(starts), block_size + 1), PADDING, dtype=np.int64)
    for row, (start, stop) in enumerate(zip(starts.tolist(), stops.tolist(), strict=True)):
        if stop > start + 1:
            split.check_tokens(start, stop)
            read[row, : stop - start] = source[start:stop]
    if read.size and read.max() >= split.store.vocab_size:
        raise DataError(
            f"{split.where}: its tokens were altered while they were read (token {read.max()} is outside the "
            "vocabulary); run again"
        )
    tokens, targets = read[:, :-1].copy(), read[:, 1:].copy()
    if len(lengths) and lengths.min() < block_size:
        empty = np.arange(block_size) >= lengths[:, None]
        tokens[empty] = PADDING
        targets[empty] = IGNORED
    return tokens, targets
