"""From a record (named fields) to the text or the tokens of one document."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ...errors import ConfigError

Record = Mapping[str, Any]
Render = Callable[[Record], bytes | np.ndarray]
_SHOWN_FIELDS = 5


class Malformed(Exception):
    """Why a record cannot be used, in words that follow `file:line: `."""


class Number(str):
    """A number of a JSON record, as it is written there."""


def field_text(name: str) -> Render:
    """The field, which must be a string, and nothing else."""

    def render(record: Record) -> bytes:
        value = _value(record, name)
        if isinstance(value, Number) or not isinstance(value, str):
            raise Malformed(f'field "{name}" is {_kind(value)}, not a string')
        return _encoded(value)

    return render


def joined_fields(names: Sequence[str], separator: str) -> Render:
    """Several fields (strings, numbers, booleans) with `separator` between them; one LF is added at the end
    of a text that is not empty and has none.
    """

    def render(record: Record) -> bytes:
        return _line_ended(_encoded(separator.join(_as_text(record, name) for name in names)))

    return render


def template_text(template: str, *, end_line: bool = False) -> Render:
    """A template with `{field}` for fields (strings, numbers, booleans) and `{{`, `}}` for the braces
    themselves.

    Args:
        end_line: add one LF at the end of a text that is not empty and has none.

    Raises:
        ConfigError: a brace without its partner, an empty name, or no field at all.
    """
    parts = parse_template(template)

    def render(record: Record) -> bytes:
        text = _encoded("".join(part if literal else _as_text(record, part) for literal, part in parts))
        return _line_ended(text) if end_line else text

    return render


def sequence_tokens(name: str) -> Render:
    """A field that holds token ids: a list of whole numbers, as int64 [n]."""

    def render(record: Record) -> np.ndarray:
        value = _value(record, name)
        if isinstance(value, np.ndarray):
            return value
        if not isinstance(value, list) or not all(type(item) is int for item in value):
            raise Malformed(f'field "{name}" is not a list of whole numbers')
        try:
            return np.array(value, dtype=np.int64)
        except OverflowError:
            raise Malformed(f'field "{name}" holds a number beyond 64 bits') from None

    return render


def parse_template(template: str) -> list[tuple[bool, str]]:
    """The template as (is literal, text or field name) in order."""
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


def _value(record: Record, name: str) -> Any:
    try:
        return record[name]
    except KeyError:
        names = ", ".join(f'"{key}"' for key in list(record)[:_SHOWN_FIELDS])
        more = ", ..." if len(record) > _SHOWN_FIELDS else ""
        raise Malformed(f'there is no field "{name}" (there is: {names or "nothing"}{more})') from None


def _as_text(record: Record, name: str) -> str:
    value = _value(record, name)
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    raise Malformed(f'field "{name}" is {_kind(value)}, not a string, number or boolean')


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, Number | int | float):
        return "a number"
    if isinstance(value, list):
        return "a list"
    return "an object" if isinstance(value, Mapping) else f"of type {type(value).__name__}"


def _encoded(text: str) -> bytes:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        code = ord(text[error.start])
        raise Malformed(f"half of a surrogate pair (U+{code:04X}) is not a character") from None


def _line_ended(text: bytes) -> bytes:
    return text + b"\n" if text and not text.endswith(b"\n") else text
