"""From a record (named fields) to the text or the tokens of one document. One way for every format.

A field is named by its key, or by keys with dots between them where it lies deeper (`answer.text`, and
`messages.0.content` for an item of a list); a key that has a dot in it is found by its whole name.

Only fields that are named are looked at: whatever else a record holds never makes it malformed.
"""

from __future__ import annotations

import datetime
import decimal
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ...errors import ConfigError
from .base import Tally
from .files import InputFile, shown

Record = Mapping[str, Any]
_SHOWN_FIELDS = 5
_DECODED_BYTES = range(0xDC80, 0xDD00)
"""Lone surrogates that stand for bytes that are not UTF-8 (Python's "surrogateescape")."""


class Malformed(Exception):
    """Why a record cannot be used.

    Args:
        message: in words that follow `file:line: `.
        kind: the reason in one or two words; records left out are counted by it.
    """

    def __init__(self, message: str, kind: str) -> None:
        super().__init__(message)
        self.kind = kind


Records = Iterator[tuple[str, Record | Malformed]]
Reader = Callable[[InputFile, Tally], Records]
"""Gives (place, record or the reason why it is none) for each record of a file."""


class Number(str):
    """A number of a JSON record, as it is written there."""


class Rendering:
    """What becomes of a record: the text of its parts in order, or one field of token ids.

    Strings are taken as they are, numbers, booleans and dates as they are written. A field that is null, not there, or
    holds something else makes the record malformed. A record whose fields are all empty has no text.

    Args:
        parts: (is literal, literal text or name of a field), in order.
        end_line: add one LF at the end of a text that is not empty and has none.
        tokens: the only part is a field that holds a list of token ids.
    """

    def __init__(
        self, parts: Sequence[tuple[bool, str]], *, end_line: bool = False, tokens: bool = False
    ) -> None:
        self.parts = tuple(parts)
        self.fields = tuple(dict.fromkeys(part for literal, part in parts if not literal))
        self.tokens = tokens
        self._end_line = end_line

    def settings(self) -> dict[str, Any]:
        """What decides the result, as JSON values."""
        return {
            "parts": [list(part) for part in self.parts],
            "end_line": self._end_line,
            "tokens": self.tokens,
        }

    def __call__(self, record: Record) -> bytes | np.ndarray:
        """The document of a record: UTF-8, or int64 token ids [n]; empty when there is nothing in it.

        Raises:
            Malformed: a field cannot be used.
        """
        if self.tokens:
            return _token_ids(record, self.fields[0])
        texts = {name: _text(record, name) for name in self.fields}
        if not any(texts.values()):
            return b""
        text = "".join([part if literal else texts[part] for literal, part in self.parts])
        return text.encode("utf-8") + (b"\n" if self._end_line and not text.endswith("\n") else b"")


def joined(names: Sequence[str], separator: str) -> list[tuple[bool, str]]:
    """The parts of a text of several fields with `separator` between them."""
    parts: list[tuple[bool, str]] = []
    for name in names:
        parts += [(True, separator), (False, name)] if parts else [(False, name)]
    return parts


def parse_template(template: str) -> list[tuple[bool, str]]:
    """The parts of a template, in which `{name}` is a field and `{{`, `}}` are the braces themselves.

    Raises:
        ConfigError: a brace without its partner, an empty name, or no field at all.
    """
    parts: list[tuple[bool, str]] = []
    literal = ""
    at = 0
    while at < len(template):
        if template[at : at + 2] in ("{{", "}}"):
            literal += template[at]
            at += 2
        elif template[at] == "{":
            end = template.find("}", at)
            name = template[at + 1 : end]
            if end < 0 or "{" in name:
                raise _template_error(f"the {{ at character {at} is never closed", template)
            if not name.strip():
                raise _template_error(f"the {{}} at character {at} names no field", template)
            parts += [(True, literal), (False, name.strip())]
            literal, at = "", end + 1
        elif template[at] == "}":
            raise _template_error(
                f"the }} at character {at} was never opened (write }}}} for a brace)", template
            )
        else:
            literal += template[at]
            at += 1
    parts.append((True, literal))
    if len(parts) == 1:
        raise _template_error("there is no {field} in it", template)
    return [part for part in parts if part[1]]


