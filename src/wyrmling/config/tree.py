"""Values that know where they come from.

Files, overlays and options are merged as trees of `Node`, so that after any number of layers every value
can still name the file and line, or the option, that gave it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .locations import KeyPath


@dataclass(frozen=True)
class Origin:
    """Where a value was written."""

    label: str
    """A file, "--set", or "default"."""
    line: int | None = None
    option: str | None = None
    """The whole text of a `--set`, for messages."""

    def __str__(self) -> str:
        return self.label if self.line is None else f"{self.label}:{self.line}"

    @property
    def prefix(self) -> str:
        """How a message about the value begins; empty where there is nothing to point at."""
        if self.option is not None:
            return f"--set {one_line(self.option)}: "
        return f"{self}: " if self.label and self.label not in ("default", "given") else ""


DEFAULT = Origin("default")
GIVEN = Origin("given")


@dataclass(frozen=True)
class Node:
    """A value with its origin; the value of a table or list consists of nodes."""

    value: Any
    origin: Origin

    @property
    def is_table(self) -> bool:
        return isinstance(self.value, dict)

    def plain(self) -> Any:
        """The value without origins."""
        if isinstance(self.value, dict):
            return {key: child.plain() for key, child in self.value.items()}
        if isinstance(self.value, list):
            return [child.plain() for child in self.value]
        return self.value

    def find(self, path: KeyPath) -> Node | None:
        """The node at a path, if there is one."""
        node = self
        for part in path:
            try:
                node = node.value[part]
            except (KeyError, IndexError, TypeError):
                return None
        return node

    def nearest(self, path: KeyPath) -> Node:
        """The node at a path, or the innermost table around it."""
        while path:
            found = self.find(path)
            if found is not None:
                return found
            path = path[:-1]
        return self

    def without(self, path: KeyPath) -> Node:
        """The same tree without one key."""
        if not self.is_table or path[0] not in self.value:
            return self
        children = dict(self.value)
        if len(path) == 1:
            del children[path[0]]
        else:
            children[path[0]] = children[path[0]].without(path[1:])
        return Node(children, self.origin)

    def walk(self, path: KeyPath = ()) -> Iterator[tuple[KeyPath, Node]]:
        """Every node with its path, outer ones first."""
        yield path, self
        if isinstance(self.value, dict):
            for key, child in self.value.items():
                yield from child.walk((*path, key))
        elif isinstance(self.value, list):
            for index, child in enumerate(self.value):
                yield from child.walk((*path, index))


def one_line(text: str) -> str:
    """A text with its line ends written out."""
    return text.replace("\r", "\\r").replace("\n", "\\n")


def build(data: Any, origin_of: Callable[[KeyPath], Origin], path: KeyPath = ()) -> Node:
    """A tree from plain data; `origin_of` is asked for every path."""
    value: Any = data
    if isinstance(data, Mapping):
        value = {str(key): build(child, origin_of, (*path, str(key))) for key, child in data.items()}
    elif isinstance(data, list | tuple):
        value = [build(child, origin_of, (*path, index)) for index, child in enumerate(data)]
    return Node(value, origin_of(path))


def dotted(path: KeyPath) -> str:
    """A path as people write it: `dataset.train_files.0`."""
    return ".".join(str(part) for part in path)
