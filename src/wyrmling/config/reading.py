"""TOML files to trees: finding them, parsing them, following `extends`."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path
from typing import Any

from ..errors import ConfigError
from .locations import KeyPath, key_lines
from .merge import merge
from .messages import toml_type
from .recipes import RECIPE_DIRECTORY, list_recipes, recipe_path
from .refusals import use_present_names
from .tree import Node, Origin, build

_PLACE = re.compile(r"^(.*?) \(at (?:line (\d+), column (\d+)|end of document)\)$", re.DOTALL)
_DUPLICATES = (
    "Cannot overwrite a value",
    "Cannot declare",
    "Duplicate inline table key",
    "Cannot mutate immutable",
)


def read_layer(name: str | Path, beside: tuple[Path, str] | None = None) -> Node:
    """Read a file, or a shipped recipe by its name, with everything it extends.

    Args:
        beside: path and label of the bundle that names the file, to which a relative path is relative.

    Raises:
        ConfigError: no such file or recipe, not text, not TOML, or a circle of `extends`.
    """
    path, label = locate(str(name), beside, "config")
    return _read(path, label, [])


def locate(name: str, beside: tuple[Path, str] | None = None, key: str = "extends") -> tuple[Path, str]:
    """The file that a name means, and how messages call it.

    Args:
        beside: path and label of the file whose `key` names it.
    """
    if not name:
        raise ConfigError("the name of a configuration file is empty")
    is_name = "/" not in name and "\\" not in name and not Path(name).suffix
    path, label = Path(os.path.expanduser(name)), name
    if beside is not None and not path.is_absolute():
        path = beside[0].parent / name
        label = Path(beside[1]).parent.joinpath(name).as_posix()
    if is_name and (recipe := recipe_path(name)) is not None:
        path = recipe
    if path.parent == RECIPE_DIRECTORY:
        label = f"recipes/{path.name}"
    if path.is_file():
        return path, label
    cause = f"{beside[1]}: {key} " if beside else ""
    if path.is_dir():
        raise ConfigError(f"{cause}{label}: is a folder, not a configuration file")
    if "=" in name:
        raise ConfigError(f"{cause}{name}: no such configuration file (to set a value write --set {name})")
    if is_name:
        raise ConfigError(f"{cause}{name}: {_no_recipe(name)}")
    hint = "" if path.suffix == ".toml" else " (to set a value write --set key=value)"
    raise ConfigError(f"{cause}{label}: no such configuration file{hint}")


def _no_recipe(name: str) -> str:
    import difflib

    names = [recipe.name for recipe in list_recipes()]
    near = difflib.get_close_matches(name, names, 1)
    hint = f"did you mean {near[0]}? " if near else ""
    return f"no such recipe or configuration file ({hint}the recipes are {', '.join(names)})"


def _read(path: Path, label: str, above: list[tuple[Path, str]]) -> Node:
    """Read a file and, under it, what it extends; `above` are the files that led here."""
    real = path.resolve()
    if any(real == seen for seen, _ in above):
        first = next(index for index, (seen, _) in enumerate(above) if seen == real)
        circle = " -> ".join([name for _, name in above[first:]] + [label])
        raise ConfigError(f"{above[-1][1]}: extends goes in a circle: {circle}")
    text = _text_of(path, label)
    data = _parse(text, label)
    lines = key_lines(text)

    def origin_of(at: KeyPath) -> Origin:
        while at and at not in lines:
            at = at[:-1]
        return Origin(label, lines.get(at, 1))

    own = build(data, origin_of)
    result = Node({}, own.origin)
    for base in _bases(own):
        base_path, base_label = locate(base, (path, label))
        result = merge(result, _read(base_path, base_label, [*above, (real, label)]))
    return merge(result, use_present_names(own.without(("extends",))))


def _bases(own: Node) -> list[str]:
    """What `extends` names."""
    node = own.find(("extends",))
    if node is None:
        return []
    value = node.plain()
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
        raise ConfigError(
            f"{node.origin.prefix}extends must be the name of a file or recipe, or a list of names, "
            f"got {toml_type(value)}"
        )
    return names


def _text_of(path: Path, label: str) -> str:
    """The content of a file as text; a byte order mark is dropped."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{label}: cannot be read: {error.strerror or error}") from error
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            f"{label}:{line}: not UTF-8 text (byte 0x{data[error.start]:02x} at offset {error.start})"
        ) from error
    return text.replace("\r\n", "\n")


def _parse(text: str, label: str) -> dict[str, Any]:
    """Parse TOML; an error names line and column."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        match = _PLACE.match(str(error))
        what = match.group(1) if match else str(error)
        lines = text.split("\n")
        if match and match.group(2):
            line, column = int(match.group(2)), int(match.group(3))
        else:
            line, column = len(lines), len(lines[-1]) + 1
        if what.startswith(_DUPLICATES):
            key = lines[line - 1].split("=")[0].strip()
            what = f"duplicate: {key} is given before"
        suffix = Path(label).suffix.lower()
        hint = " (configurations are TOML)" if suffix in (".yaml", ".yml", ".json") else ""
        raise ConfigError(f"{label}:{line}:{column}: {what[:1].lower()}{what[1:]}{hint}") from error
    except RecursionError as error:
        raise ConfigError(f"{label}: nested too deeply") from error
