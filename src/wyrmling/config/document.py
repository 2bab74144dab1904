"""The reference page and the JSON schema of the configuration, made from the schema itself."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import ByteSize
from pydantic.fields import FieldInfo

from .known import Shape, classes_of, shape_of
from .messages import shown
from .recipes import list_recipes
from .refusals import REFUSED_KEYS, REFUSED_VALUES, RENAMED_KEYS
from .rules import RULES
from .schema import Config
from .schema.base import LARGEST, UNSET, Kinds, Table, Variant
from .schema.dataset import DatasetOptions

INTRODUCTION = """\
# Configuration

This page is made from the schema by `wyrmling config docs`; do not edit it.

A configuration is TOML. `wyrmling train a.toml b.toml` lays `b.toml` over `a.toml`; without a file the recipe
`shakespeare` is used. A file may begin with `extends = "other.toml"` (or a list), relative to itself, or
the name of a recipe. Other paths are relative to the working directory.

- A table over a table merges key by key; anything else replaces what was there, lists as a whole.
- A new `type` of a table drops the keys that only the old type has.
- Of two keys that say the same thing in two ways (`epochs` and `max_iters`, `latent_total` and
  `mlp_internal_dim_multiplier`, `grad_clip_norm`, `grad_clip_norm_per_tensor` and `grad_clip_value`,
  `field` and `template`, `gradient_accumulation_steps` and `target_effective_batch_size`) the later file's wins.
- `"none"` leaves an optional key unset.
- `--set training.batch_size=16` lays one value over all files. It is read by the type of its key:
  `run_layout.name=7` is text, `optimizer.learning_rate=.001` a number, `none` leaves an optional key unset; text needs
  no quotes, tables are TOML. Items of a list are numbered (`--set dataset.train_files.0=a.jsonl`); when a key is set
  twice, the later one wins.

