"""The table `optimizer`: what goes together, what is refused, and with which words."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from wyrmling.config import Config, load_config
from wyrmling.errors import ConfigError

Write = Callable[[str, str], str]
Refusal = Callable[..., str]

NOT_MUON = 'requires optimizer.name = "muon" (it is "adamw")'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("muon.momentum = 0.9", f"a.toml:2: optimizer.muon.momentum {NOT_MUON}"),
        ("muon = {split_heads = false}", f"a.toml:2: optimizer.muon.split_heads {NOT_MUON}"),
        (
            "weight_decay_final = 0.05",
            'a.toml:2: optimizer.weight_decay_final requires optimizer.schedule_mode = "bitnet_b158_reference" or '
            'optimizer.name = "bitnet_published" (they are "bdh_reference" and "adamw")',
        ),
        (
            'lr_schedule = {type = "noam", warmup_steps = 30}\n[training]\nmax_iters = 20',
            "a.toml:2: optimizer.lr_schedule.warmup_steps must be <= training.max_iters (30 > 20)",
        ),
        (
            "grad_clip_norm = 1.0\ngrad_clip_norm_per_tensor = 1.0",
            "a.toml:3: optimizer.grad_clip_norm_per_tensor cannot be combined with optimizer.grad_clip_norm (set it "
            'to "off")',
        ),
        (
            'grad_clip_norm = "off"\ngrad_clip_value = 1.0\ngrad_clip_norm_per_tensor = 1.0',
            "a.toml:4: optimizer.grad_clip_norm_per_tensor cannot be combined with optimizer.grad_clip_value",
        ),
    ],
)
def test_broken_rules_name_file_key_and_numbers(
    write: Write, refusal: Refusal, text: str, message: str
) -> None:
    assert refusal(write("a.toml", f"[optimizer]\n{text}\n")) == message


@pytest.mark.parametrize(
    "setting",
    [
        "muon.momentum=1.0",
        "muon.momentum=0",
        "muon.ns_steps=0",
        "muon.ns_steps=21",
        "muon.ns_steps=2.5",
        "muon.adjust_lr_fn=none",
        "muon.lr_scale=0",
        "muon.dtype=float16",
        "muon.steps=5",
        "weight_decay_final=-0.1",
        "grad_clip_norm_per_tensor=0",
        "name=sgd",
    ],
)
def test_values_out_of_range_are_refused_by_name(refusal: Refusal, setting: str) -> None:
    message = refusal("tiny", overrides=("optimizer.name=muon", f"optimizer.{setting}"))
    assert message.startswith(f"--set optimizer.{setting}: optimizer.{setting.partition('=')[0]}")
    assert "\n" not in message


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"type": "exponential"}, "gamma"),
        ({"type": "exponential", "gamma": 1.5}, "gamma"),
        ({"type": "step", "gamma": 0.0}, "gamma"),
        ({"type": "step", "step_size": 0}, "step_size"),
        ({"type": "noam", "initial_lr": 0.0}, "initial_lr"),
        ({"type": "noam", "model_size": 0}, "model_size"),
        ({"type": "noam", "min_lr": 0.1}, "min_lr"),
    ],
)
def test_schedules_have_their_own_keys_and_ranges(keys: dict[str, object], named: str) -> None:
    with pytest.raises(ConfigError, match=rf"optimizer\.lr_schedule\.{named}"):
        Config.from_dict({"optimizer": {"lr_schedule": keys}})


def test_one_way_of_clipping_takes_another_back() -> None:
    def clipping(*settings: str) -> tuple[object, object, object]:
        table = load_config("tiny", [f"optimizer.{setting}" for setting in settings]).optimizer
        return table.grad_clip_norm, table.grad_clip_norm_per_tensor, table.grad_clip_value

    assert clipping() == (1.0, None, None)
    assert clipping("grad_clip_norm_per_tensor=0.5") == ("off", 0.5, None)
    assert clipping("grad_clip_value=0.5") == ("off", None, 0.5)
    assert clipping("grad_clip_norm=off") == ("off", None, None)


def test_a_later_file_takes_the_clipping_of_an_earlier_one_back(write: Write) -> None:
    first = write("a.toml", "[optimizer]\ngrad_clip_norm_per_tensor = 0.5\n")
    for text, expected in (
        ("grad_clip_norm = 2.0", (2.0, None, None)),
        ("grad_clip_value = 2.0", ("off", None, 2.0)),
    ):
        table = load_config([first, write("b.toml", f"[optimizer]\n{text}\n")]).optimizer
        assert (table.grad_clip_norm, table.grad_clip_norm_per_tensor, table.grad_clip_value) == expected


def test_muon_and_its_defaults() -> None:
    config = load_config("tiny", ["optimizer.name=muon", "optimizer.muon.ns_steps=6"])
    table = config.optimizer.muon
    assert (table.momentum, table.nesterov, table.ns_steps) == (0.95, True, 6)
    assert (table.adjust_lr_fn, table.split_heads, table.dtype, table.lr_scale) == (
        "match_rms_adamw",
        True,
        "auto",
        1.0,
    )
    assert Config.from_dict(config.to_dict()) == config


def test_a_table_of_defaults_is_no_use_of_muon() -> None:
    """A written-out configuration of a run with AdamW holds the table, and is read again."""
    config = load_config("tiny")
    assert config.to_dict()["optimizer"]["muon"]["momentum"] == 0.95
    assert Config.from_dict(config.to_dict()) == config


@pytest.mark.parametrize(
    ("setting", "answer"),
    [
        ("optimizer.name=muon_hybrid_exp", 'has a new name: use "muon"'),
        ("optimizer.schedule_mode=hybrid", 'has a new name: use "bitnet_b158_reference"'),
        ("optimizer.muon.enabled=true", "has a new name: use optimizer.name"),
        ("optimizer.muon.enabled=false", "has a new name: use optimizer.name"),
        ("optimizer.muon.split_decoder_heads=true", "has a new name: use optimizer.muon.split_heads"),
    ],
)
def test_older_names_are_answered(refusal: Refusal, setting: str, answer: str) -> None:
    assert refusal("tiny", overrides=(setting,)).endswith(answer)
