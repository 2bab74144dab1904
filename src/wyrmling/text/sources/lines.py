"""Lines of a file, numbered and bounded; a line of plain text as a record."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

from .base import Tally
from .files import CHUNK_BYTES, InputFile
from .rendering import Malformed, Reader, Records

RECORD_BYTES = 1 << 28
"""The longest record: it must fit in memory."""
_HEAD_BYTES = 1 << 16


def text_lines(field: str) -> Reader:
    """A reader of plain text: each line that is not blank is a record of one field, its line end left out."""

    def read(file: InputFile, tally: Tally) -> Records:
        with file.open_text(tally, strict=False) as (stream, _):
            for number, line in numbered_lines(stream):
                if line is None:
                    yield f"{file.name}:{number}", too_long()
                elif line.strip(b" \t\r\n"):
                    text = line.rstrip(b"\r\n").decode("utf-8", "surrogateescape")
                    yield f"{file.name}:{number}", {field: text}

    return read


def first_line(stream: BinaryIO) -> tuple[int, bytes]:
    """The number of the first line that is not blank, and its first bytes."""
    number = 1
    while True:
        line = stream.readline(_HEAD_BYTES)
        if line.strip(b" \t\r\n") or not line:
            return number, line
        number += line.endswith(b"\n")


def numbered_lines(
    stream: BinaryIO, number: int = 1, head: bytes = b""
) -> Iterator[tuple[int, bytes | None]]:
    """The lines of a stream, from `number` on; None is a line longer than a record may be, and passed over.

    Args:
        head: what has already been read of the first line.
    """
    while True:
        line = head if head.endswith(b"\n") else head + stream.readline(max(RECORD_BYTES + 1 - len(head), 0))
        head = b""
        if not line:
            return
        if len(line) > RECORD_BYTES:
            yield number, None
            while line and not line.endswith(b"\n"):
                line = stream.readline(CHUNK_BYTES)
        else:
            yield number, line
        number += 1


def too_long() -> Malformed:
    return Malformed("a line longer than 256 MiB", "too long")
