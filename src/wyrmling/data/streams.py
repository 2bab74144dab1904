"""The streaming order: documents read from end to end, so that a state can live from one optimizer step to the next.

As in `order.py`, what a row reads at a step is a pure function of (seed, split, step, row); nothing is remembered.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from ..numerics.keyed import KeyedPermutation, hash_int
from .order import Rows, Windows, check_rows

Positions = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Documents:
    """What is read as one document each.

    Attributes:
        starts: int64 [documents], first token, relative to the split.
        targets: int64 [documents], how many tokens are predicted in each; none is 0.
    """

    starts: Positions
    targets: Positions

    @staticmethod
    def of(document_starts: Positions, n_tokens: int, shortest: int | None = None) -> Documents:
        """The documents of a split.

        A document's first token is no target: nothing that belongs to it comes before. Documents of a single token
        hold no target, and are left out.

        Args:
            document_starts: ascending from 0.
            n_tokens: of the split.
            shortest: tokens that a document has at least: shorter ones are read as one with what follows. A split that
                is one document is cut into pieces of so many tokens instead, each of which also predicts the first
                token of the next.
        Raises:
            ValueError: no target at all.
        """
        starts = np.asarray(document_starts, dtype=np.int64)
        if shortest is not None and len(starts) == 1:
            pieces = np.arange(0, max(n_tokens - 1, 0), shortest, dtype=np.int64)
            return Documents(pieces, np.minimum(shortest, n_tokens - 1 - pieces))._checked(n_tokens)
        if shortest is not None:
            starts = _joined(starts, n_tokens, shortest)
        targets = np.diff(starts, append=n_tokens) - 1
        return Documents(starts[targets > 0], targets[targets > 0])._checked(n_tokens)

    def _checked(self, n_tokens: int) -> Documents:
        if not len(self.starts):
            raise ValueError(f"{n_tokens} tokens hold no target in any document")
        return self


def _joined(starts: Positions, n_tokens: int, shortest: int) -> Positions:
    """The starts that are left when documents are joined until each has `shortest` tokens; the last may have fewer."""
    kept = [0]
    for start in starts[1:].tolist():
        if start - kept[-1] >= shortest:
            kept.append(start)
    return np.array(kept, dtype=np.int64)


class StreamingWindows:
    """Documents in permuted order, cut into blocks, the list of blocks dealt to rows in contiguous shares.

    A document of m targets has ceil(m / T) blocks, the last one short. With W blocks in all, row r reads the blocks
    floor(r W / R) .. floor((r + 1) W / R) - 1, one per step of an epoch: shares that differ by one block at most; the
    last step of a shorter share is padding. So a row reads document after document, each from end to end, except where
    a share begins or ends inside one. `reset` is true where a row's own document begins, and where its share does; rows
    need not agree. Each epoch deals the documents anew.

    Attributes:
        count: W, blocks per epoch.
        steps_per_epoch: blocks of the longest share, ceil(W / R).
    """

    def __init__(
        self, documents: Documents, block_size: int, global_rows: int, seed: int, split_name: str
    ) -> None:
        if block_size < 1 or global_rows < 1:
            raise ValueError(f"block_size and global_rows are at least 1, got {block_size} and {global_rows}")
        self.block_size, self.global_rows = block_size, global_rows
        self._documents = documents
        self._blocks = -(-documents.targets // block_size)
        self.count = int(self._blocks.sum())
        self.steps_per_epoch = -(-self.count // global_rows)
        self._key = hash_int("streaming windows", seed, split_name)
        self._of_epoch = lru_cache(maxsize=2)(self._deal)

    def _deal(self, epoch: int) -> tuple[Positions, Positions]:
        """The documents of an epoch in their order, and for each how many blocks lie before its end."""
        permutation = KeyedPermutation(len(self._blocks), self._key, "documents", epoch)
        order = permutation(np.arange(len(self._blocks)))
        return order, np.cumsum(self._blocks[order])

    def windows(self, step: int, rows: Rows) -> Windows:
        """Windows of `rows` at `step`.

        Raises:
            ValueError: a row outside [0, global_rows).
        """
        check_rows(rows, self.global_rows)
        epoch, step_in_epoch = divmod(step, self.steps_per_epoch)
        order, ends = self._of_epoch(epoch)
        blocks = rows * self.count // self.global_rows + step_in_epoch
        real = blocks < (rows + 1) * self.count // self.global_rows
        place = np.searchsorted(ends, np.where(real, blocks, 0), side="right")
        document = order[place]
        within = np.where(real, blocks, 0) - (ends[place] - self._blocks[document])
        offset = within * self.block_size
        starts = self._documents.starts[document] + offset
        lengths = np.minimum(self.block_size, self._documents.targets[document] - offset)
        reset = (within == 0) | (step_in_epoch == 0) | ~real
        return Windows(np.where(real, starts, 0), np.where(real, lengths, 0), reset)
