"""Rules that tie several keys together; each is broken once and kept once."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rule_examples import (
    ALIBI,
    COSINE,
    EXAMPLES,
    HUB,
    IDS,
    LATE,
    PRETOKENIZED,
    START,
)

from wyrmling.config import Config, layer_totals, load_config, resolve_gradient_accumulation
from wyrmling.config.problems import RuleError
from wyrmling.config.rules import RULES
from wyrmling.config.rules.rulebook import Rule
from wyrmling.errors import ConfigError

Write = Callable[[str, str], str]
Refusal = Callable[..., str]


def nested(keys: dict[str, Any]) -> dict[str, Any]:
    data: dict[str, Any] = {}
    for key, value in keys.items():
        *tables, last = key.split(".")
        table = data
        for name in tables:
            table = table.setdefault(name, {})
        table[last] = value
    return data


def config_of(keys: dict[str, Any]) -> Config:
    return Config.from_dict(nested(keys))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_every_rule_has_examples_that_break_it_alone(rule: Rule) -> None:
    """A new rule needs an example, and every example the keys in what is said."""
    assert EXAMPLES.get(rule.name), f"write an example of {rule.name} into rule_examples.py"
    for keys, message in EXAMPLES[rule.name]:
        with pytest.raises(RuleError) as caught:
            Config.model_validate(nested(keys))
        (problem,) = caught.value.problems
        assert (problem.rule, problem.text) == (rule.name, message)
        assert any(key in message for key in problem.keys)
        with pytest.raises(ConfigError) as told:
            config_of(keys)
        assert str(told.value) == message


def test_rules_are_told_apart_by_their_names() -> None:
    names = [rule.name for rule in RULES]
    assert len(set(names)) == len(names)
    assert set(names) == set(EXAMPLES)
    assert all(rule.text.endswith(".") and "\n" not in rule.text for rule in RULES)


@pytest.mark.parametrize(
    "keys",
    [
        {"training.epochs": 2},
        {"training.epochs": 2, "training.max_iters": None},
        {"training.target_effective_batch_size": 8, "training.gradient_accumulation_steps": 1},
        {START: "resume_exact_run", "training.resume_run_dir": "a", "training.resume_checkpoint_step": 0},
        {START: "resume_latest_checkpoint_if_present"},
        {START: "resume_latest_checkpoint_if_present", "training.init_checkpoint_path": "a"},
        {
            START: "init_from_checkpoint",
            "training.init_checkpoint_path": "a",
            "training.init_checkpoint_step": 3,
        },
        {"optimizer.grad_clip_value": 1},
        {"optimizer.grad_clip_value": 1, "optimizer.grad_clip_norm": "off"},
        COSINE | {"optimizer.lr_schedule.warmup_steps": 10, "training.max_iters": 10},
        COSINE | {"optimizer.lr_schedule.warmup_steps": 10, "training.epochs": 1},
        {"optimizer.lr_schedule": {"type": "linear", "final_lr": 0.5}},
        PRETOKENIZED | IDS,
        HUB | IDS | {"dataset.sequence_field": "ids", "dataset.format": "parquet"},
        HUB | {"dataset.template": "{a} and {b}", "dataset.text_fields": []},
        {
            "dataset.validation": {
                "type": "hugging_face",
                "repo_id": "a/b",
                "train_files": [],
                "validation_files": ["x"],
            }
        },
        {"dataset.type": "csv", "dataset.path": "x", "dataset.template": "{a}"},
        {"model.latent_total": 128, "model.n_embd": 64, "model.mlp_internal_dim_multiplier": 2},
        {"model.latent_total": 9, "model.n_embd": 9, "model.n_head": 3} | ALIBI,
        ALIBI | {"model.alibi_slopes": [1, 0.5, 0.1, 0.2]},
        LATE | {"model.latent_fanout_schedule.base_latent_total": 256},
        {"model.normalization": {"kind": "derf", "alpha_init": 0.5, "shift_init": -0.5}},
        {"model.vocab_size": 256},
        {"model.initialization": {"kind": "near_critical", "firing_targets": {"kind": "gaussian_estimate"}}},
    ],
)
def test_what_fits_together_is_accepted(keys: dict[str, Any]) -> None:
    config = config_of(keys)
    assert Config.from_dict(config.to_dict()) == config


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("simple_normal_std", 0),
        ("residual_scaling.gain", 0),
        ("neuron_gains.log_sigma", -0.1),
        ("neuron_gains.max_gain", math.inf),
        ("topology_prior.community_count", 0),
        ("topology_prior.bridge_fraction", 1.1),
        ("topology_prior.intra_gain", 0),
        ("topology_prior.inter_gain", -1),
        ("topology_prior.bridge_gain", math.nan),
        ("firing_targets.x_target", 0),
        ("firing_targets.y_target", 1),
        ("firing_targets.x_threshold", math.nan),
        ("firing_targets.y_threshold", math.inf),
    ],
)
def test_first_weights_out_of_range_are_refused_by_their_full_name(key: str, value: float) -> None:
    with pytest.raises(ConfigError, match=rf"^model\.initialization\.{key} must be "):
        config_of({f"model.initialization.{key}": value})


def test_a_broken_rule_is_blamed_on_the_line_that_was_written(write: Write, refusal: Refusal) -> None:
    path = write("a.toml", "[training]\nseed = 1\nmax_iters = 10\n")
    rule = "optimizer.lr_schedule.warmup_steps must be <= training.max_iters"
    assert refusal("shakespeare", path) == f"a.toml:3: {rule} (40 > 10)"
    option = "training.max_iters=5"
    assert refusal("shakespeare", path, overrides=(option,)) == f"--set {option}: {rule} (40 > 5)"
    option = "optimizer.lr_schedule.warmup_steps=11"
    assert refusal("shakespeare", path, overrides=(option,)) == f"--set {option}: {rule} (11 > 10)"
    option = "training.launch_mode=resume_exact_run"
    assert refusal(path, overrides=(option,)).startswith(f"--set {option}: training.launch_mode = ")


def test_rules_hold_for_configurations_made_in_python_too() -> None:
    with pytest.raises(RuleError, match=r"and 1 more") as caught:
        Config.model_validate({"parallel": {"world_size": 2}, "run_layout": {"name": "latest"}})
    assert len(caught.value.problems) == 2


def test_a_run_counted_in_epochs_takes_its_windows_in_epochs() -> None:
    assert config_of({"training.epochs": 1, "training.order": "random"}).training.order == "epochs"
    assert config_of({"training.order": "epochs"}).training.order == "epochs"
    assert config_of({}).training.order == "random"


@pytest.mark.parametrize(
    ("batch", "accumulation", "target", "expected"),
    [(64, 1, None, 1), (64, 3, None, 3), (64, 1, 64, 1), (21, 1, 64, 4), (16, 1, 128, 8), (64, 1, 5, 1)],
)
def test_accumulation_of_the_worked_examples(
    batch: int, accumulation: int, target: int | None, expected: int
) -> None:
    assert resolve_gradient_accumulation(batch, accumulation, target) == expected


@given(st.integers(1, 10**6), st.integers(1, 10**6))
def test_accumulation_is_the_fewest_micro_batches_that_reach_the_target(batch: int, target: int) -> None:
    steps = resolve_gradient_accumulation(batch, 1, target)
    assert steps * batch >= target
    assert steps == 1 or (steps - 1) * batch < target


@given(
    layers=st.integers(1, 9),
    width=st.integers(1, 12),
    heads=st.integers(1, 4),
    small=st.integers(1, 6),
    more=st.integers(0, 40),
    kind=st.sampled_from(["late_layer", "geometric"]),
)
def test_layers_of_a_fanout_schedule_fit_the_model(
    layers: int, width: int, heads: int, small: int, more: int, kind: str
) -> None:
    step = math.lcm(width, heads)
    least, most = small * step, (small + more) * step
    schedule = (
        {"type": kind, "base_latent_total": least, "last_layers": 2}
        if kind == "late_layer"
        else {"type": kind, "min_latent_total": least}
    )
    model = {
        "n_layer": layers,
        "n_embd": width,
        "n_head": heads,
        "latent_total": most,
        "rotary_embedding": "pope",
    }
    totals = layer_totals(Config.from_dict({"model": {**model, "latent_fanout_schedule": schedule}}).model)
    assert len(totals) == layers
    assert totals[-1] == most
    assert list(totals) == sorted(totals)
    assert all(least <= total <= most and total % step == 0 for total in totals)
    assert totals[0] == (least if layers > (2 if kind == "late_layer" else 1) else most)


def test_every_recipe_obeys_the_rules_of_its_own_text() -> None:
    config = load_config("published-bdh")
    assert (config.model.total_neurons, config.model.neurons_per_head) == (32768, 8192)
    assert config.optimizer.grad_clip_norm == "off"
