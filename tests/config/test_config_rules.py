"""Rules that tie several keys together; each is broken once and kept once."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wyrmling.config import Config, layer_totals, load_config, resolve_gradient_accumulation
from wyrmling.config.rules import RuleError
from wyrmling.errors import ConfigError

Write = Callable[[str, str], str]
Refusal = Callable[..., str]

PRETOKENIZED = {"dataset.type": "pretokenized", "dataset.path": "x"}
IDS = {"dataset.tokenizer.type": "pretokenized", "dataset.tokenizer.vocab_size": 10}
HUB = {"dataset.type": "hugging_face", "dataset.repo_id": "a/b"}
COSINE = {"optimizer.lr_schedule.type": "cosine"}
LATE = {"model.latent_fanout_schedule.type": "late_layer", "model.latent_fanout_schedule.last_layers": 1}
ALIBI = {"model.rotary_embedding": "alibi"}
START = "training.launch_mode"
MAMBA2 = {"model.sequence_kernel": "mamba2"}
MAMBA3 = {"model.sequence_kernel": "mamba3"}
CARRY = {"training.tbptt_persist_across_steps": True}


def config_of(keys: dict[str, Any]) -> Config:
    data: dict[str, Any] = {}
    for key, value in keys.items():
        *tables, last = key.split(".")
        table = data
        for name in tables:
            table = table.setdefault(name, {})
        table[last] = value
    return Config.from_dict(data)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"training.max_iters": None}, "training.max_iters is required when training.epochs is unset"),
        (
            {"training.tbptt_chunk_size": 257},
            "training.tbptt_chunk_size must be <= training.block_size (257 > 256)",
        ),
        ({"training.tbptt_window": 2}, "training.tbptt_window requires training.tbptt_chunk_size"),
        (
            {**CARRY, "training.order": "random"},
            'training.tbptt_persist_across_steps requires training.order = "streaming" (it is "random"); '
            "leave the order out",
        ),
        (
            {"training.min_logical_block_size": 99},
            'training.min_logical_block_size requires training.order = "streaming" (it is "random")',
        ),
        (
            {**MAMBA2, "model.mamba.headdim": 48},
            "model.mamba.expand * model.n_embd must be divisible by model.mamba.headdim (512 and 48)",
        ),
        (
            {**MAMBA3, "model.mamba.ngroups": 3},
            "the memory heads (model.mamba.expand * model.n_embd / model.mamba.headdim) must be divisible by "
            "model.mamba.ngroups (4 and 3)",
        ),
        (
            {**MAMBA3, "model.mamba.dt_min": 0.2},
            "model.mamba.dt_min must be <= model.mamba.dt_max (0.2 > 0.1)",
        ),
        (
            {**MAMBA2, "model.mamba.a_init_min": 17.0},
            "model.mamba.a_init_min must be <= model.mamba.a_init_max (17 > 16)",
        ),
        (
            {**MAMBA3, "model.mamba.d_state": 3},
            "model.mamba.d_state * model.mamba.rope_fraction must be at least 2, one pair to rotate (3 * 0.5)",
        ),
        (
            {"model.sequence_kernel.memory_system": "rwkv8", "model.sequence_kernel.executor": "fused"},
            'model.sequence_kernel.executor = "fused" requires model.sequence_kernel.memory_system = '
            '"linear_attention" (it is "rwkv8"); leave the executor out',
        ),
        (
            {"training.sequence_kernel_override": {"memory_system": "mamba2", "executor": "dense"}},
            'training.sequence_kernel_override.executor = "dense" requires '
            'training.sequence_kernel_override.memory_system = "linear_attention" (it is "mamba2"); '
            "leave the executor out",
        ),
        (
            {"training.max_iters": 2, "training.epochs": 2},
            "training.epochs cannot be combined with training.max_iters",
        ),
        (
            {"training.target_effective_batch_size": 8, "training.gradient_accumulation_steps": 2},
            "training.target_effective_batch_size cannot be combined with training.gradient_accumulation_steps",
        ),
        (
            {START: "resume_exact_run"},
            'training.launch_mode = "resume_exact_run" requires training.resume_run_dir',
        ),
        (
            {START: "init_from_checkpoint"},
            'training.launch_mode = "init_from_checkpoint" requires training.init_checkpoint_path',
        ),
        *[
            (
                {f"training.{key}": value},
                f'training.{key} requires training.launch_mode = "{wanted}" (it is "fresh")',
            )
            for key, value, wanted in [
                ("resume_run_dir", "runs/a", "resume_exact_run"),
                ("resume_checkpoint_step", 3, "resume_exact_run"),
                ("init_checkpoint_path", "runs/a", "init_from_checkpoint"),
            ]
        ],
        (
            {START: "resume_exact_run", "training.resume_run_dir": "a", "training.init_checkpoint_path": "b"},
            'training.init_checkpoint_path requires training.launch_mode = "init_from_checkpoint" '
            '(it is "resume_exact_run")',
        ),
        (
            {
                START: "init_from_checkpoint",
                "training.init_checkpoint_path": "b",
                "training.resume_checkpoint_step": 1,
            },
            'training.resume_checkpoint_step requires training.launch_mode = "resume_exact_run" '
            '(it is "init_from_checkpoint")',
        ),
        (
            {START: "resume_latest_checkpoint_if_present", "training.resume_run_dir": "a"},
            'training.resume_run_dir requires training.launch_mode = "resume_exact_run" '
            '(it is "resume_latest_checkpoint_if_present")',
        ),
        (
            {START: "resume_latest_checkpoint_if_present", "training.init_checkpoint_step": 3},
            "training.init_checkpoint_step requires training.init_checkpoint_path",
        ),
        (
            {"optimizer.grad_clip_norm": 1, "optimizer.grad_clip_value": 1},
            'optimizer.grad_clip_value cannot be combined with optimizer.grad_clip_norm (set it to "off")',
        ),
        (
            COSINE | {"optimizer.lr_schedule.warmup_steps": 11, "optimizer.lr_schedule.num_iters": 10},
            "optimizer.lr_schedule.warmup_steps must be <= optimizer.lr_schedule.num_iters (11 > 10)",
        ),
        (
            COSINE | {"optimizer.lr_schedule.warmup_steps": 11, "training.max_iters": 10},
            "optimizer.lr_schedule.warmup_steps must be <= training.max_iters (11 > 10)",
        ),
        (
            COSINE | {"optimizer.lr_schedule.min_lr": 0.5},
            "optimizer.lr_schedule.min_lr must be <= optimizer.learning_rate (0.5 > 0.001)",
        ),
        (
            COSINE | {"optimizer.lr_schedule.min_lr": 0.5, "optimizer.lr_schedule.initial_lr": 0.25},
            "optimizer.lr_schedule.min_lr must be <= optimizer.lr_schedule.initial_lr (0.5 > 0.25)",
        ),
        (PRETOKENIZED, 'dataset.type = "pretokenized" requires dataset.tokenizer.type = "pretokenized"'),
        (
            IDS,
            'dataset.tokenizer.type = "pretokenized" requires dataset.type = "pretokenized" or a sequence_field '
            '(it is "package_text")',
        ),
        (
            PRETOKENIZED | IDS | {"dataset.validation": {"type": "local_text", "path": "x"}},
            'dataset.tokenizer.type = "pretokenized" requires dataset.validation.type = "pretokenized" or a '
            'sequence_field (it is "local_text")',
        ),
        (
            {"dataset.validation": {"type": "pretokenized", "path": "x"}},
            'dataset.validation.type = "pretokenized" requires dataset.tokenizer.type = "pretokenized"',
        ),
        (
            HUB | {"dataset.sequence_field": "ids"},
            'dataset.sequence_field requires dataset.tokenizer.type = "pretokenized"',
        ),
        (
            HUB | IDS | {"dataset.sequence_field": "ids", "dataset.format": "csv"},
            'dataset.sequence_field requires dataset.format = "jsonl" or "parquet" (it is "csv")',
        ),
        (
            HUB | IDS | {"dataset.sequence_field": "ids", "dataset.template": "{a}"},
            "dataset.sequence_field cannot be combined with dataset.template",
        ),
        (HUB | {"dataset.train_files": []}, "dataset.train_files must not be empty"),
        (HUB | {"dataset.text_fields": []}, "dataset.text_fields must not be empty"),
        (HUB | {"dataset.template": "no field"}, "dataset.template must hold at least one {field}"),
        (
            {"dataset.type": "csv", "dataset.path": "x", "dataset.field": "a", "dataset.template": "{a}"},
            "dataset.template cannot be combined with dataset.field",
        ),
        (
            {"dataset.type": "csv", "dataset.path": "x", "dataset.field": None},
            "dataset.field is required when dataset.template is unset",
        ),
        (
            PRETOKENIZED | IDS | {"dataset.tokenizer.eos_id": 10},
            "dataset.tokenizer.eos_id must be < dataset.tokenizer.vocab_size (10 >= 10)",
        ),
        (
            {"model.latent_total": 100, "model.n_embd": 64},
            "model.latent_total must be divisible by model.n_embd (100 and 64)",
        ),
        (
            {"model.latent_total": 128, "model.n_embd": 64, "model.mlp_internal_dim_multiplier": 4},
            "model.mlp_internal_dim_multiplier cannot be combined with another model.latent_total (4 * 64 is not 128)",
        ),
        (
            {"model.latent_total": 128, "model.n_embd": 64, "model.n_head": 3},
            "model.latent_total must be divisible by model.n_head (128 and 3)",
        ),
        (
            {"model.mlp_internal_dim_multiplier": 1, "model.n_embd": 64, "model.n_head": 3},
            "model.mlp_internal_dim_multiplier * model.n_embd must be divisible by model.n_head (64 and 3)",
        ),
        (
            {"model.latent_total": 9, "model.n_embd": 9, "model.n_head": 3},
            'model.rotary_embedding = "rope" requires an even number of neurons per head (9 neurons / 3 heads = 3)',
        ),
        (
            LATE
            | {"model.latent_fanout_schedule.base_latent_total": 4, "model.latent_total": 8}
            | {"model.n_embd": 4, "model.n_head": 4},
            'model.rotary_embedding = "rope" requires an even number of neurons per head (4 neurons / 4 heads = 1)',
        ),
        (
            ALIBI | {"model.alibi_slopes": [1.0, 0.5]},
            "model.alibi_slopes must have model.n_head items (2 and 4)",
        ),
        (
            {"model.alibi_slopes": [1.0, 0.5, 0.1, 0.2]},
            'model.alibi_slopes requires model.rotary_embedding = "alibi" (it is "rope")',
        ),
        (
            LATE | {"model.latent_fanout_schedule.base_latent_total": 65536},
            "model.latent_fanout_schedule.base_latent_total must be <= the neurons of the model (65536 > 32768)",
        ),
        (
            LATE | {"model.latent_fanout_schedule.base_latent_total": 300},
            "model.latent_fanout_schedule.base_latent_total must be divisible by the least common multiple of "
            "model.n_embd and model.n_head (300 and 256)",
        ),
        (
            {"model.latent_fanout_schedule": {"type": "geometric", "min_latent_total": 100}},
            "model.latent_fanout_schedule.min_latent_total must be divisible by the least common multiple of "
            "model.n_embd and model.n_head (100 and 256)",
        ),
        (
            {"model.normalization.alpha_init": 0.5},
            'model.normalization.alpha_init requires model.normalization.kind = "dynamic_tanh" or "derf" '
            '(it is "layer_norm")',
        ),
        (
            {"model.normalization": {"kind": "dynamic_tanh", "shift_init": 0.5}},
            'model.normalization.shift_init requires model.normalization.kind = "derf" (it is "dynamic_tanh")',
        ),
        (
            {"model.vocab_size": 255},
            "model.vocab_size must be >= the tokenizer's number of tokens (255 < 256)",
        ),
        (
            {"model.vocab_size": 258, "dataset.tokenizer.add_special_tokens": True},
            "model.vocab_size must be >= the tokenizer's number of tokens (258 < 259)",
        ),
        (
            PRETOKENIZED | IDS | {"model.vocab_size": 9},
            "model.vocab_size must be >= the tokenizer's number of tokens (9 < 10)",
        ),
        ({"parallel.world_size": 2}, 'parallel.world_size must be 1 when parallel.mode is "single", got 2'),
        ({"run_layout.name": "latest"}, 'run_layout.name must not be "latest", which means the newest run'),
    ],
)
def test_a_contradiction_is_refused_with_its_keys(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config_of(keys)
    assert str(caught.value) == message


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
