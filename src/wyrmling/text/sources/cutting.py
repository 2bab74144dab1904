"""Cutting a stream of bytes into pieces of bounded size at places where nothing is torn apart."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ..utf8 import character_boundary

PIECE_BYTES = 1 << 20
"""The most bytes in one piece of text."""

_SPACE_WINDOW = 4096
_CR, _LF = 0x0D, 0x0A


def cut(chunks: Iterable[bytes], limit: int = PIECE_BYTES) -> Iterator[bytes]:
    """The same bytes in parts of `1..limit`, each as long as the rules allow; chunks may be cut anywhere.

    A part ends after the last line end that fits. A line longer than a part is cut before a space of its
    last 4 KiB, else before a character, and never between CR and LF. The result does not depend on how the
    chunks are cut. `limit` is at least 8.
    """
    held = bytearray()
    for chunk in chunks:
        held += chunk
        start = 0
        while len(held) - start > limit:
            end = _cut_point(held, start, limit)
            yield bytes(held[start:end])
            start = end
        del held[:start]
    if held:
        yield bytes(held)


def _cut_point(data: bytearray, start: int, limit: int) -> int:
    """Where the part that begins at `start` ends; at least one byte follows `start + limit`."""
    stop = start + limit
    line_end = data.rfind(b"\n", start, stop)
    if line_end >= 0:
        return line_end + 1
    space = data.rfind(b" ", max(start + 1, stop - _SPACE_WINDOW), stop)
    if space >= 0:
        return space
    end = character_boundary(data, stop)
    if data[end] == _LF and data[end - 1] == _CR:
        return end - 1
    return end
