"""What the schema knows: which keys a table has, and which known key is nearest to an unknown one."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import ByteSize
from pydantic.fields import FieldInfo

from .locations import KeyPath
from .schema import Config
from .schema.base import Kinds, Table

Shape = type[Table] | Kinds | None
"""What is known about a place: a table, a table that comes in kinds, or (None) a plain value."""

SYNONYMS = {
    "lr": "optimizer.learning_rate",
    "wd": "optimizer.weight_decay",
    "clip": "optimizer.grad_clip_norm",
    "max_grad_norm": "optimizer.grad_clip_norm",
    "warmup": "optimizer.lr_schedule.warmup_steps",
    "bs": "training.batch_size",
    "steps": "training.max_iters",
    "max_steps": "training.max_iters",
    "num_steps": "training.max_iters",
    "iterations": "training.max_iters",
    "context_length": "training.block_size",
    "sequence_length": "training.block_size",
    "seq_len": "training.block_size",
    "accumulation": "training.gradient_accumulation_steps",
    "d_model": "model.n_embd",
    "hidden_size": "model.n_embd",
    "num_layers": "model.n_layer",
    "num_heads": "model.n_head",
    "neurons": "model.latent_total",
    "precision": "runtime.dtype",
    "output_dir": "run_layout.base_dir",
}
"""Names that other programs use."""


def shape_of(field: FieldInfo) -> Shape:
    """What a field holds."""
    return _shape(field.annotation, tuple(field.metadata))


def _shape(annotation: Any, metadata: tuple[Any, ...]) -> Shape:
    for item in metadata:
        if isinstance(item, Kinds):
            return item
    if get_origin(annotation) is Annotated:
        inner, *more = get_args(annotation)
        return _shape(inner, tuple(more))
    if isinstance(annotation, type):
        return annotation if issubclass(annotation, Table) else None
    for option in get_args(annotation):
        found = _shape(option, ())
        if found is not None:
            return found
    return None


def table_at(shape: Shape, data: Any) -> type[Table] | None:
    """The class of a table, decided by its `type` where it comes in kinds; None when it cannot be decided."""
    if not isinstance(shape, Kinds):
        return shape
    kind = shape.kind_of(data) if isinstance(data, dict) else None
    return shape.variants.get(kind) if isinstance(kind, str) else None


def classes_of(shape: Shape) -> tuple[type[Table], ...]:
    """Every class that a place can hold."""
    if isinstance(shape, Kinds):
        return tuple(shape.variants.values())
    return (shape,) if shape is not None else ()


def child_shape(shape: Shape, data: Any, key: str) -> Shape:
    """What is known about a key of a table."""
    decided = table_at(shape, data)
    for cls in (decided,) if decided is not None else classes_of(shape):
        if key in cls.model_fields:
            return shape_of(cls.model_fields[key])
    return None


@dataclass(frozen=True)
class Forms:
    """What a key takes, of the things that a person can write behind `--set`.

    Attributes:
        kinds: of bool, int and float, those that it takes.
        text: whether it takes any text.
        words: texts that it takes where it does not take any.
        items: what the items of a list may be; None where it takes no list.
        optional: whether it can be left unset.
    """

    kinds: frozenset[type] = frozenset()
    text: bool = False
    words: frozenset[str] = frozenset()
    items: Forms | None = None
    optional: bool = False

    def __or__(self, other: Forms) -> Forms:
        return Forms(
            self.kinds | other.kinds,
            self.text or other.text,
            self.words | other.words,
            other.items if self.items is None else self.items,
            self.optional or other.optional,
        )


def forms_at(path: KeyPath, data: Any) -> Forms:
    """What the key at a path takes; `data` is the configuration so far, which decides the kinds of its tables."""
    if str(path[-1]).isdecimal():
        return forms_at(path[:-1], data).items or Forms()
    return functools.reduce(
        Forms.__or__, (_forms(field.annotation) for field in fields_at(path, data)), Forms()
    )


def fields_at(path: KeyPath, data: Any) -> list[FieldInfo]:
    """The field of a key; where the kind of its table is not known, or does not have it, of every kind that does."""
    *around, key = (str(part) for part in path)
    shape: Shape = Config
    for part in around:
        table = data if isinstance(data, dict) else {}
        if part.isdecimal():  # an item of a list of tables, which has the shape of the list
            data = data[int(part)] if isinstance(data, list) and int(part) < len(data) else {}
        else:
            shape, data = child_shape(shape, table, part), table.get(part)
    decided = table_at(shape, data if isinstance(data, dict) else {})
    classes = (decided,) if decided is not None and key in decided.model_fields else classes_of(shape)
    return [cls.model_fields[key] for cls in classes if key in cls.model_fields]


def _forms(annotation: Any) -> Forms:
    inner = get_args(annotation)
    if get_origin(annotation) is Annotated:
        return _forms(inner[0])
    if get_origin(annotation) is Literal:
        return Forms(words=frozenset(map(str, inner)))
    if get_origin(annotation) is tuple:
        return Forms(items=_forms(inner[0]))
    if inner:  # a union
        return functools.reduce(Forms.__or__, map(_forms, inner))
    return Forms(
        kinds=frozenset({int if annotation is ByteSize else annotation} & {bool, int, float}),
        text=annotation in (str, Path, ByteSize),
        optional=annotation is type(None),
    )


def walk_keys(shape: Shape = Config, path: KeyPath = ()) -> Iterator[tuple[KeyPath, FieldInfo, type[Table]]]:
    """Every key of the schema with its table; keys common to several kinds come once per kind."""
    for cls in classes_of(shape):
        for name, field in cls.model_fields.items():
            yield (*path, name), field, cls
            yield from walk_keys(shape_of(field), (*path, name))


@functools.cache
def known_keys() -> tuple[str, ...]:
    """Every dotted key, once."""
    return tuple(dict.fromkeys(".".join(map(str, path)) for path, _, _ in walk_keys()))


def unknown_keys(data: Any, shape: Shape = Config, path: KeyPath = ()) -> Iterator[tuple[KeyPath, str]]:
    """Every key that its table does not have, with what to say about it."""
    if isinstance(data, list):
        for index, item in enumerate(data):
            yield from unknown_keys(item, shape, (*path, index))
    if not isinstance(data, dict) or shape is None:
        return
    cls = table_at(shape, data)
    if cls is None:
        return
    for key, value in data.items():
        if key in cls.model_fields:
            yield from unknown_keys(value, shape_of(cls.model_fields[key]), (*path, key))
        else:
            yield (*path, key), _about_unknown((*path, key), cls, shape)


def _about_unknown(path: KeyPath, cls: type[Table], shape: Shape) -> str:
    table, key = ".".join(map(str, path[:-1])), str(path[-1])
    if isinstance(shape, Kinds):
        kinds = [name for name, other in shape.variants.items() if key in other.model_fields]
        if kinds:
            mine = cls.model_fields["type"].default
            theirs = ", ".join(f'"{kind}"' for kind in kinds)
            return f'{table}.{key} does not belong to {table}.type = "{mine}" (it belongs to {theirs})'
    nearest = nearest_key(path, cls)
    hint = f" (did you mean {nearest}?)" if nearest else ""
    return f"{'.'.join(map(str, path))}: unknown {'key' if len(path) > 1 else 'key or table'}{hint}"


def nearest_key(path: KeyPath, cls: type[Table]) -> str | None:
    """The known key that was most probably meant: here, or in another table."""
    import difflib

    table, key = ".".join(map(str, path[:-1])), str(path[-1]).replace("-", "_").lower()
    prefix = f"{table}." if table else ""
    if key in cls.model_fields:
        return prefix + key
    elsewhere = [known for known in known_keys() if known.rpartition(".")[2] == key]
    if elsewhere:
        return difflib.get_close_matches(prefix + key, elsewhere, 1, 0.0)[0]
    if key in SYNONYMS:
        return SYNONYMS[key]
    here = difflib.get_close_matches(key, cls.model_fields, 1, 0.75)
    here = here or [name for name in cls.model_fields if len(key) > 2 and name.startswith(key)]
    if here:
        return prefix + here[0]
    leaves = {known.rpartition(".")[2]: known for known in reversed(known_keys())}
    found = difflib.get_close_matches(key, leaves, 1, 0.7)
    return leaves[found[0]] if found else None
