"""`--set a.b=value`: one value, laid over every file.

The value is read by the type of its key: `run_layout.name=123` is text, `optimizer.learning_rate=.001` a number, and
`none` takes back what an optional key has. Text needs no quotes and may have TOML's (`"none"` is then a text);
numbers may be written as in TOML or Python, lists without quotes around their items (`[a.md, b.md]`), tables as in TOML
(`{type = "cosine"}`). Items of a list are named by number (`dataset.train_files.0=a.jsonl`). When a key is set twice,
the later one wins.
"""

from __future__ import annotations

import contextlib
import datetime
import tomllib
from collections.abc import Callable
from typing import Any

from ..errors import ConfigError
from .known import Forms, Shape, child_shape, forms_at, table_at
from .locations import KeyPath
from .merge import merge
from .refusals import present_name, use_present_names
from .schema import Config
from .schema.base import UNSET
from .tree import Node, Origin, build, dotted, one_line


def apply_override(tree: Node, option: str) -> Node:
    """Lay one `key=value` over a tree.

    Raises:
        ConfigError: no `=`, no key, no value, a value that is broken TOML, or a list item that does not
            exist.
    """
    key, equals, text = option.partition("=")
    path: KeyPath = tuple(part.strip() for part in key.split("."))
    if not equals:
        raise ConfigError(f"--set {one_line(option)}: write key=value, for example training.batch_size=16")
    if not key.strip():
        raise ConfigError(f"--set {one_line(option)}: the key before = is missing")
    if not all(path):
        raise ConfigError(f"--set {one_line(option)}: the key has an empty part")
    if not text.strip():
        raise ConfigError(
            f'--set {one_line(option)}: the value after = is missing (an empty text is "", unset is none)'
        )
    origin = Origin("--set", option=option)
    path = _present(path)
    try:
        plain = _read(text.strip(), forms_at(path, tree.plain()))
    except ValueError as error:
        raise ConfigError(f"--set {one_line(option)}: the value is not valid TOML: {error}") from error
    return _lay(tree, path, build(plain, lambda _: origin), option)


def _present(path: KeyPath) -> KeyPath:
    return tuple(present_name(path[:index], str(part)) for index, part in enumerate(path))


def _read(text: str, forms: Forms) -> Any:
    """A value of a key that takes these forms; where none of them fits, what TOML makes of it, which is then refused.

    Raises:
        ValueError: what is quoted or in brackets is not TOML.
    """
    broken, value = "", None
    try:
        value = _toml(text)
    except ValueError as error:
        broken = str(error)
    bare = value if isinstance(value, str) else text
    if forms.optional and text.lower() in (UNSET, "null"):
        return UNSET
    if forms.items is not None and text.startswith("["):
        return _list(text, value, forms.items) if value is not None or text.endswith("]") else _refuse(broken)
    if bare in forms.words or (isinstance(value, str) and forms.text):
        return bare
    for kind, read in _READERS.items():
        if kind in forms.kinds and (found := read(bare)) is not None:
            return found
    quoted = len(text) > 1 and text[0] in "\"'" and text[0] == text[-1]
    if forms.text and not (broken and quoted):
        return text
    return value if value is not None else _refuse(broken) if text[0] in "\"'[{" else text


def _toml(text: str) -> Any:
    """What TOML makes of a value; None where that is a date, or more than a value.

    Raises:
        ValueError: it is not TOML.
    """
    try:
        data = tomllib.loads(f"value = {text}")
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ValueError(str(error).partition(" (at ")[0]) from error
    if list(data) != ["value"] or isinstance(data["value"], datetime.date | datetime.time):
        return None
    return data["value"]


def _refuse(reason: str) -> Any:
    raise ValueError(reason)


def _list(text: str, value: Any, items: Forms) -> Any:
    """A list whose items are read by their type; one with quotes or tables in it is TOML."""
    if set(text) & set("\"'{") or text[1:-1].strip() == "":
        return value if value is not None else _refuse("quote all of its items, or none")
    parts = text[1:-1].rstrip().removesuffix(",").split(",")
    return [_read(part.strip(), items) if part.strip() else _refuse("an item is empty") for part in parts]


def _boolean(text: str) -> bool | None:
    return {"true": True, "false": False}.get(text.lower())


def _integer(text: str) -> int | None:
    """A whole number, written in any way: `1_000`, `1e3`, `0x10`."""
    with contextlib.suppress(ValueError):
        return (
            int(text, 0 if text.lstrip("+-")[:2].lower() in ("0x", "0o", "0b") else 10)
            if text.isascii()
            else None
        )
    number = _number(text)
    return int(number) if number is not None and number.is_integer() else None


def _number(text: str) -> float | None:
    with contextlib.suppress(ValueError):
        return float(text) if text.isascii() else None
    return None


_READERS: dict[type, Callable[[str], Any]] = {bool: _boolean, int: _integer, float: _number}


def _lay(tree: Node, path: KeyPath, value: Node, option: str) -> Node:
    """Put a value at a path: list items are exchanged in place, anything else is merged as a layer."""
    for depth in range(1, len(path)):
        items = _list_at(tree, path[:depth])
        if items is None:
            continue
        index = str(path[depth])
        if not index.isdecimal() or int(index) >= len(items):
            listed = dotted(path[:depth])
            wrong = (
                f"is a list of {len(items)}; its items are numbered from 0, {index!r} is none of them"
                if items
                else f"is empty: give the whole list, --set '{listed}=[...]'"
            )
            raise ConfigError(f"--set {one_line(option)}: {listed} {wrong}")
        if depth + 1 < len(path):
            item = items[int(index)]
            if not item.is_table:
                raise ConfigError(
                    f"--set {one_line(option)}: {dotted(path[: depth + 1])} is a single value, not a table"
                )
            value = merge(item, _inside(path[depth + 1 :], value), None)
        items = [*items[: int(index)], value, *items[int(index) + 1 :]]
        path, value = path[:depth], Node(items, value.origin)
        break
    return merge(tree, use_present_names(_inside(path, value)))


def _inside(path: KeyPath, value: Node) -> Node:
    """A value with the tables around it."""
    for part in reversed(path):
        value = Node({part: value}, value.origin)
    return value


def _list_at(tree: Node, path: KeyPath) -> list[Node] | None:
    """The items of a list that was given, or that is a default."""
    node = tree.find(path)
    if node is not None:
        return node.value if isinstance(node.value, list) else None
    shape: Shape = Config
    for index, part in enumerate(path):
        around = tree.find(path[:index])
        data = around.plain() if around is not None else {}
        if index == len(path) - 1:
            cls = table_at(shape, data)
            field = cls.model_fields.get(str(part)) if cls is not None else None
            if field is None or not isinstance(field.default, tuple):
                return None
            default = Origin("default")
            return [Node(item, default) for item in field.default]
        shape = child_shape(shape, data, str(part))
    return None
