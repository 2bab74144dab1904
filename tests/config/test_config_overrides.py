"""`--set`: one value over all files, never dropped in silence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wyrmling.config import load_config
from wyrmling.config.schema.training import Training
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
        ("optimizer.learning_rate=.001", "optimizer.learning_rate", 0.001),
        ("optimizer.learning_rate=1.", "optimizer.learning_rate", 1.0),
        ("optimizer.learning_rate=1E-3", "optimizer.learning_rate", 0.001),
        ("optimizer.learning_rate='0.001'", "optimizer.learning_rate", 0.001),
        ("training.seed=1_000", "training.seed", 1000),
        ("training.seed=1e3", "training.seed", 1000),
        ("training.seed=0x10", "training.seed", 16),
        ("training.seed=007", "training.seed", 7),
        ('training.seed="12"', "training.seed", 12),
        ("runtime.deterministic=True", "runtime.deterministic", True),
        ("runtime.deterministic='false'", "runtime.deterministic", False),
        ("runtime.compile=true", "runtime.compile", "on"),
        ("runtime.activation_memory=1e9", "runtime.activation_memory", 10**9),
        ("runtime.activation_memory=500 MB", "runtime.activation_memory", 500 * 10**6),
        ("run_layout.name=123", "run_layout.name", "123"),
        ("run_layout.name=1e3", "run_layout.name", "1e3"),
        ("run_layout.name=NULL", "run_layout.name", None),
        ("run_layout.name=none", "run_layout.name", None),
        ("generation.prompt=true", "generation.prompt", "true"),
        ("generation.prompt=12:30:00", "generation.prompt", "12:30:00"),
        ("generation.prompt='Tis nobler", "generation.prompt", "'Tis nobler"),
        ("generation.prompt=[1, 2]", "generation.prompt", "[1, 2]"),
        ("generation.prompt={a = 1}", "generation.prompt", "{a = 1}"),
        ("generation.prompt='{a = 1}'", "generation.prompt", "{a = 1}"),
        ("generation.prompt=none", "generation.prompt", "none"),
        ("dataset.cache_dir=C:\\new\\text", "dataset.cache_dir", "C:\\new\\text"),
        ("dataset.cache_dir=8", "dataset.cache_dir", "8"),
        ("dataset.exclude=[a.md, 12, true]", "dataset.exclude", ["a.md", "12", "true"]),
        ("dataset.exclude=[a.md,]", "dataset.exclude", ["a.md"]),
        ("dataset.exclude=[]", "dataset.exclude", []),
        ("dataset.exclude.0=5", "dataset.exclude", ["5"]),
        ("optimizer.grad_clip_value=none", "optimizer.grad_clip_value", None),
        ("dataset.tokenizer={type='char'}", "dataset.tokenizer.include_unknown", True),
        ("optimizer.grad_clip_norm=.5", "optimizer.grad_clip_norm", 0.5),
        ("generation.max_tokens=unlimited", "generation.max_tokens", "unlimited"),
    ],
)
def test_values_are_read_by_the_type_of_their_key(option: str, key: str, value: object) -> None:
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
        ("runtime.deterministic=yes", 'runtime.deterministic must be true or false, got "yes"'),
        ("runtime.deterministic=1", "runtime.deterministic must be true or false, got 1"),
        ("optimizer.learning_rate=0,001", 'optimizer.learning_rate must be a number, got "0,001"'),
        ("optimizer.learning_rate=inf", "optimizer.learning_rate must be a finite number, got inf"),
        ("training.max_iters=1.5e0", "training.max_iters must be a whole number, got 1.5"),
        ("training.max_iters=1e30", "training.max_iters must fit in 64 bits"),
        ("dataset.exclude=a,b", 'dataset.exclude must be a list, got "a,b" (such as [a, b])'),
        ("model.alibi_slopes=0.5", "model.alibi_slopes must be a list, got 0.5 (such as [0.5, 1])"),
        ("dataset.exclude=[a,,b]", "the value is not valid TOML: an item is empty"),
        ("dataset.exclude=['a', b]", "the value is not valid TOML: quote all of its items, or none"),
        ("dataset.path='x' 'y'", "the value is not valid TOML"),
        ("training.seed.x=1", "training.seed must be a whole number, got a table"),
        ("dataset.exclude=[1, 2", "the value is not valid TOML: Unclosed array"),
        ("optimizer.learning_rate='1", 'the value is not valid TOML: Expected "\'"'),
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
    assert refusal("tiny", overrides=(option,)).startswith(f"--set {option}: {message}")


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


@given(st.text(min_size=1).filter(lambda text: text.strip() and text.strip()[0] not in "\"'"))
def test_any_text_of_a_key_that_takes_text_is_kept(text: str) -> None:
    assert load_config("tiny", [f"generation.prompt={text}"]).generation.prompt == text.strip()


def test_the_type_of_a_table_may_be_set_after_its_keys(tmp_path: Path) -> None:
    """The key is unknown to the kind that the recipe has, and is read by what other kinds make of it."""
    config = load_config("tiny", ["dataset.path=123", "dataset.type=local_text"])
    assert config.to_dict()["dataset"]["path"] == "123"


def test_what_is_set_goes_into_lists_of_tables_by_the_type_of_their_keys() -> None:
    scales = "training.module_lr_scales=[{target = 'embedding', scale = 1.0}]"
    config = load_config("tiny", [scales, "training.module_lr_scales.0.scale=.25"])
    assert config.training.module_lr_scales[0].scale == 0.25


def test_a_refused_option_says_what_would_have_done(refusal: Refusal) -> None:
    said = refusal("tiny", overrides=("training.batch_size=many",))
    assert said.endswith(f"(its default is {Training().batch_size})")