Unknown keys are errors. `wyrmling config show` prints the result, every value with the file and line it
comes from.
"""


def config_page() -> str:
    """The whole reference page, Markdown."""
    lines = [INTRODUCTION, "## Recipes", ""]
    lines += [f"- `{recipe.name}`: {recipe.description}" for recipe in list_recipes()]
    lines.append("")
    for name, field in Config.model_fields.items():
        lines += _section(name, field)
    lines += _rules()
    lines += _refused()
    return "\n".join(lines).rstrip() + "\n"


def _section(path: str, field: FieldInfo) -> Iterator[str]:
    """A table of the configuration and, after it, the tables inside it."""
    shape = shape_of(field)
    yield f"## `[{path}]`"
    yield ""
    unset = " Unset by default." if field.default is None else ""
    many = f" Each is a table `[[{path}]]`." if get_origin(field.annotation) is tuple else ""
    yield f"{field.description}{many}{unset}"
    yield ""
    if path == "dataset.validation":
        own = ", ".join(f"`{name}`" for name in DatasetOptions.model_fields)
        yield f"The types and keys are those of `[dataset]`, without {own}."
        yield ""
        return
    classes = classes_of(shape)
    if isinstance(shape, Kinds) and len(classes) > 1:
        yield from _kinds(path, shape)
    else:
        yield from _rows(classes[0].model_fields)
    inner = {
        name: child
        for cls in classes
        for name, child in cls.model_fields.items()
        if shape_of(child) is not None
    }
    for name, child in inner.items():
        yield from _section(f"{path}.{name}", child)


def _kinds(path: str, shape: Kinds) -> Iterator[str]:
    """The keys that all kinds have, then those of each kind."""
    classes = list(shape.variants.values())
    common = {
        name: field
        for name, field in classes[0].model_fields.items()
        if name != "type" and all(name in cls.model_fields for cls in classes)
    }
    if common:
        yield "With every `type`:"
        yield ""
        yield from _rows(common)
    for kind, cls in shape.variants.items():
        default = " (the default)" if kind == shape.default else ""
        yield f'### `{path}.type = "{kind}"`{default}'
        yield ""
        yield str(cls.model_fields["type"].description)
        yield ""
        own = {name: field for name, field in cls.model_fields.items() if name not in (*common, "type")}
        if own:
            yield from _rows(own)


def _rows(fields: dict[str, FieldInfo]) -> Iterator[str]:
    yield "| key | type | default | meaning |"
    yield "|---|---|---|---|"
    for name, field in fields.items():
        description = str(field.description).replace("|", "\\|")
        yield f"| `{name}` | {type_text(field)} | {_default(field)} | {description} |"
    yield ""


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    if field.default_factory is not None:
        return ""
    return "unset" if field.default is None else f"`{shown(field.default)}`"


def type_text(field: FieldInfo) -> str:
    """The accepted form of a key, in words."""
    return _type(field.annotation, field.metadata)


def _type(annotation: Any, metadata: Sequence[Any]) -> str:
    if get_origin(annotation) is Annotated:
        inner, *more = get_args(annotation)
        return _type(inner, [*more, *metadata])
    shape = _shape_or_none(annotation, metadata)
    if shape is not None:
        return "table"
    if get_origin(annotation) is Literal:
        return ", ".join(f"`{shown(value)}`" for value in get_args(annotation))
    arguments = get_args(annotation)
    if get_origin(annotation) is tuple:
        return f"list of {_type(arguments[0], [])}"
    if arguments:
        forms = [_type(argument, metadata) for argument in arguments if argument is not type(None)]
        return " or ".join(dict.fromkeys(forms))
    names: dict[Any, str] = {
        int: "whole number",
        float: "number",
        bool: "true/false",
        str: "text",
        Path: "path",
        ByteSize: "number of bytes",
    }
    limits = list(_limits(metadata))
    return " ".join([names[annotation], ", ".join(limits)]).strip()


def _shape_or_none(annotation: Any, metadata: Sequence[Any]) -> Shape:
    if any(isinstance(item, Kinds) for item in metadata):
        return next(item for item in metadata if isinstance(item, Kinds))
    return annotation if isinstance(annotation, type) and issubclass(annotation, Table) else None


def _limits(metadata: Sequence[Any]) -> Iterator[str]:
    for item in metadata:
        match item:
            case FieldInfo():
                yield from _limits(item.metadata)
            case Gt(gt=limit):
                yield f"> {limit}"
            case Ge(ge=limit):
                yield f">= {limit}"
            case Lt(lt=limit) if limit != LARGEST:
                yield f"< {limit}"
            case Le(le=limit):
                yield f"<= {limit}"


def _rules() -> Iterator[str]:
    """The rules that tie keys together, by their names."""
    yield "## Rules"
    yield ""
    yield "What keys must obey together. Every rule is checked whenever a configuration is made; a broken one is told"
    yield "with its keys, and the file and line of the one that was written. Ranges of single keys stand above."
    yield ""
    yield "| rule | what must hold |"
    yield "|---|---|"
    for rule in RULES:
        yield f"| `{rule.name}` | {rule.text} |"
    yield ""


def _refused() -> Iterator[str]:
    """The names of `refusals`, those with the same answer on one line."""
    yield "## Recognised and refused"
    yield ""
    yield "These names are known; a configuration that uses them is refused in one line that says so."
    yield ""
    yield "| name | answer |"
    yield "|---|---|"
    for key, new in RENAMED_KEYS.items():
        yield f"| `{key}` | has a new name: use `{new}` |"
    for answer in dict.fromkeys(REFUSED_KEYS.values()):
        keys = ", ".join(f"`{key}`" for key, other in REFUSED_KEYS.items() if other == answer)
        yield f"| {keys} | {answer} |"
    for key, values in REFUSED_VALUES.items():
        for answer in dict.fromkeys(values.values()):
            names = ", ".join(f"`{shown(value)}`" for value, other in values.items() if other == answer)
            yield f"| `{key}` = {names} | {answer} |"
    yield ""


def json_schema() -> dict[str, Any]:
    """The JSON schema (draft 2020-12) of one configuration file, for editors and other programs.

    A file may leave out anything that has a default. `extends` is allowed, and "none" wherever a key may be
    unset.
    """
    schema = Config.model_json_schema()
    required = {
        cls.__name__ for cls in _variants(Table) if issubclass(cls, Variant) and not cls.default_variant
    }
    for name, definition in schema.get("$defs", {}).items():
        if name in required and "type" in definition.get("properties", {}):
            definition["required"] = sorted({*definition.get("required", []), "type"})
    schema["properties"]["extends"] = {
        "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
        "description": "Files or recipes that this file is laid over.",
    }
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "wyrmling configuration"}
    return head | {key: _unsettable(value) for key, value in schema.items() if key != "title"}


def json_schema_text() -> str:
    """`json_schema` as a file's content."""
    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"


def _variants(cls: type[Table]) -> Iterator[type[Table]]:
    for child in cls.__subclasses__():
        yield child
        yield from _variants(child)


def _unsettable(value: Any) -> Any:
    """Accept "none" wherever null is accepted."""
    if value == {"type": "null"}:
        return {"enum": [None, UNSET]}
    if isinstance(value, dict):
        return {key: _unsettable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_unsettable(item) for item in value]
    return value
