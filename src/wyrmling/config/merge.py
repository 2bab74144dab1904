"""How one layer of the configuration lies over another.

- A table over a table merges key by key; anything else replaces what was there (lists as a whole).
- When the upper layer changes a table's `type`, the keys that belong to the old type and not to the new one
  are dropped; keys that both have, and keys that neither knows (they are reported later), stay.
- Where two keys say the same thing in two ways (`epochs` and `max_iters`), the upper layer's takes the
  other back.
"""

from __future__ import annotations

from typing import Any

from .known import Shape, child_shape, table_at
from .schema import Config
from .schema.base import UNSET, Kinds
from .tree import Node


def merge(base: Node, over: Node, shape: Shape = Config) -> Node:
    """Lay `over` over `base`; `shape` is what the schema knows about this place."""
    if not (base.is_table and over.is_table):
        return over
    kept = _without_alternatives(_without_old_kind(base.value, over, shape), over, shape)
    data = {key: child.value for key, child in (kept | over.value).items()}
    merged = dict(kept)
    for key, child in over.value.items():
        below = kept.get(key)
        merged[key] = child if below is None else merge(below, child, child_shape(shape, data, key))
    return Node(merged, base.origin if base.value else over.origin)


def _scalars(table: dict[str, Node]) -> dict[str, Any]:
    return {key: child.value for key, child in table.items()}


def _without_old_kind(base: dict[str, Node], over: Node, shape: Shape) -> dict[str, Node]:
    if not isinstance(shape, Kinds) or "type" not in over.value:
        return base
    old, new = table_at(shape, _scalars(base)), table_at(shape, _scalars(over.value))
    if old is None or new is None or old is new:
        return base
    dropped = set(old.model_fields) - set(new.model_fields)
    return {key: child for key, child in base.items() if key not in dropped}


def _without_alternatives(base: dict[str, Node], over: Node, shape: Shape) -> dict[str, Node]:
    cls = table_at(shape, _scalars({**base, **over.value}))
    if cls is None:
        return base
    dropped = {
        other
        for pair in cls.alternatives
        for given, other in (pair, pair[::-1])
        if given in over.value and other not in over.value and over.value[given].value not in (None, UNSET)
    }
    return {key: child for key, child in base.items() if key not in dropped}
