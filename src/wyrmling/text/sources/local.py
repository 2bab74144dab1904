"""Text files on this machine: single files, folders, globs, compressed or not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..utf8 import Repair
from .base import Piece, Source, Tally, text_document
from .cutting import cut
from .files import InputFile, chunks_of, reading_options
from .finding import find_files

if TYPE_CHECKING:
    from ...config.schema.sources import LocalTextSource

SUFFIXES = (".txt", ".md", ".text")
"""What a folder is searched for, compressed or not."""

_LF, _CR = 0x0A, 0x0D
Splitter = Callable[[Iterator[bytes], Tally, str, int], Iterator[Piece]]


class TextFiles(Source):
    """Files of text, in order, each split into documents.

    * `file`: a file is a document.
    * `block`: a document starts at each line that follows a blank one (only spaces, tabs, CR). The blank
      lines stay at the end of the document before them, so the documents, put together, are the file, byte
      for byte.
    * `line`: a line, with its line end, is a document; lines without a byte before the line end are empty
      documents.

    Args:
        replace_invalid: replace invalid UTF-8 by U+FFFD and count it, instead of handing it on.
    """

    def __init__(
        self,
        kind: str,
        files: Sequence[InputFile],
        *,
        documents: str = "file",
        replace_invalid: bool = False,
        settings: Mapping[str, Any] | None = None,
        notes: Sequence[str] = (),
    ) -> None:
        own = {"documents": documents, "replace_invalid": replace_invalid}
        super().__init__(kind, files, {**(settings or {}), **own}, notes)
        self._split = _SPLITTERS[documents]
        self._replace_invalid = replace_invalid

    def _read(self, tally: Tally) -> Iterator[Piece]:
        for file in self.files:
            with file.open_text(tally, strict=not self._replace_invalid) as (stream, offset):
                chunks = chunks_of(stream)
                repair = Repair()
                if self._replace_invalid:
                    chunks = repair(chunks)
                yield from self._split(cut(chunks), tally, file.name, offset)
                tally.replaced += repair.replaced


def open_local_text(config: LocalTextSource, *, replace_invalid: bool) -> Source:
    """The source of a `local_text` table."""
    files, notes = find_files(
        config.path, suffixes=SUFFIXES, chosen=config.suffixes, **reading_options(config)
    )
    return TextFiles(
        "local_text", files, documents=config.documents, replace_invalid=replace_invalid, notes=notes
    )


def _lines(part: bytes) -> Iterator[bytes]:
    """The lines of a part, each with its LF (the last may have none)."""
    start = 0
    while start < len(part):
        end = part.find(b"\n", start) + 1 or len(part)
        yield part[start:end]
        start = end


def _by_line(parts: Iterator[bytes], tally: Tally, origin: str, offset: int) -> Iterator[Piece]:
    starts = True
    for part in parts:
        data = np.frombuffer(part, dtype=np.uint8)
        ends = np.flatnonzero(data == _LF) + 1
        if not part.endswith(b"\n"):
            ends = np.append(ends, len(part))
        begins = np.append(0, ends[:-1])
        empty = (data[begins] == _LF) | (
            (ends - begins == 2) & (data[begins] == _CR) & (data[ends - 1] == _LF)
        )
        empty[0] &= starts  # else it is the end of a line that began in the part before
        tally.empty_documents += int(np.count_nonzero(empty))
        kept = np.flatnonzero(~empty)
        for lines in np.split(
            kept, np.flatnonzero(np.diff(kept) > 1) + 1
        ):  # without an empty one between them
            if len(lines):
                start, stop = int(begins[lines[0]]), int(ends[lines[-1]])
                borders = begins[lines[1:]] - start
                yield Piece(part[start:stop], starts or start > 0, origin, offset + start, borders)
        starts = part.endswith(b"\n")
        offset += len(part)


def _by_block(parts: Iterator[bytes], tally: Tally, origin: str, offset: int) -> Iterator[Piece]:
    starts_line = True
    after_blank = False
    starts_document = True
    empty = True
    for part in parts:
        begin = at = 0
        for line in _lines(part):
            if starts_line:
                blank = not line.strip(b" \t\r\n")
                if after_blank and not blank:
                    if at > begin:
                        yield Piece(part[begin:at], starts_document, origin, offset + begin)
                    starts_document, begin = True, at
                after_blank = blank
            elif line.strip(b" \t\r\n"):
                after_blank = False
            starts_line = line.endswith(b"\n")
            at += len(line)
        yield Piece(part[begin:], starts_document, origin, offset + begin)
        starts_document = False
        offset += len(part)
        empty = False
    if empty:
        tally.empty_documents += 1


_SPLITTERS: dict[str, Splitter] = {"file": text_document, "block": _by_block, "line": _by_line}
