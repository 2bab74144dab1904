"""How the fused layer cuts its work, and what is said about it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agreement import build
from wyrmling.config.schema.model import Model as ModelConfig
from wyrmling.model import Geometry, Model
from wyrmling.model.choice import choose_executor, step_bytes
from wyrmling.model.fused import plan
from wyrmling.model.fused.planning import FusedPlan


def cut(length: int, keys: int = 1024, width: int = 128, **changes: Any) -> FusedPlan:
    options = {"heads": 4, "element_size": 2, "decays": False, **changes}
    return plan(options.pop("rows", 1), length, keys, width, **options)


def switch(**changes: Any) -> int:
    """The first length of a grid at which chunks are cheaper."""
    return next(length for length in range(64, 20000, 64) if cut(length, **changes).form == "chunked")


def test_the_switch_moves_with_the_sizes() -> None:
    """Wider values make states dearer; so do slower products make scores dearer against moving bytes."""
    assert switch(width=64) < switch(width=128) < switch(width=256)
    assert switch(element_size=4) < switch(element_size=2)
    assert switch(keys=8192, width=256) != switch(keys=64, width=256)


@given(
    rows=st.integers(1, 40),
    length=st.integers(1, 5000),
    keys=st.integers(1, 20000),
    heads=st.integers(1, 16),
    decays=st.booleans(),
)
def test_any_call_is_cut_into_something(rows: int, length: int, keys: int, heads: int, decays: bool) -> None:
    found = cut(length, keys, rows=rows, heads=heads, decays=decays)
    assert 1 <= found.rows <= rows
    assert 1 <= found.heads <= heads
    assert found.chunk >= 1
    chunks = -(-length // found.chunk)
    if found.form == "dense":
        assert chunks == 1
    if chunks > 1 and (decays or chunks > 64):
        assert found.keep_every**2 >= chunks
        assert (found.keep_every - 1) ** 2 < chunks
    if chunks > 1 and not decays and chunks <= 64:
        assert found.keep_every == 0


def choice(executor: str = "auto", device: str = "cpu", stored: str | None = None) -> Any:
    config = ModelConfig.model_validate(
        {"sequence_kernel": {"memory_system": "linear_attention", "executor": executor}}
    )
    return choose_executor(
        config, Geometry.of(config, 256), rows=2, length=512, device=device, element_size=2, stored=stored
    )


def test_the_executor_and_why() -> None:
    assert choice().value == "fused/dense, 512 tokens a tile"
    assert "multiply-adds" in choice().reason
    assert choice("chunked").form == "chunked"
    for name in ("composed", "reference"):
        assert choice(name).name == "composed"
        assert "asked for by model.sequence_kernel.executor" in choice(name).reason
    elsewhere = choice(device="cuda")
    assert (elsewhere.name, elsewhere.plan) == ("composed", None)
    assert "made for the CPU, not for cuda" in elsewhere.reason
    assert choice(stored="composed/dense, 512 tokens a tile").name == "composed"


@pytest.mark.parametrize("executor", ["composed", "reference"])
def test_what_is_asked_for_runs(executor: str) -> None:
    model = build("rope", executor=executor)
    assert model.layer_step.refusal(torch.device("cpu"), torch.float64) is not None
    assert type(model.layer_weights()[0]).__name__ == "LayerWeights"


@pytest.mark.parametrize("form", ["dense", "chunked"])
def test_a_run_that_is_composed_keeps_the_form_that_was_asked_for(form: str) -> None:
    model = build("rope", executor=form)
    model.layer_step.always_composed = True
    assert type(model.layer_weights()[0]).__name__ == "LayerWeights"
    for length in (16, 100_000):
        assert (model.layer_step.composed.tile(length) == length) == (form == "dense")


def test_short_reads_without_gradients_do_not_prepare_weights() -> None:
    model = build("rope")
    with torch.no_grad():
        assert type(model.layer_weights(8)[0]).__name__ == "LayerWeights"
        assert type(model.layer_weights(4096)[0]).__name__ == "FusedWeights"
    assert type(model.layer_weights(8)[0]).__name__ == "FusedWeights"


@pytest.mark.parametrize("form", ["dense", "chunked"])
@pytest.mark.parametrize("recompute", [False, True])
def test_the_estimate_of_a_step_is_not_below_what_is_kept(form: str, recompute: bool) -> None:
    """Nor far above it where neurons are kept, which is what decides whether they fit."""
    config = ModelConfig.model_validate(
        {
            "n_layer": 3,
            "n_embd": 32,
            "n_head": 2,
            "latent_total": 1024,
            "dropout": 0.0,
            "sequence_kernel": {"memory_system": "linear_attention", "executor": form},
        }
    )
    model = Model(config, 11, recompute=recompute)
    rows, length = 2, 600
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        hidden, _ = model(torch.randint(0, 11, (rows, length)), carry=False)
        model.loss_sum(hidden, torch.randint(0, 11, (rows, length))).backward()
    chosen = choose_executor(config, model.geometry, rows=rows, length=length, device="cpu", element_size=4)
    estimate = step_bytes(
        chosen, model.geometry, rows=rows, length=length, recompute=recompute, element_size=4, dropout=False
    )
    assert sum(kept.values()) < estimate
    if not recompute:
        assert estimate < 2.5 * sum(kept.values())
