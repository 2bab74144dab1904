"""The streaming order: documents read from end to end, so that a state can live from one optimizer step to the next.

As in `order.py`, what a row reads at a step is a pure function of (seed, split, step, row); nothing is remembered.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from ..numerics.keyed import KeyedPermutation, hash_int
from .order import Rows, Windows, check_rows

Positions = npt.NDArray[np.int64]
_GROUP = 16
_PORTION = _GROUP << 12


@dataclass(frozen=True)
class Documents:
    """What is read as one document each, from an empty state.

    Attributes:
        starts: int64 [documents], first token, relative to the split.
        targets: int64 [documents], how many tokens are predicted in each, at least 1.
    """

    starts: Positions
    targets: Positions

    def __len__(self) -> int:
        return len(self.starts)

    def take(self, numbers: Positions) -> Documents:
        """Those with these numbers, in this order."""
        return Documents(self.starts[numbers], self.targets[numbers])

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
        if n_tokens < 2:
            raise ValueError(f"{n_tokens} tokens hold no target in any document")
        if shortest is not None and len(starts) == 1:
            return Documents.cut(n_tokens, shortest)
        if shortest is not None:
            starts = _joined(starts, shortest)
        targets = np.diff(starts, append=n_tokens) - 1
        if not targets.all():
            starts, targets = starts[targets > 0], targets[targets > 0]
        if not len(starts):
            raise ValueError(f"{n_tokens} tokens hold no target in any document")
        return Documents(starts, targets)

    @staticmethod
    def cut(n_tokens: int, piece: int) -> Documents:
        """A text of at least two tokens in pieces of `piece` targets: each target once, whatever documents it has."""
        starts = np.arange(0, n_tokens - 1, piece, dtype=np.int64)
        return Documents(starts, np.minimum(piece, n_tokens - 1 - starts))


def _joined(starts: Positions, shortest: int) -> Positions:
    """The starts that are left when documents are joined until each has `shortest` tokens; the last may have fewer."""
    following = np.searchsorted(starts, starts + shortest).data
    kept, place = bytearray(len(starts)), 0
    while place < len(starts):
        kept[place] = 1
        place = following[place]
    return starts[np.frombuffer(kept, dtype=np.bool_)]


class Blocks:
    """Documents cut into blocks of at most `block_size` targets, the last of each short; numbered in order.

    Attributes:
        count: of all documents.
    """

    def __init__(self, documents: Documents, block_size: int) -> None:
        self._documents, self._block_size = documents, block_size
        self._ends = np.cumsum(-(-documents.targets // block_size))
        self.count = int(self._ends[-1])

    def take(self, numbers: Positions) -> Documents:
        """The blocks with these numbers, each as a document of its own."""
        document = np.searchsorted(self._ends, numbers, side="right")
        behind = self._ends[document] - numbers  # blocks up to the document's end, this one included
        blocks = -(-self._documents.targets[document] // self._block_size)
        offset = (blocks - behind) * self._block_size
        lengths = np.minimum(self._block_size, self._documents.targets[document] - offset)
        return Documents(self._documents.starts[document] + offset, lengths)


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
        self.count = sum(int(self._blocks(portion).sum()) for portion in _portions(len(documents)))
        self.steps_per_epoch = -(-self.count // global_rows)
        self._key = hash_int("streaming windows", seed, split_name)
        self._of_epoch = lru_cache(maxsize=2)(self._deal)

    def _blocks(self, documents: Positions) -> Positions:
        return -(-self._documents.targets[documents] // self.block_size)

    def _deal(self, epoch: int) -> tuple[KeyedPermutation, Positions]:
        """The order of an epoch's documents, and the blocks before each group of `_GROUP` of them: a number for each
        document would be most of what a corpus of short documents needs in memory.
        """
        permutation = KeyedPermutation(len(self._documents), self._key, "documents", epoch)
        blocks = [
            np.add.reduceat(self._blocks(permutation(places)), np.arange(0, len(places), _GROUP))
            for places in _portions(len(self._documents))
        ]
        return permutation, np.cumsum([0, *np.concatenate(blocks)])

    def windows(self, step: int, rows: Rows) -> Windows:
        """Windows of `rows` at `step`.

        Raises:
            ValueError: a row outside [0, global_rows).
        """
        check_rows(rows, self.global_rows)
        epoch, step_in_epoch = divmod(step, self.steps_per_epoch)
        permutation, before = self._of_epoch(epoch)
        blocks = rows * self.count // self.global_rows + step_in_epoch
        real = blocks < (rows + 1) * self.count // self.global_rows
        blocks = np.where(real, blocks, 0)
        group = np.searchsorted(before, blocks, side="right") - 1
        places = group[:, None] * _GROUP + np.arange(_GROUP)  # [R, _GROUP]
        within = places < len(self._documents)
        members = permutation(np.where(within, places, 0))
        sizes = np.where(within, self._blocks(members), 0)
        ends = before[group, None] + np.cumsum(sizes, axis=1)
        chosen = np.arange(len(rows)), (ends <= blocks[:, None]).sum(axis=1)
        document = members[chosen]
        block = blocks - (ends[chosen] - sizes[chosen])
        offset = block * self.block_size
        starts = self._documents.starts[document] + offset
        lengths = np.minimum(self.block_size, self._documents.targets[document] - offset)
        reset = (block == 0) | (step_in_epoch == 0) | ~real
        return Windows(np.where(real, starts, 0), np.where(real, lengths, 0), reset)


def _portions(count: int) -> Iterator[Positions]:
    """0 .. count - 1, a few at a time: whole groups each."""
    for start in range(0, count, _PORTION):
        yield np.arange(start, min(start + _PORTION, count))
