"""The contract of a source: documents as a stream of small pieces, never a whole corpus in memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np

from ...errors import DataError
from ...files import sha256_of
from .cutting import cut
from .files import InputFile
from .tally import Tally, counted, listed

PIECE_TOKENS = 1 << 20
"""The most tokens in one piece of a pretokenized source."""

READER_VERSION = 2
"""Part of every signature; raised when the same files would give other pieces than before."""


def _no_borders() -> np.ndarray:
    return np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Piece:
    """A part of a document, or several documents in a row: millions of short ones come as few pieces. A document is one
    piece or several in a row, of at most about 1 MiB each; of a piece with borders, only what stands before the first
    and after the last may belong to a document that reaches beyond the piece.

    Pieces of text end after a line end, or anywhere when a line is longer than a piece, but never between
    CR and LF and never inside a character when the bytes are valid UTF-8.
    """

    data: bytes | np.ndarray
    """UTF-8 bytes (not checked), or int64 token ids [n]; never empty."""
    starts_document: bool
    origin: str
    """Where it comes from, for error messages: a file, or a file and a line."""
    offset: int
    """Offset of the first byte (or token) of `data` in what `origin` names, decompressed and as UTF-8."""
    borders: np.ndarray = field(default_factory=_no_borders)
    """Where in `data` further documents start, int64, ascending; none at 0."""

    @property
    def documents(self) -> int:
        """How many documents start in it."""
        return self.starts_document + len(self.borders)

    def alone(self) -> Iterator[Piece]:
        """The same, a piece for each document."""
        if not len(self.borders):
            yield self
            return
        for start, stop in pairwise((0, *self.borders.tolist(), len(self.data))):
            starts = self.starts_document or start > 0
            yield Piece(self.data[start:stop], starts, self.origin, self.offset + start)


class Source(ABC):
    """Where text (or tokens) comes from. Passes are repeatable: `pieces` gives the same every time it is
    called.

    `separator` (bytes of UTF-8, none at first) is what stands between documents: see `separated`.

    Args:
        kind: the `type` of the dataset table.
        files: the files read, in order.
        settings: everything else that decides what `pieces` gives; JSON values, no secrets.
        notes: what opening the source brought up.
    """

    def __init__(
        self, kind: str, files: Sequence[InputFile], settings: Mapping[str, Any], notes: Iterable[str] = ()
    ) -> None:
        self.kind = kind
        self.files = tuple(files)
        self._settings = dict(settings)
        self.opening_notes = tuple(notes)
        self.separator = b""
        self._tally = Tally()

    @property
    def notes(self) -> list[str]:
        """What a person should know: from opening the source, then from the last (or running) pass."""
        return [*self.opening_notes, *self._tally.sentences()]

    def reading_notes(self, documents: int) -> list[str]:
        """What the last pass read, in one line of numbers, and what a person should know of it: this stays with the
        tokens that are kept.

        Args:
            documents: how many there are (a file of token ids may hold many).
        """
        line = self._tally.line([file.name for file in self.files], documents)
        return [line, *self._tally.sentences()]

    @property
    def total_bytes(self) -> int | None:
        """Bytes that a pass will read, for a progress bar; None when it cannot be told without reading."""
        if any(file.compressed for file in self.files):
            return None
        return sum(file.size() for file in self.files)

    def signature(self, digests: Sequence[str] | None = None) -> dict[str, Any]:
        """What identifies the text: kind, settings, what is in each file, and how it is read; not where it lies.

        Args:
            digests: SHA-256 of the files, hexadecimal, where they are known; else they are read.
        """
        if digests is None:
            digests = [sha256_of(file.path) for file in self.files]
        return {
            "type": self.kind,
            "reader": READER_VERSION,
            **self._settings,
            "separator": self.separator.decode(),
            "files": [
                {"sha256": digest, "suffixes": file.path.suffixes, "encoding": file.encoding}
                for file, digest in zip(self.files, digests, strict=True)
            ],
        }

    def pieces(self) -> Iterator[Piece]:
        """One pass over the documents, in a fixed order, in bounded memory.

        Raises:
            DataError: a file is missing, damaged or malformed, or there is no document at all (at the end).
            StorageError: the system refuses to let a file be read.
        """
        self._tally = tally = Tally()

        def read() -> Iterator[Piece]:
            for piece in self._read(tally):
                tally.documents += piece.documents
                if isinstance(piece.data, bytes):
                    tally.count_text(piece.data)
                else:
                    tally.token_ids += len(piece.data)
                yield piece

        yield from separated(read(), self.separator, tally)
        if not tally.documents:
            raise DataError(self._emptiness(tally))

    @abstractmethod
    def _read(self, tally: Tally) -> Iterator[Piece]:
        """The pieces of one pass; empty documents are counted in `tally`, not given out."""

    def _emptiness(self, tally: Tally) -> str:
        where = listed([file.name for file in self.files])
        reasons = []
        if tally.empty_documents:
            reasons.append(f"{counted(tally.empty_documents, 'document')}, all empty")
        if tally.skipped:
            reasons.append(tally.skips())
        return f"{where}: nothing to train on ({'; '.join(reasons) or 'no documents'})"


def separated(pieces: Iterable[Piece], separator: bytes, tally: Tally) -> Iterator[Piece]:
    """The same documents with `separator` at the end of each that another one follows and that does not end with it.

    So it is text of the document before, what learns a vocabulary sees it, and a single document stays as it is.
    Documents of token ids stay as they are.
    """
    if not separator:
        yield from pieces
        return
    held: Piece | None = None
    tail = b""
    for piece in _open_to(separator, pieces):
        if held is not None:
            if piece.starts_document and isinstance(held.data, bytes) and held.data and tail != separator:
                held = replace(held, data=held.data + separator)
                tally.separated, tally.separator = tally.separated + 1, separator
            yield held
        if isinstance(piece.data, bytes):
            last = piece.data[int(piece.borders[-1]) :] if len(piece.borders) else piece.data
            end = last[-len(separator) :]
            tail = end if piece.documents else (tail + end)[-len(separator) :]
        held = piece
    if held is not None:
        yield held


def _open_to(separator: bytes, pieces: Iterable[Piece]) -> Iterator[Piece]:
    """The same documents, those that do not end with `separator` at the end of a piece."""
    for piece in pieces:
        if isinstance(piece.data, bytes) and len(piece.borders):
            data, ends = np.frombuffer(piece.data, dtype=np.uint8), piece.borders - len(separator)
            if ends[0] < 0 or not all((data[ends + at] == byte).all() for at, byte in enumerate(separator)):
                yield from piece.alone()
                continue
        yield piece


def text_document(parts: Iterable[bytes], tally: Tally, origin: str, offset: int = 0) -> Iterator[Piece]:
    """Parts of one document, already small, as pieces; a document without a byte is counted as empty."""
    starts = True
    for data in parts:
        if data:
            yield Piece(data, starts, origin, offset)
            offset += len(data)
            starts = False
    if starts:
        tally.empty_documents += 1


def whole_document(content: bytes | np.ndarray, tally: Tally, origin: str) -> Iterator[Piece]:
    """A document that is in memory (a record), as pieces."""
    if isinstance(content, bytes):
        yield from text_document(cut([content]), tally, origin)
        return
    for start in range(0, len(content), PIECE_TOKENS):
        tokens = np.asarray(content[start : start + PIECE_TOKENS], dtype=np.int64)
        yield Piece(tokens, start == 0, origin, start)
    if not len(content):
        tally.empty_documents += 1
