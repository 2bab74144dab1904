"""Which executor and form a configuration leads to: promotion on CUDA, overrides, memories other than linear."""

from __future__ import annotations

import pytest

from wyrmling.config import Config
from wyrmling.config.schema.model import Model as ModelConfig
from wyrmling.model.choice import ExecutorChoice, choose_executor, step_bytes
from wyrmling.model.geometry import Geometry


def choice(
    length: int, *, kernel: object = "linear_attention", device: str = "cuda", overridden: bool = False
) -> ExecutorChoice:
    config = ModelConfig.model_validate({"sequence_kernel": kernel})
    return choose_executor(
        config,
        Geometry.of(config, 256),
        rows=2,
        length=length,
        device=device,
        element_size=2,
        overridden=overridden,
    )


@pytest.mark.parametrize("length", [1, 512, 2048])
@pytest.mark.parametrize(
    "kernel", ["linear_attention", {"memory_system": "linear_attention", "executor": "reference"}]
)
def test_short_linear_attention_on_cuda_is_promoted_to_the_dense_form(length: int, kernel: object) -> None:
    found = choice(length, kernel=kernel)
    assert (found.name, found.form, found.promoted) == ("composed", "dense", "dense")
    assert "2048" in found.reason


def test_nothing_else_is_promoted() -> None:
    assert choice(2049).promoted is None
    assert choice(512, device="cpu").promoted is None
    assert choice(512, overridden=True).promoted is None
    assert choice(512, kernel={"memory_system": "linear_attention", "executor": "chunked"}).promoted is None
    assert choice(512, kernel="rwkv8").promoted is None


@pytest.mark.parametrize("memory", ["mamba2", "mamba3", "rwkv8"])
def test_other_memories_are_composed_of_tiles(memory: str) -> None:
    for device in ("cpu", "cuda"):
        found = choice(1000, kernel=memory, device=device)
        assert (found.name, found.form, found.plan) == ("composed", "chunked", None)
        assert 1 <= found.tile <= 1000
    loop = choice(1000, kernel={"memory_system": memory, "executor": "reference"})
    assert loop.form == "sequential"
    assert "asked for" in loop.reason


def test_an_override_takes_the_place_of_the_configured_kernel() -> None:
    config = Config.from_dict({"training": {"sequence_kernel_override": "rwkv8"}})
    assert config.model.sequence_kernel.memory_system == "linear_attention"
    assert config.effective_model.sequence_kernel.memory_system == "rwkv8"
    assert Config.from_dict({}).effective_model is not None
    table = {"memory_system": "linear_attention", "executor": "chunked"}
    assert (
        Config.from_dict(
            {"training": {"sequence_kernel_override": table}}
        ).effective_model.sequence_kernel.executor
        == "chunked"
    )


def test_a_window_of_chunks_and_carried_states_are_counted() -> None:
    """Every chunk of the window keeps its graph, and a state as it was and as it is taken in."""
    config = ModelConfig.model_validate({"n_layer": 2, "n_embd": 64, "latent_total": 1024, "n_head": 2})
    geometry = Geometry.of(config, 64)
    found = choose_executor(config, geometry, rows=3, length=32, device="cpu", element_size=4)

    def needed(spans: int, carries: bool) -> int:
        return step_bytes(
            found,
            geometry,
            rows=3,
            length=32,
            recompute=False,
            element_size=4,
            dropout=False,
            spans=spans,
            carries=carries,
        )

    one, state = needed(1, False), geometry.state_bytes(3)
    assert needed(4, False) == 4 * one
    assert needed(1, True) == one + 4 * state
    assert needed(4, True) == 4 * one + 10 * state
