"""A configuration as TOML, with the origin of every value."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from .schema import Config
from .schema.base import UNSET


def as_toml(config: Config) -> str:
    """Every value, defaults included, each with a comment on where it comes from; it can be loaded again."""
    return "\n".join(_table(config, config.to_dict(), "")) + "\n"


def toml_value(value: Any) -> str:
    """A value in TOML syntax (unset: the text "none")."""
    if value is None:
        return toml_value(UNSET)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list | tuple):
        return f"[{', '.join(toml_value(item) for item in value)}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key} = {toml_value(item)}' for key, item in value.items())}}}"
    return repr(value)


def _table(config: Config, data: Mapping[str, Any], path: str) -> Iterator[str]:
    values = {key: value for key, value in data.items() if not isinstance(value, dict)}
    if "type" in values:
        values = {"type": values.pop("type"), **values}
    if path and values:
        yield f"[{path}]"
    lines = {key: f"{key} = {toml_value(value)}" for key, value in values.items()}
    width = max((len(line) for line in lines.values() if len(line) <= 60), default=0)
    for key, line in lines.items():
        yield f"{line:<{width}}  # {config.origin(f'{path}.{key}' if path else key)}"
    if values:
        yield ""
    for key, value in data.items():
        if isinstance(value, dict):
            yield from _table(config, value, f"{path}.{key}" if path else key)
