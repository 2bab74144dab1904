"""Token files, read through a memory map, and the splits that are cut from them.

What is read is compared with the hashes that a file holds: small files when they are opened, others chunk by chunk
when a token of it is first read.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..errors import DataError
from .format import (
    HEADER_BYTES,
    CheckedBytes,
    Header,
    damaged,
    documents_offset,
    hash_of,
    hashes_offset,
    on_disk,
    read_header,
)

_CHECKED_AT_ONCE = 1 << 24
"""Bytes of a token file that are compared with their hashes when it is opened: hundredths of a second."""


@dataclass(frozen=True)
class TokenStore:
    """The tokens of one corpus, read-only: a memory map of a token file, or arrays in memory.

    tokens: [count], the smallest unsigned width that holds vocab_size - 1 (int64 beyond 32 bits).
    document_starts: int64 [documents], ascending from 0; document i ends where document i + 1 starts.
    notes: what a person should know about the data.
    content: what the memory map shows, to be compared with its hashes; None in memory.
    """

    tokens: npt.NDArray[np.integer]
    document_starts: npt.NDArray[np.int64]
    header: Header
    notes: list[str] = field(default_factory=list)
    content: CheckedBytes | None = None

    def check(self, start: int, stop: int) -> None:
        """Make sure that the tokens start .. stop - 1 are those that were written; to be called before they are used.

        Raises:
            DataError: they are not; the file is set aside, so that it is built anew the next time.
        """
        if self.content is None or stop <= start:
            return
        width = self.tokens.itemsize
        try:
            self.content.check(start * width, stop * width)
        except DataError as error:
            if set_aside(self.content.path, self.content):
                reason = str(error).partition(": delete")[0]
                raise DataError(f"{reason}: it is set aside; run again, and it is built anew") from error
            raise

    @property
    def vocab_size(self) -> int:
        """Every token is below it."""
        return self.header["vocab_size"]

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True)
class Split:
    """A range of a store's tokens with a name: what an order and a loader work on.

    Positions count from its start.

    name: "train" or "validation"; part of the key of every random draw.
    where: the files, for error messages.
    """

    store: TokenStore
    start: int
    stop: int
    name: str
    where: str = "the given data"

    def __len__(self) -> int:
        return self.stop - self.start

    @property
    def tokens(self) -> npt.NDArray[np.integer]:
        """The tokens of the split, not copied, in the store's width."""
        return self.store.tokens[self.start : self.stop]

    @property
    def document_starts(self) -> npt.NDArray[np.int64]:
        """int64: where documents start, ascending from 0 (where the split may begin inside a document)."""
        starts = self.store.document_starts
        first, last = np.searchsorted(starts, [self.start + 1, self.stop])
        return np.concatenate([np.zeros(1, dtype=np.int64), starts[first:last] - self.start])

    def read(self, start: int, n: int) -> npt.NDArray[np.int64]:
        """A copy of the tokens start .. start+n-1, int64 [n].

        Raises:
            IndexError: the range leaves the split.
        """
        if start < 0 or n < 0 or start + n > len(self):
            raise IndexError(f"tokens {start}..{start + n - 1} of a {self.name} split of {len(self)} tokens")
        self.check_tokens(start, start + n)
        return self.tokens[start : start + n].astype(np.int64)

    def check_tokens(self, start: int, stop: int) -> None:
        """`TokenStore.check` of the tokens start .. stop - 1 of the split."""
        self.store.check(self.start + start, self.start + stop)

    def check(self, block_size: int) -> None:
        """Make sure that one full window and its targets fit.

        Raises:
            DataError: fewer than block_size + 1 tokens.
        """
        if len(self) <= block_size:
            advice = "use a smaller block_size or more text"
            if self.name == "validation":
                advice += ", a smaller dataset.train_split_ratio, or 1.0 to go without validation"
            raise DataError(
                f"{self.where}: the {self.name} split has {len(self)} tokens, but training.block_size = "
                f"{block_size} needs at least {block_size + 1}; {advice}"
            )


def open_store(path: Path) -> TokenStore:
    """Map a token file.

    Raises:
        DataError: missing, not a token file, of another version, or damaged.
    """
    header = read_header(path)
    mapped = np.asarray(np.memmap(path, np.uint8, "r"))
    borders = [HEADER_BYTES, documents_offset(header), hashes_offset(header)]
    hashes = mapped[borders[2] :].tobytes()
    if hash_of(hashes).hex() != header["hashes"]:
        raise damaged(path, "its hashes were altered")
    content = CheckedBytes(path, path.stat().st_ino, mapped[HEADER_BYTES : borders[2]], hashes)
    small = len(content.content) <= _CHECKED_AT_ONCE
    content.check(0 if small else borders[1] - HEADER_BYTES, len(content.content))
    width = np.dtype(header["dtype"]).itemsize
    tokens = mapped[HEADER_BYTES : HEADER_BYTES + header["count"] * width].view(on_disk(header["dtype"]))
    starts = mapped[borders[1] : borders[2]].view("<i8")
    return TokenStore(tokens, starts, header, list(header["notes"]), content)


def set_aside(path: Path, opened: CheckedBytes | None = None) -> bool:
    """Give what stands in the place of a token file another name; whether that was possible.

    Args:
        opened: do so only if it is this file, and not what another process has built there since.
    """
    with contextlib.suppress(OSError):
        if opened is None or path.stat().st_ino == opened.inode:
            os.replace(path, path.with_name(f"{path.name}.damaged"))
            return True
    return False
