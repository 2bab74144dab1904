"""UTF-8 in pieces: where a text may be cut, where it is invalid, and how to decode it as it arrives.

Everything here works on bytes and never asks the locale.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator

REPLACEMENT = "\ufffd"
_REPLACEMENT_BYTES = REPLACEMENT.encode("utf-8")


def find_invalid(data: bytes) -> int | None:
    """Offset of the first byte at which `data` stops being valid UTF-8, or None when all of it is valid."""
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        return error.start
    return None


def count_invalid(data: bytes) -> int:
    """How many bytes of `data` belong to no valid UTF-8 character."""
    return len(data) - len(data.decode("utf-8", "ignore").encode("utf-8"))


def character_boundary(data: bytes | bytearray, limit: int) -> int:
    """The last offset `<= limit` at which a character of `data` starts, so that a cut there splits none.

    A character has at most four bytes; when the bytes around `limit` are not UTF-8 the answer is `limit`
    itself. `limit` must lie inside `data`.
    """
    for offset in range(limit, max(limit - 4, 0), -1):
        if data[offset] & 0b1100_0000 != 0b1000_0000:
            return offset
    return limit


def cut_characters(data: bytes) -> tuple[int, int]:
    """Where the whole characters of `data` begin and end: before stand the last bytes of a character that was cut,
    behind the first bytes of another.
    """
    start = next(
        (i for i, byte in enumerate(data[:3]) if byte & 0b1100_0000 != 0b1000_0000), min(len(data), 3)
    )
    waiting = codecs.getincrementaldecoder("utf-8")("replace")
    waiting.decode(data[start:])
    return start, len(data) - len(waiting.getstate()[0])


class IncrementalDecoder:
    """Decodes UTF-8 that arrives in arbitrary parts, giving out whole characters only.

    The concatenation of all `push` results and `finish` equals `whole.decode("utf-8", "replace")`.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, data: bytes) -> str:
        """Take more bytes; return the characters that are complete by now (possibly none)."""
        return self._decoder.decode(data)

    def finish(self) -> str:
        """End of the text: an incomplete character becomes U+FFFD. The decoder can then be used afresh."""
        text = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return text


class Repair:
    """Replaces invalid UTF-8 in a stream by U+FFFD and counts how often (`replaced`)."""

    def __init__(self) -> None:
        self.replaced = 0

    def __call__(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        """The same stream as valid UTF-8. Characters may be split over the chunks that come in, never over
        those that go out.
        """
        decoder = IncrementalDecoder()
        genuine = _Counter(_REPLACEMENT_BYTES)
        for chunk in chunks:
            text = decoder.push(chunk)
            self.replaced += text.count(REPLACEMENT) - genuine.push(chunk)
            yield text.encode("utf-8")
        text = decoder.finish()
        self.replaced += text.count(REPLACEMENT)
        yield text.encode("utf-8")


class _Counter:
    """Counts a short byte string in a stream, also where it lies across two chunks."""

    def __init__(self, wanted: bytes) -> None:
        self._wanted = wanted
        self._tail = b""

    def push(self, chunk: bytes) -> int:
        window = self._tail + chunk
        keep = len(self._wanted) - 1
        self._tail = window[-keep:]
        return window.count(self._wanted)