def _template_error(reason: str, template: str) -> ConfigError:
    return ConfigError(f"dataset.template: {reason}: {template!r}")


_ABSENT = object()


def _find(value: Any, name: str) -> Any:
    """What lies under a name with dots; the longest key that fits is tried first. `_ABSENT` if nothing does, None
    inside of what is null.
    """
    if value is None:
        return None
    if isinstance(value, Mapping):
        if name in value:
            return value[name]
        dot = name.rfind(".")
        while dot > 0:
            if name[:dot] in value:
                found = _find(value[name[:dot]], name[dot + 1 :])
                if found is not _ABSENT:
                    return found
            dot = name.rfind(".", 0, dot)
    elif isinstance(value, list | np.ndarray):
        index, _, rest = name.partition(".")
        if index.isascii() and index.isdigit() and len(index) < 10 and int(index) < len(value):
            return _find(value[int(index)], rest) if rest else value[int(index)]
    return _ABSENT


def _value(record: Record, name: str) -> Any:
    value = _find(record, name)
    if value is _ABSENT:
        raise Malformed(f"{no_field(name)} (there is: {named(list(record))})", f"without field {shown(name)}")
    if value is None:
        raise Malformed(f'field "{shown(name)}" is null', "null")
    return value


def no_field(name: str) -> str:
    """The start of the sentence about a field that is missing."""
    return f'there is no field "{shown(name)}"'


def named(names: Sequence[str]) -> str:
    """The first few names of fields, for an error."""
    more = ", ..." if len(names) > _SHOWN_FIELDS else ""
    return (", ".join(f'"{shown(name)}"' for name in names[:_SHOWN_FIELDS]) or "nothing") + more


def _text(record: Record, name: str) -> str:
    """A field as text that can be written as UTF-8."""
    value = _value(record, name)
    if isinstance(value, bytes):
        value = value.decode("utf-8", "surrogateescape")
    if isinstance(value, str):
        if not value.isascii():
            _check(value, name)
        return value
    if isinstance(value, bool | np.bool_):
        return "true" if value else "false"
    if isinstance(value, float | np.floating) and not math.isfinite(value):
        raise Malformed(f'field "{shown(name)}" is {value}, not a number', "NaN or infinite")
    if isinstance(value, int | float | np.number | decimal.Decimal):
        return str(value)
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, list | np.ndarray):
        advice = f'name an item of it ("{shown(name)}.0")'
        if len(value) and all(isinstance(item, int | np.integer) for item in value):
            advice = "token ids are read by dataset.sequence_field"
        raise Malformed(f'field "{shown(name)}" is a list, not text; {advice}', "a list")
    if isinstance(value, Mapping):
        inner = f'name a field of it ("{shown(name)}.{shown(next(iter(value), "key"))}")'
        raise Malformed(f'field "{shown(name)}" is an object, not text; {inner}', "an object")
    kind = type(value).__name__
    raise Malformed(f'field "{shown(name)}" is a {kind}, not a string, number or boolean', f"a {kind}")


def _check(text: str, name: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        code = ord(text[error.start])
        if code in _DECODED_BYTES:
            reason = f'invalid UTF-8 in field "{shown(name)}": byte 0x{code - 0xDC00:02x}'
            reason += '; is the file written in dataset.encoding = "cp1252" or another?'
            raise Malformed(reason, "not UTF-8") from None
        reason = f'field "{shown(name)}": half of a surrogate pair (U+{code:04X}) is not a character'
        raise Malformed(reason, "half of a surrogate pair") from None


def _token_ids(record: Record, name: str) -> np.ndarray:
    value = _value(record, name)
    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, list):
        if all(type(item) is int for item in value):
            return np.array(value, dtype=np.int64)
        if all(
            type(item) is int or (isinstance(item, Number) and item.lstrip("-").isdigit()) for item in value
        ):
            raise Malformed(f'field "{shown(name)}" holds a number beyond 18 digits', "no token id")
    raise Malformed(f'field "{shown(name)}" is not a list of whole numbers', "no list of whole numbers")
