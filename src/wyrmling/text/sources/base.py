"""The contract of a source: documents as a stream of small pieces, never a whole corpus in memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...errors import DataError
from .cutting import cut
from .files import InputFile, listed

PIECE_TOKENS = 1 << 20
"""The most tokens in one piece of a pretokenized source."""

READER_VERSION = 1
"""Part of every signature; raised when the same files would give other pieces than before."""


@dataclass(frozen=True)
class Piece:
    """A part of a document. A document is one piece or several in a row, of at most about 1 MiB each.

    Pieces of text end after a line end, or anywhere when a line is longer than a piece, but never between
    CR and LF and never inside a character when the bytes are valid UTF-8.
    """

    data: bytes | np.ndarray
    """UTF-8 bytes (not checked), or int64 token ids [n]; never empty."""
    starts_document: bool
    origin: str
    """Where it comes from, for error messages: a file, or a file and a line."""
    offset: int
    """Offset of the first byte (or token) of `data` in what `origin` names (unpacked, when it was `.gz`)."""


@dataclass
class Tally:
    """What one pass over a source met that a person should know."""

    documents: int = 0
    empty_documents: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    first_malformed: str = ""
    remarks: dict[str, tuple[int, str]] = field(default_factory=dict)
    spanning: int = 0
    longest_span: tuple[int, str] = (0, "")
    byte_order_marks: list[str] = field(default_factory=list)
    utf16: list[str] = field(default_factory=list)
    crlf: int = 0
    replaced: int = 0
    limit_reached: int | None = None

    def skip(self, kind: str, reason: str) -> None:
        """Count a record that is left out by the kind of its fault; the first reason is kept."""
        self.skipped[kind] += 1
        self.first_malformed = self.first_malformed or reason

    def remark(self, what: str, place: str) -> None:
        """Count something odd that was taken as it is; the first place is kept."""
        count, first = self.remarks.get(what, (0, place))
        self.remarks[what] = count + 1, first

    def span(self, lines: int, place: str) -> None:
        """Count a record that quotes carry over several lines; the longest is kept."""
        self.spanning += 1
        self.longest_span = max(self.longest_span, (lines, place), key=lambda span: span[0])

    def skips(self) -> str:
        """How many records were left out, by kind, the most frequent first; nothing when none was."""
        if not self.skipped:
            return ""
        kinds = sorted(self.skipped.items(), key=lambda item: (-item[1], item[0]))
        text = f"{counted(self.skipped.total(), 'record')} skipped: "
        text += ", ".join(f"{number} {kind}" for kind, number in kinds)
        return f"{text}; the first: {self.first_malformed}"

    def sentences(self) -> list[str]:
        """One short line per fact, in a fixed order."""
        lines = []
        if self.byte_order_marks:
            lines.append(
                f"stripped a UTF-8 byte order mark from the start of {listed(self.byte_order_marks)}"
            )
        if self.utf16:
            lines.append(
                f"{listed(self.utf16)}: looks like UTF-16, read as plain bytes (convert it to UTF-8?)"
            )
        if self.crlf:
            lines.append(
                f'{counted(self.crlf, "CR LF line end")} (kept, unless tokenizer.normalize has "newlines")'
            )
        if self.empty_documents:
            lines.append(f"{counted(self.empty_documents, 'empty document')} skipped")
        if self.skipped:
            lines.append(self.skips())
        if self.spanning:
            lines.append(
                f"{counted(self.spanning, 'record')} carried over several lines by quotes, the longest over "
                f"{self.longest_span[0]} ({self.longest_span[1]}); if quotes are plain characters there, "
                'set dataset.quote = "off"'
            )
        lines += [f"{what}: {count}, the first: {place}" for what, (count, place) in self.remarks.items()]
        if self.replaced:
            lines.append(f"{counted(self.replaced, 'invalid UTF-8 sequence')} replaced by U+FFFD")
        if self.limit_reached is not None:
            lines.append(f"stopped after max_records = {self.limit_reached}")
        return lines


def counted(number: int, noun: str) -> str:
    """`1 record`, `2 records`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


class Source(ABC):
    """Where text (or tokens) comes from. Passes are repeatable: `pieces` gives the same every time it is
    called.

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
        self._opening_notes = tuple(notes)
        self._tally = Tally()

    @property
    def notes(self) -> list[str]:
        """What a person should know: from opening the source, then from the last (or running) pass."""
        return [*self._opening_notes, *self._tally.sentences()]

    @property
    def total_bytes(self) -> int | None:
        """Bytes that a pass will read, for a progress bar; None when it cannot be told without reading."""
        if any(file.compressed for file in self.files):
            return None
        return sum(file.size() for file in self.files)

    def signature(self) -> dict[str, Any]:
        """What identifies the text, without reading it: kind, settings, size and mtime of every file."""
        return {
            "type": self.kind,
            "reader": READER_VERSION,
            **self._settings,
            "files": [file.signature() for file in self.files],
        }

    def pieces(self) -> Iterator[Piece]:
        """One pass over the documents, in a fixed order, in bounded memory.

        Raises:
            DataError: a file is missing, damaged or malformed, or there is no document at all (at the end).
            StorageError: the system refuses to let a file be read.
        """
        self._tally = tally = Tally()
        for piece in self._read(tally):
            tally.documents += piece.starts_document
            if isinstance(piece.data, bytes):
                tally.crlf += piece.data.count(b"\r\n")
            yield piece
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
