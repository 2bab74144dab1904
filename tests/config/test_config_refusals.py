"""Names of other versions are recognised: refused in one line, or understood."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from wyrmling.config import load_config
from wyrmling.config.refusals import REFUSED_KEYS, REFUSED_VALUES, RENAMED_KEYS
from wyrmling.config.toml import toml_value

Write = Callable[[str, str], str]
Refusal = Callable[..., str]


@pytest.mark.parametrize(("old", "new"), RENAMED_KEYS.items())
def test_a_renamed_key_is_refused_with_its_new_name(
    write: Write, refusal: Refusal, old: str, new: str
) -> None:
    assert refusal(write("a.toml", f"\n{old} = 5\n")) == f"a.toml:2: {old} has a new name: use {new}"


@pytest.mark.parametrize(("key", "answer"), REFUSED_KEYS.items())
def test_a_key_that_is_not_there_is_refused_in_one_line(
    write: Write, refusal: Refusal, key: str, answer: str
) -> None:
    assert refusal(write("a.toml", f"\n{key} = 5\n")) == f"a.toml:2: {key} {answer}"


@pytest.mark.parametrize(
    ("key", "value", "answer"),
    [(key, value, answer) for key, values in REFUSED_VALUES.items() for value, answer in values.items()],
)
def test_a_value_that_is_not_there_is_refused_in_one_line(
    write: Write, refusal: Refusal, key: str, value: str | bool, answer: str
) -> None:
    message = refusal(write("a.toml", f"\n{key} = {toml_value(value)}\n"))
    assert message == f"a.toml:2: {key} = {toml_value(value)} {answer}"


@pytest.mark.parametrize(
    "text",
    [
        "training.tbptt_persist_across_steps = false",
        "model.quant = {enabled = false, bits = 4}",
        "training.module_lr_scales = []",
        "training.init_transfer = {}",
        'training.sequence_kernel_override = "none"',
        "parallel.pipeline.enabled = false",
        "parallel.tensor.size = 1",
        "parallel.data = {size = 1, find_unused_parameters = false}",
        "model.mhc.enabled = false",
        "model.fused_kernels = false",
        'generation.prompt_tokenizer = {source = "dataset"}',
        'generation.decode_tokenizer.source = "dataset"',
    ],
)
def test_a_refused_key_at_a_value_that_changes_nothing_is_dropped(write: Write, text: str) -> None:
    config = load_config(write("a.toml", text))
    assert config.to_dict() == load_config(write("b.toml", "")).to_dict()


@pytest.mark.parametrize("key", [*RENAMED_KEYS, *REFUSED_KEYS])
def test_options_are_refused_in_the_same_way(refusal: Refusal, key: str) -> None:
    message = refusal("tiny", overrides=(f"{key}=5",))
    assert message.startswith(f"--set {key}=5: {key} ")


def test_a_table_with_a_refused_type_says_only_that(write: Write, refusal: Refusal) -> None:
    path = write("a.toml", '[dataset]\ntype = "tiny_chat"\nmax_records = 5\n')
    assert refusal(path) == (
        'a.toml:2: dataset.type = "tiny_chat" is not built as a preset: '
        'use type = "hugging_face" with repo_id = "starhopp3r/TinyChat"'
    )
