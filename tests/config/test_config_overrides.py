"""`--set`: one value over all files, never dropped in silence."""

from __future__ import annotations

import tomllib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wyrmling.config import load_config
from wyrmling.errors import ConfigError

Write = Callable[[str, str], str]
Refusal = Callable[..., str]


@pytest.mark.parametrize(
    ("option", "key", "value"),
    [
        ("training.seed=3", "training.seed", 3),
        (" training . seed = 3 ", "training.seed", 3),
        ("optimizer.learning_rate=5e-4", "optimizer.learning_rate", 5e-4),
        ("optimizer.learning_rate=1", "optimizer.learning_rate", 1.0),
        ("runtime.device=cpu", "runtime.device", "cpu"),
        ('runtime.device="cpu"', "runtime.device", "cpu"),
        ("runtime.deterministic=false", "runtime.deterministic", False),
        ("generation.prompt=To be, or not to be", "generation.prompt", "To be, or not to be"),
        ("generation.prompt=a=b", "generation.prompt", "a=b"),
        ("generation.prompt=# Act I", "generation.prompt", "# Act I"),
        ('generation.prompt=""', "generation.prompt", ""),
        ('generation.prompt="tab\\t"', "generation.prompt", "tab\t"),
        ("generation.prompt=one\nvalue = 2", "generation.prompt", "one\nvalue = 2"),
        ("run_layout.name=2024-01-31", "run_layout.name", "2024-01-31"),
        ("training.max_iters=none", "training.max_iters", None),
        ("optimizer.grad_clip_norm=off", "optimizer.grad_clip_norm", "off"),
        ("dataset.exclude=['a', 'b']", "dataset.exclude", ["a", "b"]),
        ("dataset.exclude.0=a.md", "dataset.exclude", ["a.md"]),
        ("optimizer.lr_schedule={type='linear', final_lr=0.5}", "optimizer.lr_schedule.final_lr", 0.5),
        ("dataset.tokenizer.type=char", "dataset.tokenizer.include_unknown", True),
        ("dataset.type=shakespeare", "dataset.type", "shakespeare"),
    ],
)
def test_values_are_toml_or_bare_text(option: str, key: str, value: object) -> None:
    more = ["training.epochs=1"] if key == "training.max_iters" else []
    found: object = load_config("tiny", [option, *more]).to_dict()
    for part in key.split("."):
        assert isinstance(found, dict)
        found = found[part]
    assert found == value


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("training.batch_size", "write key=value, for example training.batch_size=16"),
        ("optim.lr 1e-5", "write key=value, for example training.batch_size=16"),
        ("", "write key=value, for example training.batch_size=16"),
        ("=3", "the key before = is missing"),
        ("=", "the key before = is missing"),
        ("training..seed=3", "the key has an empty part"),
        (".seed=3", "the key has an empty part"),
        ("training.batch_size=", 'the value after = is missing (an empty text is "", unset is none)'),
        ("training.batch_size=  ", 'the value after = is missing (an empty text is "", unset is none)'),
        ("foobar=1", "foobar: unknown key or table"),
        ("training.foobar=1", "training.foobar: unknown key"),
        ("optim.lr=1e-5", "optim: unknown key or table (did you mean optimizer?)"),
        ("training.batch_size=-1", "training.batch_size must be > 0, got -1"),
        ("training.batch_size=0", "training.batch_size must be > 0, got 0"),
        ("training.batch_size=two", 'training.batch_size must be a whole number, got "two"'),
        ("training.block_size=16.5", "training.block_size must be a whole number, got 16.5"),
        ("training.block_size=true", "training.block_size must be a whole number, got true"),
        ("model.dropout=1.5", "model.dropout must be < 1, got 1.5"),
        ("model.dropout=-0.1", "model.dropout must be >= 0, got -0.1"),
        ("training.gradient_accumulation_steps=0", "training.gradient_accumulation_steps must be > 0, got 0"),
        ("parallel.world_size=3", 'parallel.world_size must be 1 when parallel.mode is "single", got 3'),
        ("parallel.world_size=0", "parallel.world_size must be > 0, got 0"),
        ("runtime.deterministic=True", 'runtime.deterministic must be true or false, got "True"'),
        ("training.seed.x=1", "training.seed must be a whole number, got a table"),
        ("dataset.exclude=[1, 2", "the value is not valid TOML: Unclosed array"),
        ("generation.prompt='x", 'the value is not valid TOML: Expected "\'"'),
        (
            "dataset.exclude.7=x",
            "dataset.exclude is a list of 1; its items are numbered from 0, '7' is none of them",
        ),
        (
            "dataset.exclude.x=1",
            "dataset.exclude is a list of 1; its items are numbered from 0, 'x' is none of them",
        ),
        ("dataset.exclude.0.x=1", "dataset.exclude.0 is a single value, not a table"),
        (
            "training.module_lr_scales.0.scale=1",
            "training.module_lr_scales is empty: give the whole list, --set 'training.module_lr_scales=[...]'",
        ),
    ],
)
def test_a_malformed_or_unknown_option_is_refused_by_name(
    refusal: Refusal, option: str, message: str
) -> None:
    assert refusal("tiny", overrides=(option,)) == f"--set {option}: {message}"


def test_line_ends_in_an_option_or_key_are_written_out(write: Write, refusal: Refusal) -> None:
    assert refusal("tiny", overrides=("a\nb",)).startswith("--set a\\nb: write key=value")
    assert refusal("tiny", overrides=("model.n_head=a\nb",)).startswith("--set model.n_head=a\\nb: ")
    assert refusal(write("a.toml", '"a\\nb" = 1\n')) == "a.toml:1: a\\nb: unknown key or table"


def test_when_a_key_is_set_twice_the_later_one_wins() -> None:
    config = load_config("tiny", ["training.seed=1", "training.seed=2"])
    assert config.training.seed == 2
    with pytest.raises(ConfigError, match="seed must be"):
        load_config("tiny", ["training.seed=1", "training.seed=two"])


def test_items_of_a_default_list_are_set_by_number(write: Write) -> None:
    path = write("a.toml", '[dataset]\ntype = "hugging_face"\nrepo_id = "a/b"\n')
    config = load_config(path, ["dataset.train_files.0=x.jsonl"])
    assert config.to_dict()["dataset"]["train_files"] == ["x.jsonl"]
    assert config.origin("dataset.train_files.0") == "--set"


@given(st.integers(0, 2), st.integers(1, 99))
def test_setting_one_item_leaves_the_others(index: int, value: int) -> None:
    over = ["model.n_head=3", "model.n_embd=6", "model.latent_total=60", "model.rotary_embedding=alibi"]
    config = load_config(
        "tiny", [*over, "model.alibi_slopes=[101, 102, 103]", f"model.alibi_slopes.{index}={value}"]
    )
    expected = [101.0, 102.0, 103.0]
    expected[index] = value
    assert config.model.alibi_slopes == tuple(expected)


@given(st.text(min_size=1).filter(lambda text: text.strip() and text.strip()[0] not in "\"'[{"))
def test_any_text_after_the_key_is_kept_or_refused_never_lost(text: str) -> None:
    option = f"generation.prompt={text}"
    try:
        is_value = list(tomllib.loads(f"value = {text.strip()}")) == ["value"]
    except tomllib.TOMLDecodeError:
        is_value = False
    if is_value:
        with pytest.raises(ConfigError, match="prompt must be text"):
            load_config("tiny", [option])
    else:
        assert load_config("tiny", [option]).generation.prompt == text.strip()
