"""`[training.gdpo]`: gates of three kinds, ranges, and what could teach nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import wyrmling
from wyrmling.config import load_config
from wyrmling.errors import ConfigError

Write = Callable[[str, str], str]
Refusal = Callable[..., str]


def test_the_described_defaults() -> None:
    table = load_config("tiny").training.gdpo
    assert table.hard_gate.type == "percentile"
    assert table.hard_gate.quantile == 0.5
    assert table.model_dump(exclude={"hard_gate"}) == {
        "enabled": False,
        "group_size": 1,
        "hard_weight": 1.0,
        "easy_weight": 1.0,
        "policy_weight": 1.0,
        "policy_clip_range": 0.2,
        "norm_epsilon": 1e-6,
        "advantage_clip": 0.0,
        "advantage_ema_decay": 0.0,
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("group_size = 0", "training.gdpo.group_size must be > 0, got 0"),
        ("hard_weight = -1", "training.gdpo.hard_weight must be >= 0, got -1"),
        ("policy_clip_range = -0.1", "training.gdpo.policy_clip_range must be >= 0, got -0.1"),
        ("advantage_clip = -1", "training.gdpo.advantage_clip must be >= 0, got -1"),
        ("advantage_ema_decay = 1.0", "training.gdpo.advantage_ema_decay must be < 1, got 1.0"),
        ("hard_gate.quantile = 1.5", "training.gdpo.hard_gate.quantile must be <= 1, got 1.5"),
        (
            'hard_gate = {type = "fixed"}',
            'training.gdpo.hard_gate.threshold is missing (training.gdpo.hard_gate.type = "fixed" needs it)',
        ),
        (
            "enabled = true",
            "training.gdpo.group_size must be >= 2 when training.gdpo.enabled is true, got 1: a continuation that is "
            "compared with itself teaches nothing",
        ),
        (
            "enabled = true, group_size = 4, hard_weight = 0, easy_weight = 0",
            "training.gdpo.hard_weight and training.gdpo.easy_weight must not both be 0",
        ),
    ],
)
def test_what_is_out_of_range_or_could_teach_nothing_is_refused(
    write: Write, refusal: Refusal, text: str, message: str
) -> None:
    assert refusal(write("a.toml", f"training.gdpo = {{{text}}}\n")) == f"a.toml:1: {message}"


def test_a_run_on_text_does_not_pretend_to_learn_from_rewards() -> None:
    config = load_config("tiny", ["training.gdpo.enabled=true", "training.gdpo.group_size=4"])
    with pytest.raises(
        ConfigError, match=r"training\.gdpo\.enabled is true, but a run on text has no rewards"
    ):
        wyrmling.train(config)
