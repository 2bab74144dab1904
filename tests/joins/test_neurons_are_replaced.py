"""Continual backprop in a run: measuring changes nothing, and a run that goes on replaces what it would have."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from test_resume_continues_bit_for_bit import LIVELY, StopAt, resume, tensors_of

import wyrmling
from wyrmling import Config
from wyrmling.checkpoint import checkpoint_path, read_checkpoint
from wyrmling.config.schema.model import Model as ModelConfig
from wyrmling.data.batches import Batch
from wyrmling.errors import CheckpointError
from wyrmling.model import Model
from wyrmling.optim.continual import Activity
from wyrmling.training.machine import Machine
from wyrmling.training.step import StepRules, optimizer_step
from wyrmling.training.streams import Streams
from wyrmling.watch.jsonl import read_events
from wyrmling.watch.profile import StageProfile

Make = Callable[..., Config]
TABLE = "training.continual_backprop"
ON = (f"{TABLE}.enabled=true", f"{TABLE}.maturity_steps=3", f"{TABLE}.sample_interval_steps=2")
OFTEN = (*ON, f"{TABLE}.replace_interval_steps=3", f"{TABLE}.replacement_rate=0.03")
CARRY = ("training.tbptt_chunk_size=8", "training.tbptt_persist_across_steps=true")
MEMORIES = ("linear_attention", "mamba2", "mamba3", "rwkv8")


def step(
    memory: str,
    *,
    watch: bool,
    executor: str = "auto",
    recompute: bool = False,
    rows: int = 4,
    chunk: int | None = None,
) -> tuple[Model, Activity | None]:
    """One step of SGD over four rows, in micro-batches of `rows` and chunks of `chunk`."""
    config = ModelConfig.model_validate(
        {
            "n_layer": 2,
            "n_embd": 8,
            "n_head": 2,
            "latent_total": 32,
            "sequence_kernel": {"memory_system": memory, "executor": executor},
            "mamba": {"headdim": 4, "ngroups": 2, "d_state": 4, "chunk_size": 3},
        }
    )
    model = Model(config, 11, seed=2, recompute=recompute)
    generator = torch.Generator().manual_seed(9)
    tokens, targets = torch.randint(0, 11, (2, 4, 9), generator=generator)
    batches = [
        Batch(0, torch.arange(i, i + rows), tokens[i : i + rows], targets[i : i + rows], 9 * rows, None)
        for i in range(0, 4, rows)
    ]
    activity = Activity(2, 16) if watch else None
    optimizer_step(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        batches,
        Machine(torch.device("cpu"), torch.float32, 1, False, ()),
        step=1,
        rate=0.1,
        rules=StepRules(0.1, 5, {"max_norm": None, "max_value": None}, chunk, 2 if chunk else 1),
        profile=StageProfile(),
        activity=activity,
    )
    return model, activity


@pytest.mark.parametrize(
    ("memory", "executor"),
    [
        *((memory, "auto") for memory in MEMORIES),
        ("linear_attention", "fused"),
        ("linear_attention", "composed"),
    ],
)
@pytest.mark.parametrize("chunk", [None, 4])
@pytest.mark.parametrize("recompute", [False, True])
def test_watching_a_step_changes_no_bit_of_it(
    memory: str, executor: str, chunk: int | None, recompute: bool
) -> None:
    """Under every executor, with neurons kept or computed again, with chunks and without."""
    settings = {"executor": executor, "recompute": recompute, "chunk": chunk}
    plain, _ = step(memory, watch=False, **settings)
    watched, activity = step(memory, watch=True, **settings)
    for name, parameter in plain.named_parameters():
        assert torch.equal(watched.get_parameter(name), parameter), name
    assert activity is not None
    assert activity.tokens == 36
    assert bool((activity.total > 0).any())


@pytest.mark.parametrize("memory", MEMORIES)
def test_what_is_seen_does_not_depend_on_how_the_step_is_cut(memory: str) -> None:
    """Chunks and micro-batches are parts of one step: the same sums, and no neuron counted twice."""
    _, whole = step(memory, watch=True)
    assert whole is not None
    for rows, chunk, recompute in ((1, None, False), (2, 4, True), (4, 5, False)):
        _, found = step(memory, watch=True, rows=rows, chunk=chunk, recompute=recompute)
        assert found is not None
        assert found.tokens == whole.tokens
        torch.testing.assert_close(found.total, whole.total, rtol=1e-4, atol=1e-6)


def test_a_rate_of_zero_trains_as_if_it_were_off(tiny_config: Make) -> None:
    """Neurons are measured, none is replaced: every weight and moment to the last bit."""
    off = wyrmling.train(tiny_config(*LIVELY))
    on = wyrmling.train(tiny_config(*LIVELY, *OFTEN, f"{TABLE}.replacement_rate=0"))
    found = tensors_of(on.run.path, 12)
    utilities = found.pop("continual.safetensors")
    assert found == tensors_of(off.run.path, 12)
    assert utilities
    part = read_checkpoint(checkpoint_path(on.run.checkpoints, 12), ["continual"]).parts["continual"]
    assert set(part["age"].flatten().tolist()) == {12}
    assert set(part["samples"].flatten().tolist()) == {6}
    assert bool((part["utility"] > 0).any())
    replaced = [e["neurons_replaced"] for e in read_events(on.run.events_path) if e["event"] == "step"]
    assert set(replaced) == {0}


@pytest.mark.parametrize(
    ("extra", "stop"),
    [
        (("training.gradient_accumulation_steps=2", f"{TABLE}.lr_coupling=global_ratio"), 9),
        ((*CARRY, "optimizer.name=muon", f"{TABLE}.new_weights=initial"), 7),
        ((*CARRY, "model.sequence_kernel=rwkv8", f"{TABLE}.lr_coupling=target_group_ratio"), 8),
    ],
)
def test_resumed_is_unbroken(tiny_config: Make, extra: tuple[str, ...], stop: int) -> None:
    """Weights, moments, carried states, utilities, ages, and how many were replaced."""
    config = tiny_config(*LIVELY, *OFTEN, *extra)
    straight = wyrmling.train(config)
    first = wyrmling.train(config, callbacks=[StopAt(stop)])
    again = wyrmling.train(resume(config, first.run.path))
    assert tensors_of(again.run.path, 12) == tensors_of(straight.run.path, 12)

    def replaced(run: wyrmling.TrainResult) -> list[int]:
        events = read_events(run.run.events_path)
        return [event["neurons_replaced"] for event in events if event["event"] == "step"]

    assert replaced(again) == replaced(straight)
    steps = [number > 0 for number in replaced(again)]  # in the steps 6, 9 and 12, told of every second one
    assert steps == [False, False, True, False, True, True]
    parts = read_checkpoint(checkpoint_path(again.run.checkpoints, 12)).parts
    age = parts["continual"]["age"]
    assert int(age.max()) == 12 > int(age.min()) == 0
    for name, states in parts.get("streams-0", {}).items():
        if name.endswith("rho"):  # what was replaced in the last step has left nothing
            assert bool((states[:, age == 0] == 0).all())
            assert bool((states != 0).any())


def test_a_run_says_what_it_replaces(tiny_config: Make) -> None:
    watcher = StopAt()
    done = wyrmling.train(
        tiny_config(*OFTEN, f"{TABLE}.lr_coupling=global_ratio", f"{TABLE}.lr_coupling_power=2.0"),
        callbacks=[watcher],
    )
    assert (
        "0.03 of the mature neurons per step, times global_ratio^2, every 3 steps, after 3 steps, with fresh weights "
        "(asked for by training.continual_backprop)"
    ) in watcher.messages
    (started,) = (event for event in read_events(done.run.events_path) if event["event"] == "started")
    lines = dict(started["fingerprint"])
    assert "continual_backprop_lr_coupling=global_ratio" in lines["optimizer fingerprint"]
    assert "continual_backprop_lr_coupling_power=2.0" in lines["optimizer fingerprint"]


def test_a_run_cannot_begin_to_replace_neurons_half_way(tiny_config: Make) -> None:
    done = wyrmling.train(tiny_config(), callbacks=[StopAt(4)])
    with pytest.raises(CheckpointError, match=rf"{TABLE}\.enabled: False -> True"):
        wyrmling.train(resume(tiny_config(), done.run.path, f"{TABLE}.enabled=true"))


def test_streams_forget_replaced_neurons() -> None:
    model, _ = step("linear_attention", watch=False)
    streams = Streams(2, 3)
    tokens = torch.randint(0, 11, (3, 5), generator=torch.Generator().manual_seed(4))
    streams.states = [model(tokens)[1].detach(), None]
    before = streams.states[0]
    chosen = torch.zeros(2, 16, dtype=torch.bool)
    chosen[1, 5] = True
    streams.forget(model, chosen)
    after = streams.states[0]
    assert before is not None
    assert after is not None
    assert streams.states[1] is None
    for old, new in zip(before.layers, after.layers, strict=True):
        assert bool((new["rho"][:, 1, 4:6] == 0).all())
        assert bool((old["rho"][:, 1, 4:6] != 0).any())
        assert torch.equal(new["rho"][:, 0], old["rho"][:, 0])
        assert torch.equal(new["rho"][:, 1, 6:], old["rho"][:, 1, 6:])
