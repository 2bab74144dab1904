"""How layers lie over each other."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wyrmling.config.known import classes_of, shape_of
from wyrmling.config.merge import merge
from wyrmling.config.schema import Config
from wyrmling.config.tree import Node, Origin, build

TREES = st.recursive(
    st.integers() | st.text(max_size=3) | st.lists(st.integers(), max_size=3),
    lambda inner: st.dictionaries(st.sampled_from("abcd"), inner, max_size=4),
    max_leaves=12,
)
TABLES = st.dictionaries(st.sampled_from("abcd"), TREES, max_size=4)
DATASETS = {
    cls.model_fields["type"].default: cls for cls in classes_of(shape_of(Config.model_fields["dataset"]))
}


def layer(data: Any, label: str = "file") -> Node:
    return build(data, lambda _: Origin(label))


def merged(*layers: Any) -> Any:
    node = layer({})
    for data in layers:
        node = merge(node, layer(data))
    return node.plain()


@given(TABLES)
def test_an_empty_layer_changes_nothing_and_a_layer_over_itself_neither(data: dict[str, Any]) -> None:
    assert merged(data, {}) == data
    assert merged({}, data) == data
    assert merged(data, data) == data


SHAPED = st.recursive(
    st.dictionaries(st.sampled_from("abc"), st.integers(), max_size=3),
    lambda inner: st.builds(
        dict.__or__,
        st.dictionaries(st.sampled_from("abc"), st.integers(), max_size=3),
        st.dictionaries(st.sampled_from("xyz"), inner, max_size=3),
    ),
    max_leaves=8,
)
"""Tables in which a, b, c are always numbers and x, y, z always tables."""


@given(SHAPED, SHAPED, SHAPED)
def test_layers_may_be_joined_in_any_grouping(
    first: dict[str, Any], second: dict[str, Any], third: dict[str, Any]
) -> None:
    right = merge(layer(second), layer(third))
    assert merge(layer(first), right).plain() == merged(first, second, third)


@given(TABLES, TABLES)
def test_values_and_origins_come_from_the_upper_layer_where_it_speaks(
    base: dict[str, Any], over: dict[str, Any]
) -> None:
    lower, upper = layer(base, "lower"), layer(over, "upper")
    for path, node in merge(lower, upper).walk():
        if node.is_table:
            continue
        spoken = upper.find(path)
        assert node == (spoken if spoken is not None else lower.find(path))


@pytest.mark.parametrize("old", DATASETS)
@pytest.mark.parametrize("new", DATASETS)
def test_a_new_type_drops_exactly_the_keys_that_only_the_old_type_has(old: str, new: str) -> None:
    base = {
        **dict.fromkeys(DATASETS[old].model_fields, 1),
        "type": old,
        "typo": 1,
        "tokenizer": {"type": "bpe"},
    }
    result = merged({"dataset": base}, {"dataset": {"type": new}})["dataset"]
    gone = set(DATASETS[old].model_fields) - set(DATASETS[new].model_fields)
    assert set(result) == set(base) - gone
    assert result["type"] == new
    assert result["tokenizer"] == {"type": "bpe"}


def test_a_type_that_was_only_meant_by_default_gives_way_too() -> None:
    over = {"dataset": {"type": "local_text", "path": "x"}}
    assert merged({"dataset": {"package": "p", "split": "documents"}}, over)["dataset"] == {
        "type": "local_text",
        "path": "x",
        "split": "documents",
    }


def test_a_new_type_drops_old_keys_inside_an_inner_table() -> None:
    base = {"optimizer": {"lr_schedule": {"type": "cosine", "min_lr": 0.1, "warmup_steps": 3}}}
    over = {"optimizer": {"lr_schedule": {"type": "linear", "final_lr": 0.2}}}
    assert merged(base, over)["optimizer"]["lr_schedule"] == {
        "type": "linear",
        "final_lr": 0.2,
        "warmup_steps": 3,
    }


@pytest.mark.parametrize(
    ("table", "first", "second"),
    [
        ("training", "epochs", "max_iters"),
        ("training", "gradient_accumulation_steps", "target_effective_batch_size"),
        ("model", "latent_total", "mlp_internal_dim_multiplier"),
        ("optimizer", "grad_clip_norm", "grad_clip_value"),
    ],
)
def test_of_two_ways_to_say_one_thing_the_upper_layer_takes_the_other_back(
    table: str, first: str, second: str
) -> None:
    for lower, upper in ((first, second), (second, first)):
        assert merged({table: {lower: 1}}, {table: {upper: 2}})[table] == {upper: 2}
        assert merged({table: {lower: 1}}, {table: {upper: "none"}})[table] == {lower: 1, upper: "none"}
        assert merged({table: {lower: 1, upper: 2}})[table] == {lower: 1, upper: 2}
