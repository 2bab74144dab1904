"""What pydantic found, said in one line with the dotted key, the accepted form and the value."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from .known import Shape, shape_of, table_at
from .locations import KeyPath
from .schema import Config
from .schema.base import LARGEST, Kinds

_KINDS_OF_VALUE = {
    "int_type": "a whole number",
    "int_parsing_size": "a whole number",
    "float_type": "a number",
    "string_type": "text",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "model_type": "a table",
    "model_attributes_type": "a table",
    "dict_type": "a table",
    "path_type": "text",
    "is_instance_of": "text",
    "byte_size": 'a number of bytes such as "500 MB"',
    "byte_size_unit": 'a number of bytes such as "500 MB"',
}
_WRONG_TYPE = {*_KINDS_OF_VALUE, "literal_error"}


def shown(value: Any) -> str:
    """A value as it stands in a TOML file, shortened."""
    if isinstance(value, bool) or value is None:
        text = {True: "true", False: "false", None: "none"}[value]
    elif isinstance(value, str | Path):
        text = json.dumps(str(value), ensure_ascii=False)
    elif isinstance(value, Mapping):
        text = "a table"
    elif isinstance(value, list | tuple):
        text = f"[{', '.join(shown(item) for item in value)}]"
    else:
        text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def toml_type(value: Any) -> str:
    """What TOML calls the type of a value."""
    names: dict[type, str] = {bool: "a boolean", int: "an integer", float: "a float", str: "a string"}
    names |= {dict: "a table", list: "an array"}
    return names.get(type(value), "a date or time")


def value_problems(error: ValidationError, data: Any, shape: Shape = Config) -> list[tuple[KeyPath, str]]:
    """The path and the text of every mistake about a value; unknown keys are reported elsewhere."""
    grouped: dict[KeyPath, list[Any]] = {}
    for item in error.errors(include_url=False):
        if item["type"] != "extra_forbidden":
            path = _path_of(item["loc"], data, shape)
            if item["type"].startswith("union_tag") and isinstance(item["input"], Mapping):
                path += ("type",)
            grouped.setdefault(path, []).append(item)
    inner = {path[:depth] for path in grouped for depth in range(len(path))}
    problems = []
    for path, items in grouped.items():
        if path not in inner or all(item["type"] == "missing" for item in items):
            problems.append((path, _text(path, items)))
    return problems


def _path_of(location: Iterable[str | int], data: Any, shape: Shape) -> KeyPath:
    """The keys of a location; names of kinds and of branches of a union are left out."""
    path: KeyPath = ()
    for part in location:
        if isinstance(shape, Kinds):
            shape = shape.variants.get(str(part))
        elif isinstance(part, int):
            path += (part,)
            data = data[part] if isinstance(data, list) and part < len(data) else None
        elif shape is not None:
            cls = table_at(shape, data)
            if cls is None or part not in cls.model_fields:
                continue
            path += (part,)
            shape = shape_of(cls.model_fields[str(part)])
            data = data.get(part) if isinstance(data, Mapping) else None
    return path


def _text(path: KeyPath, items: list[Any]) -> str:
    key = ".".join(map(str, path)) or "the configuration"
    decisive = next((item for item in items if item["type"] not in _WRONG_TYPE), None)
    value = items[0].get("input")
    if decisive is None:
        forms = dict.fromkeys(form for item in items for form in _forms(item))
        return f"{key} must be {_either(list(forms))}, got {shown(value)}{_near(items, value)}"
    context = decisive.get("ctx", {})
    match decisive["type"]:
        case "missing":
            return f"{key} is missing{_needed_by(path, value)}"
        case "greater_than":
            return f"{key} must be > {context['gt']:g}, got {shown(value)}"
        case "greater_than_equal":
            return f"{key} must be >= {context['ge']:g}, got {shown(value)}"
        case "less_than" if context["lt"] == LARGEST:
            return f"{key} must fit in 64 bits, got {shown(value)}"
        case "less_than":
            return f"{key} must be < {context['lt']:g}, got {shown(value)}"
        case "less_than_equal":
            return f"{key} must be <= {context['le']:g}, got {shown(value)}"
        case "finite_number":
            return f"{key} must be a finite number, got {shown(value)}"
        case "string_unicode":
            return f"{key} must be UTF-8 text (rename the file, or use a link to it), got {shown(value)}"
        case "string_too_short" | "too_short":
            return f"{key} must not be empty"
        case "string_too_long" | "too_long":
            return f"{key} is too long, got {shown(value)}"
        case "string_pattern_mismatch":
            return f"{key} has characters that are not allowed, got {shown(value)}"
        case "union_tag_invalid" | "union_tag_not_found":
            return _kind_text(key.removesuffix(".type"), decisive, value)
        case "value_error":
            return f"{key} {context['error']}, got {shown(value)}"
        case _:
            return f"{key}: {decisive['msg']}, got {shown(value)}"


def _needed_by(path: KeyPath, table: Any) -> str:
    kind = table.get("type") if isinstance(table, Mapping) else None
    return f' ({".".join(map(str, path[:-1]))}.type = "{kind}" needs it)' if kind else ""


def _forms(item: Any) -> list[str]:
    if item["type"] == "literal_error":
        return [part.replace("'", '"') for part in item["ctx"]["expected"].replace(" or ", ", ").split(", ")]
    return [_KINDS_OF_VALUE[item["type"]]]


def _kind_text(key: str, item: Any, value: Any) -> str:
    if not isinstance(value, Mapping):
        return f"{key} must be a table, got {shown(value)}"
    names = [name.strip("'") for name in item.get("ctx", {}).get("expected_tags", "").split(", ") if name]
    if "type" not in value:
        return f"{key}.type is missing"
    choices = _either([f'"{name}"' for name in names]) if names else "text"
    return f"{key}.type must be {choices}, got {shown(value['type'])}{_nearest(value['type'], names)}"


def _either(forms: list[str]) -> str:
    return forms[0] if len(forms) == 1 else f"{', '.join(forms[:-1])} or {forms[-1]}"


def _near(items: list[Any], value: Any) -> str:
    names = [form.strip('"') for item in items if item["type"] == "literal_error" for form in _forms(item)]
    return _nearest(value, names)


def _nearest(value: Any, names: list[str]) -> str:
    import difflib

    if not isinstance(value, str):
        return ""
    found = difflib.get_close_matches(value, names, 1)
    found = found or [name for name in names if len(value) > 3 and value in name]
    return f' (did you mean "{found[0]}"?)' if found else ""
