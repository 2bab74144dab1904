"""JSON as records: objects on lines, or one array of them, or objects that are laid out over several lines."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

from ...errors import DataError
from .base import Tally
from .files import InputFile, chunks_of, shown
from .lines import RECORD_BYTES, first_line, numbered_lines, too_long
from .rendering import Malformed, Number, Reader, Records

_FILE_ENDS = "the file ends inside it"
_LONGEST_WORD = 16  # and more: "-Infinity", "\\ud83d\\ude42"
_UNTERMINATED = "Unterminated string"
_LAID_OUT = re.compile(rb"\s*(\[\s*([{\]]|$)|\{\s*$)")
_KINDS = {
    **dict.fromkeys((int, float, Number), "a number"),
    str: "a string",
    list: "a list",
    bool: "a boolean",
    type(None): "null",
}
_WHITE = re.compile("[ \\t\\r\\n\ufeff\x1e]*")
"""What may stand between values: also the marks that joined files and JSON text sequences hold."""


def json_records() -> Reader:
    """A reader of JSON: objects on lines, blank lines passed over; or, where a first line says so by being `[`, the
    beginning of an array of objects, or `{`: one array, or objects in a row, laid out in any way.

    Fields may hold whatever the parser takes (NaN, numbers of any size, halves of surrogate pairs, bytes that are
    not UTF-8): what is not asked for does not matter.
    """

    def read(file: InputFile, tally: Tally) -> Records:
        repeated: list[str] = []

        def to_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
            value = dict(pairs)
            if len(value) < len(pairs):
                names = [name for name, _ in pairs]
                repeated.append(next(name for name in names if names.count(name) > 1))
            return value

        decoder = json.JSONDecoder(
            object_pairs_hook=to_object, parse_int=_integer, parse_float=Number, parse_constant=float
        )
        with file.open_text(tally, strict=False) as (stream, _):
            number, head = first_line(stream)
            if _LAID_OUT.match(head):
                window = _Window(chain([head], chunks_of(stream)), file.name, number)
                found = window.values(decoder)
            else:
                found = _line_values(numbered_lines(stream, number, head), decoder)
            for line, value in found:
                place = f"{file.name}:{line}"
                if repeated:
                    tally.remark(
                        "objects with a key twice, of which the last counts",
                        f'{place} ("{shown(repeated[0])}")',
                    )
                    repeated.clear()
                if isinstance(value, Malformed | dict):
                    yield place, value
                else:
                    yield (
                        place,
                        Malformed(f"{_KINDS[type(value)]}, not a JSON object in braces", "not an object"),
                    )

    return read


def _integer(text: str) -> int | Number:
    """A whole number of JSON; as it is written where it is long or would be written otherwise."""
    return int(text) if len(text) < 19 and text != "-0" else Number(text)


def _line_values(
    lines: Iterable[tuple[int, bytes | None]], decoder: json.JSONDecoder
) -> Iterator[tuple[int, Any]]:
    """(line, value or Malformed) of every JSON value; a line may hold several, one after the other."""
    for number, line in lines:
        if line is None:
            yield number, too_long()
            continue
        text = line.decode("utf-8", "surrogateescape")
        values, at = [], _past_white(text, 0)
        try:
            while at < len(text):
                value, at = decoder.raw_decode(text, at)
                values.append(value)
                at = _past_white(text, at)
        except json.JSONDecodeError as error:
            reason = f"{error.msg.removesuffix(' at')} at column {error.colno}"
            if error.pos >= len(text.rstrip()) or error.msg.startswith(_UNTERMINATED):
                reason = "the line ends before the object does"
            elif values and text[error.pos] == ",":
                reason = f"a comma follows the object, at column {error.colno}"
            yield number, _not_json(reason)
        except RecursionError:
            yield number, _not_json("nested too deeply")
        else:
            for value in values:
                yield number, value


class _Window:
    """Text that arrives in chunks, of which only what is not yet read is held.

    Attributes:
        text, at: what is held, and how far it is read.
        ended: there is no more.
    """

    def __init__(self, chunks: Iterable[bytes], name: str, line: int) -> None:
        self.text, self.at = "", 0
        self.ended = False
        self._chunks = iter(chunks)
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        self._name, self._line, self._counted = name, line, 0

    def line(self) -> int:
        """The number of the line that is read next."""
        self._line += self.text.count("\n", self._counted, self.at)
        self._counted = self.at
        return self._line

    def more(self) -> None:
        """Hold twice as much of what is not yet read, so that a long value is tried a few times only."""
        self.line()
        held = [self.text[self.at :]]
        self.at = self._counted = 0
        wanted = 2 * len(held[0]) + 1
        if len(held[0]) > RECORD_BYTES:
            raise self.fault("a record longer than 256 MiB")
        while wanted > 0 and not self.ended:
            chunk = next(self._chunks, b"")
            self.ended = not chunk
            held.append(self._decoder.decode(chunk, final=self.ended))
            wanted -= len(chunk)
        self.text = "".join(held)

    def next_character(self) -> str:
        """The next character that is no white space, not taken; empty at the end."""
        while True:
            self.at = _past_white(self.text, self.at)
            if self.at < len(self.text):
                return self.text[self.at]
            if self.ended:
                return ""
            self.more()

    def value(self, decoder: json.JSONDecoder) -> Any:
        """The value that begins at the next character, taken."""
        while True:
            try:
                value, end = decoder.raw_decode(self.text, self.at)
            except json.JSONDecodeError as error:
                torn = error.pos > len(self.text) - _LONGEST_WORD or error.msg.startswith(
                    "Unterminated string"
                )
                if self.ended or not torn:
                    raise self.fault(_FILE_ENDS if torn else f"not valid JSON: {error.msg}") from None
            except RecursionError:
                raise self.fault("not valid JSON: nested too deeply") from None
            else:
                if end - self.at > RECORD_BYTES:
                    raise self.fault("a record longer than 256 MiB")
                if end < len(self.text) or self.ended:  # a number may go on where the text that is held ends
                    self.at = end
                    return value
            self.more()

    def values(self, decoder: json.JSONDecoder) -> Iterator[tuple[int, Any]]:
        """(line, value) of every item of one array, or of every value in a row.

        Raises:
            DataError: it is not valid; where a value begins after a fault cannot be known.
        """
        in_array = self.next_character() == "["
        self.at += in_array
        while self.next_character() not in ("]" if in_array else "", ""):
            line = self.line()
            yield line, self.value(decoder)
            following = self.next_character()
            if in_array and following == ",":
                self.at += 1
            elif in_array and following and following != "]":
                raise self.fault("a comma is missing")
        if in_array:
            if not self.next_character():
                raise self.fault(_FILE_ENDS)
            self.at += 1
            if self.next_character():
                raise self.fault("something follows the array")

    def fault(self, reason: str) -> DataError:
        """The error about what is read next."""
        return DataError(f"{self._name}:{self.line()}: {reason}; nothing can be read from here on")


def _past_white(text: str, at: int) -> int:
    found = _WHITE.match(text, at)
    return found.end() if found else at


def _not_json(reason: str) -> Malformed:
    return Malformed(f"not valid JSON: {reason}", "not JSON")
