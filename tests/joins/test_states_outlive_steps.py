"""Truncated backpropagation through time: chunks with their own backward passes, states carried from step to step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_resume_continues_bit_for_bit import LIVELY, StopAt, resume, tensors_of
from torch import Tensor

import wyrmling
from agreement import build, prefix_state
from wyrmling import Config, Model, State
from wyrmling.data.batches import Batch, BatchLoader
from wyrmling.data.dataset import prepare_dataset
from wyrmling.errors import CheckpointError, DataError
from wyrmling.training.plan import Plan
from wyrmling.training.streams import Streams, backward_in_chunks

Make = Callable[..., Config]
MEMORIES = ("linear_attention", "mamba2", "mamba3", "rwkv8")
SIZES = {"headdim": 4, "ngroups": 2, "d_state": 4, "chunk_size": 3}
CARRY = ("training.tbptt_chunk_size=8", "training.tbptt_persist_across_steps=true")
SMALL_MAMBA = ("model.mamba.headdim=8", "model.mamba.d_state=4", "model.mamba.chunk_size=5")


def dragon(memory: str) -> Model:
    return build("rope", sequence_kernel=memory, mamba=SIZES)


def forward_of(model: Model) -> Any:
    def forward(
        tokens: Tensor, targets: Tensor, state: State | None, reset: Tensor | None, carry: bool
    ) -> Any:
        hidden, after = model(tokens, state, reset=reset, carry=carry)
        return model.loss_sum(hidden, targets), after

    return forward


def gradients(model: Model) -> dict[str, Tensor]:
    found = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad(set_to_none=True)
    return found


def in_chunks(
    model: Model, tokens: Tensor, targets: Tensor, state: State | None, chunk: int, window: int
) -> tuple[Tensor, State | None, dict[str, Tensor]]:
    loss, after = backward_in_chunks(
        forward_of(model), tokens, targets, state, None, chunk=chunk, window=window, carry=True
    )
    return loss, after, gradients(model)


def by_autograd(
    model: Model, tokens: Tensor, targets: Tensor, state: State | None, chunk: int, window: int
) -> tuple[Tensor, dict[str, Tensor]]:
    """Loss by loss: the span that it may reach, from a detached state, in one graph."""
    parts = tokens.split(chunk, dim=1)
    wanted = targets.split(chunk, dim=1)
    states = [state]
    with torch.no_grad():
        for part in parts:
            states.append(model(part, states[-1])[1])
    total = torch.zeros((), dtype=torch.float64)
    for j, target in enumerate(wanted):
        first = max(0, j - window + 1)
        begin = states[first]
        current = None if begin is None else begin.detach()
        for part in parts[first : j + 1]:
            hidden, current = model(part, current)
        loss = model.loss_sum(hidden, target)
        loss.backward()
        total += loss.detach()
    return total, gradients(model)


def close(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        scale = max(1.0, float(gradient.abs().max()))
        torch.testing.assert_close(found[name], gradient, rtol=0, atol=1e-10 * scale, msg=name)


@pytest.mark.parametrize("memory", MEMORIES)
@settings(max_examples=6)
@given(data=st.data())
def test_a_loss_reaches_as_far_as_its_window(memory: str, data: st.DataObject) -> None:
    model = dragon(memory)
    rows, length = data.draw(st.integers(1, 3), "rows"), data.draw(st.integers(1, 17), "length")
    chunk, window = data.draw(st.integers(1, 9), "chunk"), data.draw(st.integers(1, 5), "window")
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 99), "seed"))
    tokens, targets = (torch.randint(0, 13, (rows, length), generator=generator) for _ in range(2))
    targets[torch.rand(rows, length, generator=generator) < 0.2] = -100
    state = prefix_state(model, rows, 3) if data.draw(st.booleans(), "carried") else None
    loss, after, found = in_chunks(model, tokens, targets, state, chunk, window)
    expected_loss, expected = by_autograd(model, tokens, targets, state, chunk, window)
    torch.testing.assert_close(loss, expected_loss, rtol=0, atol=1e-9)
    close(found, expected)
    whole = model(tokens, state)[1]
    assert after is not None
    assert torch.equal(after.position, whole.position)
    for layer, other in zip(after.layers, whole.layers, strict=True):
        for name in other:
            assert not layer[name].requires_grad
            torch.testing.assert_close(layer[name], other[name].detach(), rtol=0, atol=1e-9)


@pytest.mark.parametrize("memory", MEMORIES)
def test_a_window_over_the_whole_block_is_the_whole_backward_pass(memory: str) -> None:
    model = dragon(memory)
    tokens, targets = torch.randint(0, 13, (2, 14)), torch.randint(0, 13, (2, 14))
    _, _, found = in_chunks(model, tokens, targets, None, 4, 4)
    model.loss_sum(model(tokens)[0], targets).backward()
    close(found, gradients(model))


def test_one_chunk_is_no_truncation() -> None:
    model = dragon("linear_attention")
    tokens, targets = torch.randint(0, 13, (2, 9)), torch.randint(0, 13, (2, 9))
    _, _, found = in_chunks(model, tokens, targets, None, 9, 1)
    model.loss_sum(model(tokens)[0], targets).backward()
    close(found, gradients(model))


@pytest.mark.parametrize("memory", MEMORIES)
def test_persisting_is_one_long_pass_with_detached_borders(tiny_config: Make, memory: str) -> None:
    """Without learning, each step's loss is that of its blocks, read on from where each row's own stream stands."""
    config = tiny_config(
        *CARRY, *SMALL_MAMBA, f"model.sequence_kernel={memory}", "training.gradient_accumulation_steps=2",
        "optimizer.learning_rate=1e-30", "optimizer.lr_schedule=none", "optimizer.weight_decay=0",
        "training.log_frequency=1", "runtime.dtype=float64", "training.min_logical_block_size=70",
    )  # fmt: skip
    watch = StopAt()
    result = wyrmling.train(config, callbacks=[watch])
    model, state = result.model, None
    for step in sorted(watch.losses):
        batch = whole_batch(config, result, step)
        with torch.no_grad():
            hidden, state = model(batch.tokens, state, reset=batch.reset)
            loss = float(model.loss_sum(hidden, batch.targets)) / batch.target_count
        assert watch.losses[step] == pytest.approx(loss, rel=1e-9)


def whole_batch(config: Config, result: Any, step: int) -> Batch:
    dataset = prepare_dataset(config, tokenizer=result.tokenizer)
    plan = Plan.of(config, dataset)
    loader = BatchLoader(dataset.train, plan.order, config.training.block_size)
    return loader.batch(step - 1, range(plan.global_rows))


@pytest.mark.parametrize("memory", MEMORIES)
def test_stopped_in_the_middle_of_a_document_and_resumed(tiny_config: Make, memory: str) -> None:
    config = tiny_config(*LIVELY, *CARRY, *SMALL_MAMBA, f"model.sequence_kernel={memory}")
    straight = wyrmling.train(config)
    first = wyrmling.train(config, callbacks=[StopAt(5)])
    second = wyrmling.train(resume(config, first.run.path))
    found = tensors_of(second.run.path, 12)
    assert found.keys() == {"model.safetensors", "optimizer.safetensors", "streams-0.safetensors"}
    assert found == tensors_of(straight.run.path, 12)


def test_another_number_of_streams_is_refused(tiny_config: Make) -> None:
    config = tiny_config(*CARRY)
    stopped = wyrmling.train(config, callbacks=[StopAt(5)])
    with pytest.raises(CheckpointError, match=r"training\.batch_size: 4 -> 6"):
        wyrmling.train(resume(config, stopped.run.path, "training.batch_size=6"))
    streams = Streams(1, 2)
    model = dragon("linear_attention")
    streams.states = [model(torch.randint(0, 13, (2, 5)))[1].detach()]
    with pytest.raises(CheckpointError, match=r"streams of 2 rows.*has 3 now: resume with the rows"):
        Streams(3, 1).load(streams.tensors(), model, torch.float32)


@pytest.mark.parametrize(
    ("name", "change", "told"),
    [
        ("layers.0.rho", lambda rho: rho[..., :-1], r"layers\.0\.rho is \[2, .*\] there and \[2, .*\] here"),
        ("layers.0.rho", lambda rho: rho[:1], "number of rows"),
        ("layers.0.rho", lambda rho: torch.full_like(rho, float("nan")), "not finite"),
        ("layers.0.sum", lambda _: torch.zeros(2, 1), r"layer 0 holds rho, sum there and rho here"),
        ("layers.9.rho", lambda _: torch.zeros(2, 1), "all of its layers"),
        ("position", lambda position: position - 9, "position is below 0"),
        ("position", lambda position: position / 2, "whole numbers"),
        ("whatever", lambda _: torch.zeros(2), "no tensor named 'whatever'"),
    ],
)
def test_states_of_another_model_are_refused(name: str, change: Callable[..., Tensor], told: str) -> None:
    model = dragon("linear_attention")
    streams = Streams(1, 2)
    streams.states = [model(torch.randint(0, 13, (2, 5)))[1].detach()]
    saved = streams.tensors()
    saved[name] = change(saved.get(name))
    with pytest.raises(CheckpointError, match=told):
        Streams(1, 2).load(saved, model, torch.float32)


def test_fewer_blocks_than_rows_are_refused_with_the_remedy(tiny_config: Make) -> None:
    with pytest.raises(DataError, match=r"blocks of training.block_size = 32 tokens for the 5000 rows"):
        wyrmling.train(tiny_config(*CARRY, "training.batch_size=5000"))


def test_validation_leaves_the_streams_alone(tiny_config: Make) -> None:
    often = tiny_config(*CARRY, "training.validation_interval_iters=1")
    never = tiny_config(*CARRY, "training.validation_interval_iters=1000", "training.sanity_validation=false")
    one, other = wyrmling.train(often), wyrmling.train(never)
    assert tensors_of(one.run.path, 12) == tensors_of(other.run.path, 12)


def test_saved_streams_can_be_dealt_to_other_micro_batches() -> None:
    """Rows of the global batch keep their streams, whichever micro-batch they fall in."""
    streams = Streams(1, 2)
    assert streams.tensors() == {}
    model = dragon("linear_attention")
    streams.states = [model(torch.randint(0, 13, (2, 5)))[1].detach()]
    saved, again = streams.tensors(), Streams(2, 1)
    again.load(saved, model, torch.float64)
    assert [state.rows for state in again.states if state is not None] == [1, 1]
    for name, tensor in again.tensors().items():
        assert torch.equal(tensor, saved[name])


def test_chunked_validation_gives_the_same_loss(tiny_config: Make) -> None:
    still = ("optimizer.learning_rate=1e-30", "optimizer.lr_schedule=none", "optimizer.weight_decay=0")
    losses = [
        wyrmling.train(tiny_config(*still, *extra, "runtime.dtype=float64")).validation_loss
        for extra in ((), ("training.tbptt_chunk_size=5",))
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-10)
