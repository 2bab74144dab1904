"""`--set a.b=value`: one value, laid over every file.

The value is written as in TOML (`true`, `1e-3`, `[1, 2]`, `"text"`, `{type = "cosine"}`); anything that is
not a TOML value is taken as text, so `runtime.device=cpu` needs no quotes. Items of a list are named by
number (`dataset.train_files.0=a.jsonl`). When a key is set twice, the later one wins.
"""

from __future__ import annotations

import datetime
import tomllib
from typing import Any

from ..errors import ConfigError
from .known import Shape, child_shape, table_at
from .locations import KeyPath
from .merge import merge
from .refusals import present_name, use_present_names
from .schema import Config
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
    value = build(_value(text.strip(), option), lambda _: origin)
    return _lay(tree, _present(path), value, option)


def _present(path: KeyPath) -> KeyPath:
    return tuple(present_name(path[:index], str(part)) for index, part in enumerate(path))


def _value(text: str, option: str) -> Any:
    """Read a value: TOML, else text."""
    try:
        data = tomllib.loads(f"value = {text}")
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        if text[0] in "\"'[{":
            reason = str(error).partition(" (at ")[0]
            raise ConfigError(f"--set {one_line(option)}: the value is not valid TOML: {reason}") from error
        return text
    if list(data) != ["value"] or isinstance(data["value"], datetime.date | datetime.time):
        return text
    return data["value"]


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
