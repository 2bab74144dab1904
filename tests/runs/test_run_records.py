"""A run says what it is: completely, in JSON, and the same for the same inputs."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from wyrmling.config import Config
from wyrmling.errors import CheckpointError
from wyrmling.files import read_record
from wyrmling.runs import Choice, RunDirectory, build_run_record, create_run, state_layout
from wyrmling.text.tokenizers import ByteTokenizer

SETTINGS: dict[str, Any] = {
    "training": {"batch_size": 3, "target_effective_batch_size": 10, "block_size": 32, "seed": 9},
    "model": {"n_layer": 2, "n_embd": 8, "n_head": 2, "mlp_internal_dim_multiplier": 4},
    "optimizer": {"learning_rate": 0.002, "weight_decay": 0.05},
}
CHOICES = [
    Choice("device", "cpu", "no cuda and no mps here"),
    Choice("dtype", "float32", "the safe choice"),
    Choice("threads", "2", "one per core"),
    Choice("executor", "composed/chunked", "fewest operations"),
]
VERSIONS = {"wyrmling": "0.1.0", "torch": "2.6.0", "numpy": "2.0.0", "python": "3.11.7"}


def record(**changes: Any) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "config": Config.from_dict(SETTINGS),
        "name": "amber-wyvern",
        "model_facts": {"parameters": 1234, "vocab_size": 256, "state_bytes": 99},
        "data_facts": {"fingerprint": "abc", "tokenizer_fingerprint": "def", "train_tokens": 1000},
        "choices": CHOICES,
        "versions": VERSIONS,
    }
    return build_run_record(**{**arguments, **changes})


def test_the_record_says_what_the_run_is() -> None:
    found = record()
    expected = {
        "run_name": "amber-wyvern",
        "arch_version": "dragon_bdh_v1",
        "backend_name": "cpu",
        "dtype": "float32",
        "threads": "2",
        "seed": 9,
        "block_size": 32,
        "training_batch_size": 3,
        "training_gradient_accumulation_steps": 4,
        "training_effective_batch_size": 12,
        "training_checkpoint_interval_iters": 500,
        "training_execution_form": "default_stateful",
        "training_launch_mode_requested": "fresh",
        "versions": VERSIONS,
    }
    assert {key: found[key] for key in expected} == expected
    assert found["optimizer_spec"]["name"] == "adamw"
    assert found["optimizer_spec"]["learning_rate"] == 0.002
    assert found["model_spec"]["latent_total"] == 32
    assert found["model_spec"]["latent_per_head"] == 16
    assert found["model_spec"]["parameter_count"] == 1234
    assert found["model_spec"]["state_bytes"] == 99
    assert found["kernel_spec"] == {
        "sequence_kernel": "linear_attention",
        "executor": "composed/chunked",
        "sequence_kernel_override": None,
    }
    assert found["data"]["fingerprint"] == "abc"
    assert found["choices"] == [choice.to_json() for choice in CHOICES]
    assert found["overrides"]["n_layer"] == 2
    assert "dropout" not in found["overrides"]


def test_every_choice_is_recorded_with_its_reason() -> None:
    assert all(choice["reason"] for choice in record()["choices"])
    assert record(choices=[])["backend_name"] == "auto"


def test_the_record_is_json_and_a_function_of_its_arguments() -> None:
    data_facts: dict[str, Any] = {"fingerprint": "abc", "tokenizer_fingerprint": "def"}
    before = copy.deepcopy(data_facts)
    first = record(data_facts=data_facts)
    first["data"]["fingerprint"] = "changed"
    assert data_facts == before
    assert record() == record()
    assert json.loads(json.dumps(record())) == record()


def test_the_state_of_every_layer_is_laid_out() -> None:
    layout = state_layout(Config.from_dict(SETTINGS))
    assert layout["position_tracked"] is True
    assert [layer["layer_index"] for layer in layout["layers"]] == [0, 1]
    (rho,) = layout["layers"][0]["tensors"]
    assert rho["name"] == "rho"
    assert [(axis["name"], axis["size"]) for axis in rho["axes"]] == [
        ("batch", None),
        ("heads", 2),
        ("latent_per_head", 16),
        ("dense_dim", 8),
    ]


def test_the_layout_is_that_of_the_models_own_state() -> None:
    from wyrmling.model import Model

    config = Config.from_dict(SETTINGS)
    state = Model(config.model, 11).initial_state(3)
    layout = state_layout(config)["layers"]
    assert len(state.layers) == len(layout)
    for tensors, described in zip(state.layers, layout, strict=True):
        shapes = {
            tensor["name"]: tuple(3 if axis["size"] is None else axis["size"] for axis in tensor["axes"])
            for tensor in described["tensors"]
        }
        assert {name: tuple(tensor.shape) for name, tensor in tensors.items()} == shapes


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    config = Config.from_dict(SETTINGS)
    run = create_run(config)
    run.write_records(config, ByteTokenizer(), record(name=run.name))
    return run


def test_what_was_written_comes_back(run: RunDirectory) -> None:
    assert run.training_config() == Config.from_dict(SETTINGS)
    assert run.tokenizer().fingerprint() == ByteTokenizer().fingerprint()
    back = run.record()
    assert back.pop("created").startswith("20")
    assert back == record(name=run.name)
    assert not list(run.path.glob(".tmp-*"))


def test_a_changed_configuration_replaces_the_old_one(run: RunDirectory) -> None:
    longer = Config.from_dict({**SETTINGS, "training": {"max_iters": 5000}})
    run.write_training_config(longer)
    assert run.training_config().training.max_iters == 5000
    assert run.record()["seed"] == 9


@pytest.mark.parametrize("memory", ["mamba2", "mamba3"])
@pytest.mark.parametrize(("width", "head"), [(8, 16), (96, 96), (100, 100), (128, 128), (80, 80), (134, 67)])
def test_earlier_runs_keep_heads_and_decays_that_they_did_not_record(
    memory: str, width: int, head: int
) -> None:
    """Unset, a head had the largest divisor up to 128; a convolution never decayed. What was recorded stays."""
    given = {**SETTINGS, "model": {**SETTINGS["model"], "n_embd": width, "sequence_kernel": memory}}
    run = create_run(Config.from_dict(given))
    run.write_records(Config.from_dict(given), ByteTokenizer(), record(name=run.name))
    assert run.training_config() == Config.from_dict(given)

    written = read_record(run.training_config_path)  # without its seal, which those runs do not have
    del written["optimizer"]["decay_convolutions"]
    written["model"]["mamba"]["d_state"] = 16
    run.training_config_path.write_text(json.dumps(written))
    earlier = run.training_config()
    assert earlier.model.mamba.head_width(width) == head
    assert not earlier.optimizer.decay_convolutions
    assert earlier.model.mamba.d_state == 16

    written["model"]["mamba"]["headdim"] = 2
    run.training_config_path.write_text(json.dumps(written))
    assert run.training_config().model.mamba.headdim == 2


def test_an_access_token_stays_out_of_the_run(tmp_path: Path) -> None:
    dataset = {"type": "hugging_face", "repo_id": "a/b", "format": "jsonl", "token": "hf_secret"}
    config = Config.from_dict({"dataset": dataset})
    run = create_run(config)
    run.write_records(config, ByteTokenizer(), record(config=config))
    assert not any("hf_secret" in file.read_text() for file in run.path.iterdir())


@pytest.mark.parametrize("read", [RunDirectory.record, RunDirectory.training_config])
@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, "has no .*config.json"),
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[1]", "not a JSON object"),
        ("null", "not a JSON object"),
        ('{"a": 1, "a": 2}', "'a' twice"),
        ('{"a": NaN}', "NaN"),
        ('{"a": 1e999}', "1e999"),
        ('{"a": ' + "9" * 9000 + "}", "digits"),
        ("[" * 100_000, "too deeply"),
        ("\ufeff{}", "BOM"),
        ("{}", "field required"),
    ],
)
def test_a_missing_or_damaged_record_is_one_line(
    run: RunDirectory, read: Callable[[RunDirectory], Any], content: str | None, text: str
) -> None:
    file = run.config_json if read is RunDirectory.record else run.training_config_path
    file.unlink()
    if content is not None:
        file.write_text(content)
    with pytest.raises(CheckpointError, match=text) as caught:
        read(run)
    assert "\n" not in str(caught.value)
    assert file.name in str(caught.value)
