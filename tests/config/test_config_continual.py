"""The table `training.continual_backprop`: its values, and what is refused with which words."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from wyrmling.config import load_config

Write = Callable[[str, str], str]
Refusal = Callable[..., str]

TABLE = "training.continual_backprop"


def test_it_is_off_and_has_the_described_values() -> None:
    table = load_config("tiny").training.continual_backprop
    assert table.model_dump() == {
        "enabled": False,
        "target": "shared_lowrank_latents",
        "utility": "contribution_per_input",
        "utility_decay": 0.99,
        "replacement_rate": 1e-4,
        "maturity_steps": 100,
        "sample_interval_steps": 8,
        "replace_interval_steps": 64,
        "utility_epsilon": 1e-6,
        "lr_coupling": "none",
        "lr_coupling_power": 1.0,
        "new_weights": "fresh",
    }


@pytest.mark.parametrize(
    "setting",
    [
        "target=neurons",
        "utility=adaptable_contribution",
        "utility_decay=1.0",
        "utility_decay=-0.1",
        "replacement_rate=-1e-4",
        "replacement_rate=1.5",
        "replacement_rate=nan",
        "maturity_steps=0",
        "sample_interval_steps=0",
        "replace_interval_steps=0",
        "utility_epsilon=0",
        "utility_epsilon=inf",
        "lr_coupling=rate",
        "lr_coupling_power=-1",
        "new_weights=old",
        "warmup_steps=5",
    ],
)
def test_a_bad_value_is_refused_by_its_key(refusal: Refusal, setting: str) -> None:
    message = refusal("tiny", overrides=(f"{TABLE}.{setting}",))
    assert f"{TABLE}.{setting.partition('=')[0]}" in message


def test_a_rate_of_zero_is_allowed() -> None:
    assert (
        load_config("tiny", [f"{TABLE}.replacement_rate=0"]).training.continual_backprop.replacement_rate == 0
    )


def test_at_most_all_mature_neurons_may_be_asked_for(refusal: Refusal) -> None:
    """Whole intervals of a rate, and only where it is enabled."""
    once = [f"{TABLE}.enabled=true", f"{TABLE}.replace_interval_steps=10"]
    for rate in (0, 0.1, 0.0999):
        load_config("tiny", [*once, f"{TABLE}.replacement_rate={rate}"])
    load_config("tiny", [f"{TABLE}.replacement_rate=1.0"])
    message = refusal("tiny", overrides=(*once, f"{TABLE}.replacement_rate=0.11"))
    assert "0.11 * 10 = 1.1" in message


def test_a_power_without_a_coupling_is_refused_where_it_would_count(write: Write, refusal: Refusal) -> None:
    text = f"[{TABLE}]\nlr_coupling_power = 2.0\n"
    assert load_config(write("off.toml", text)).training.continual_backprop.lr_coupling_power == 2
    assert refusal(write("on.toml", text + "enabled = true\n")) == (
        f'on.toml:2: {TABLE}.lr_coupling_power requires {TABLE}.lr_coupling = "global_ratio" or "target_group_ratio" '
        '(it is "none")'
    )
