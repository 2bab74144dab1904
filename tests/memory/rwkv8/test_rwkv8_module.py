"""RWKV-8 as a memory: first decays, cuts, resets, precision, sizes, forms."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rwkv8_cases import firing
from torch import Tensor

from memory_cases import assert_close, assert_tiles_agree, draw
from wyrmling.memory.base import MemoryState
from wyrmling.memory.rwkv8 import chunked, naive
from wyrmling.memory.rwkv8.module import Rwkv8, initial_time_decay
from wyrmling.numerics.roles import role_of


def build(heads: int = 2, neurons: int = 6, width: int = 4, chunk: int | None = None) -> Rwkv8:
    """A small memory in float64 whose decays lie all over."""
    memory = Rwkv8(heads, neurons, width).double()
    memory.chunk_override = chunk
    with torch.no_grad():
        memory.time_decay.copy_(3 * draw(heads, neurons))
    return memory


def heads_first(neurons: Tensor) -> Tensor:
    """The same [B, H, T, N] in the storage that a layer hands over."""
    return neurons.transpose(0, 1).contiguous().transpose(0, 1)


def call(memory: Rwkv8, neurons: Tensor, stream: Tensor, state: MemoryState | None = None, **more: object):  # type: ignore[no-untyped-def]
    position = torch.zeros(len(stream), dtype=torch.int64)
    return memory(heads_first(neurons), stream, state, position=position, **more)


def tokens(memory: Rwkv8, rows: int, length: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Neurons and stream of a random document."""
    dtype = memory.time_decay.dtype
    neurons = firing(rows, memory.heads, length, memory.neurons, seed=seed + 1)
    return neurons.to(dtype), draw(rows, length, memory.width, seed=seed + 2, dtype=dtype)


def prefix(memory: Rwkv8, rows: int, seed: int = 20) -> MemoryState:
    with torch.no_grad():
        return call(memory, *tokens(memory, rows, 5, seed))[1]


def outcome(
    memory: Rwkv8, neurons: Tensor, stream: Tensor, state: MemoryState | None, cuts: Sequence[int] = ()
) -> dict[str, Tensor]:
    """Reads, final state, and the gradients of a random functional of both to everything."""
    neurons, stream = neurons.clone().requires_grad_(), stream.clone().requires_grad_()
    first = None if state is None else {name: x.clone().requires_grad_() for name, x in state.items()}
    current, reads = first, []
    for begin, end in zip([0, *cuts], [*cuts, stream.shape[1]], strict=True):
        read, current = call(memory, neurons[:, :, begin:end], stream[:, begin:end], current)
        reads.append(read)
    found = {"reads": torch.cat(reads, dim=2), **{f"state.{name}": x for name, x in current.items()}}
    loss = sum((x * draw(*x.shape, seed=90).to(x)).sum() for x in found.values())
    inputs = {"time_decay": memory.time_decay, "neurons": neurons, "stream": stream}
    inputs.update({f"from.{name}": x for name, x in (first or {}).items()})
    gradients = torch.autograd.grad(loss, list(inputs.values()))
    found.update({f"gradient.{name}": g for name, g in zip(inputs, gradients, strict=True)})
    return {name: x.detach() for name, x in found.items()}


def naively(memory: Rwkv8, *given: object) -> dict[str, Tensor]:
    executor, memory.executor = memory.executor, "naive"
    try:
        return outcome(memory, *given)  # type: ignore[arg-type]
    finally:
        memory.executor = executor


@settings(max_examples=20)
@given(data=st.data())
def test_the_whole_is_the_sum_of_any_parts(data: st.DataObject) -> None:
    """Chunks, calls and single tokens: reads, state, and gradients of decays, neurons, stream and first state."""
    rows, length = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 13))
    cuts = sorted(data.draw(st.sets(st.integers(1, max(1, length - 1)), max_size=4))) if length > 1 else []
    chunk = data.draw(st.sampled_from([None, 1, 3, 4, 5, length]))
    memory = build(data.draw(st.integers(1, 3)), data.draw(st.integers(1, 7)), chunk=chunk)
    document, state = tokens(memory, rows, length), None
    if data.draw(st.booleans()):
        state = prefix(memory, rows)
    truth = naively(memory, *document, state)
    assert_close(outcome(memory, *document, state), truth)
    assert_close(outcome(memory, *document, state, cuts), truth)
    assert_close(outcome(memory, *document, state, range(1, length)), truth)


def test_gradcheck() -> None:
    memory = build(1, 3, 2, chunk=2)
    (neurons, stream), state = tokens(memory, 1, 5), prefix(memory, 1)
    inputs = [neurons + 0.1, stream, *state.values(), memory.time_decay.detach().clone()]

    def run(
        neurons: Tensor, stream: Tensor, rho: Tensor, norm: Tensor, time_decay: Tensor
    ) -> tuple[Tensor, ...]:
        read, final = torch.func.functional_call(
            memory,
            {"time_decay": time_decay},
            (neurons, stream, {"rho": rho, "norm": norm}),
            {"position": torch.zeros(1, dtype=torch.int64)},
        )
        return read, *final.values()

    assert torch.autograd.gradcheck(run, [x.requires_grad_() for x in inputs])


@torch.no_grad()
def test_first_decays() -> None:
    """From 0.995 down by 0.22 along the neurons and by 0.03 along the heads, never out of 0.55 .. 0.995."""
    decay = torch.sigmoid(initial_time_decay(3, 5).double())
    for h in range(3):
        for n in range(5):
            expected = min(max(0.995 - 0.22 * n / 4 - 0.03 * h / 2, 0.55), 0.995)
            assert float(decay[h, n]) == pytest.approx(expected, abs=1e-6)
    assert float(torch.sigmoid(initial_time_decay(1, 1))) == pytest.approx(0.995)
    assert initial_time_decay(2, 3).dtype == torch.float32


@torch.no_grad()
def test_a_narrow_layer_uses_the_first_columns() -> None:
    memory = build(neurons=6)
    narrow = Rwkv8(2, 4, 4).double()
    narrow.time_decay.copy_(memory.time_decay[:, :4])
    neurons, stream = tokens(narrow, 2, 9)
    read, state = call(memory, neurons, stream)
    expected, expected_state = call(narrow, neurons, stream)
    assert torch.equal(read, expected)
    assert all(torch.equal(state[name], expected_state[name]) for name in state)
    assert memory.initial_state(3, neurons=4)["norm"].shape == (3, 2, 4)


@pytest.mark.parametrize("length", [2, 3, 4, 5, 8])
@torch.no_grad()
def test_a_reset_row_is_a_new_one(length: int) -> None:
    """What the first document said last, at, before and after a chunk's border, moves no bit of the next one."""
    memory = build(chunk=4).float()
    memory.time_decay.fill_(20)  # nothing is forgotten by itself
    first, second = tokens(memory, 2, length), tokens(memory, 2, 7, seed=5)
    changed = first[0].clone()
    changed[0, :, -1] += 100
    reset = torch.tensor([True, False])
    read, state = call(memory, *second, call(memory, *first)[1], reset=reset)
    other, other_state = call(memory, *second, call(memory, changed, first[1])[1], reset=reset)
    fresh, fresh_state = call(memory, *second, memory.initial_state(2), reset=reset)
    for a, b in ((read, other), (read, fresh)):
        assert torch.equal(a[0], b[0])
    for name in state:
        assert torch.equal(state[name][0], other_state[name][0])
        assert torch.equal(state[name][0], fresh_state[name][0])
    assert torch.equal(read[1], other[1])
    kept, _ = call(memory, *second, call(memory, *first)[1])
    lost, _ = call(memory, *second, call(memory, changed, first[1])[1])
    assert not torch.equal(kept[0], lost[0])


@torch.no_grad()
def test_a_reset_row_forgets_even_what_is_not_a_number() -> None:
    memory = build()
    document = tokens(memory, 2, 5)
    state = {name: torch.full_like(x, math.nan).double() for name, x in memory.initial_state(2).items()}
    read, _ = call(memory, *document, state, reset=torch.tensor([True, True]))
    torch.testing.assert_close(read, call(memory, *document)[0], rtol=1e-12, atol=1e-12)


@torch.no_grad()
def test_no_state_is_the_empty_one() -> None:
    memory = build()
    for length in (1, 6):
        document = tokens(memory, 2, length)
        for executor in ("auto", "reference"):
            memory.executor = executor
            read, state = call(memory, *document)
            expected, expected_state = call(memory, *document, memory.initial_state(2))
            torch.testing.assert_close(read, expected)
            for name in state:
                torch.testing.assert_close(state[name], expected_state[name])


@pytest.mark.parametrize("executor", ["auto", "reference"])
@pytest.mark.parametrize("length", [1, 20])
@torch.no_grad()
def test_a_state_keeps_nothing_else_alive(length: int, executor: str) -> None:
    """Its parts own their memory, and no later call writes to them."""
    memory = build()
    memory.executor = executor
    _, state = call(memory, *tokens(memory, 1, length))
    before = {name: x.clone() for name, x in state.items()}
    call(memory, *tokens(memory, 1, 20, seed=8), state)
    for name, part in state.items():
        assert part.untyped_storage().nbytes() <= 2 * part.numel() * part.element_size()
        assert torch.equal(part, before[name])


@torch.no_grad()
def test_single_tokens_take_no_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("one token went through the chunked form")

    monkeypatch.setattr(chunked, "decayed_recurrence", refuse)
    memory = build()
    read, state = call(memory, *tokens(memory, 2, 1))
    assert read.shape == (2, 2, 1, 4)
    assert call(memory, *tokens(memory, 2, 1), state, carry=False)[1] is None


def test_under_autocast_sums_and_state_are_float32() -> None:
    """Neurons in bfloat16 as a layer hands them over; stream and decays in float32."""
    memory = Rwkv8(2, 32, 16).requires_grad_(False)
    neurons, stream = tokens(memory, 2, 200)
    exact, exact_state = call(memory, neurons, stream)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        low, state = call(memory, neurons.bfloat16(), stream)
        token, token_state = call(memory, neurons[:, :, :1].bfloat16(), stream[:, :1], state)
    assert {x.dtype for x in (low, token, *state.values(), *token_state.values())} == {torch.float32}
    for one, other in (
        (low, exact),
        (state["rho"], exact_state["rho"]),
        (state["norm"], exact_state["norm"]),
    ):
        assert float((one - other).norm() / other.norm()) < 1e-2
    doubled = build()
    assert {x.dtype for x in call(doubled, *tokens(doubled, 1, 3))[1].values()} == {torch.float64}


@pytest.mark.parametrize("extreme", ["slow", "fast", "loud", "faint", "silent", "equal tokens"])
def test_long_streams_in_bfloat16_stay_finite(extreme: str) -> None:
    """8192 tokens under autocast, forwards and back, at both ends of the decays and of the neurons."""
    memory = Rwkv8(1, 8, 4)
    neurons, stream = tokens(memory, 1, 8192)
    with torch.no_grad():
        if extreme in ("slow", "fast"):
            memory.time_decay.fill_(100 if extreme == "slow" else -100)
        neurons *= {"loud": 1e10, "faint": 1e-10, "silent": 0}.get(extreme, 1)
    if extreme == "equal tokens":
        neurons, stream = (x[..., :1, :].expand(*x.shape[:-2], 8192, -1) for x in (neurons, stream))
    stream, neurons = stream.clone().requires_grad_(), neurons.bfloat16().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        read, state = call(memory, neurons, stream)
    read.square().mean().backward()
    found = [read, *state.values(), stream.grad, neurons.grad, memory.time_decay.grad]
    assert all(bool(x.isfinite().all()) for x in found)
    if extreme == "silent":
        assert not read.any()


def test_float32_is_near_float64() -> None:
    memory = build(2, 24, 8)
    document, state = tokens(memory, 2, 150), prefix(memory, 2)
    exact = outcome(memory, *document, state)
    low = outcome(
        memory.float(),
        *(x.float() for x in document),
        {name: x.float() for name, x in state.items()},
        [40, 41],
    )
    assert_close({name: x.double() for name, x in low.items()}, exact, 2e-4)


@pytest.mark.parametrize("recompute", [False, True])
def test_a_layer_runs_it_in_tiles(recompute: bool) -> None:
    """Through the composed layer: tiles hand the state on."""
    assert_tiles_agree(build(2, 6, 8, chunk=3), recompute=recompute)


def test_the_chunk_that_is_asked_for_is_the_chunk_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def spy(neurons: Tensor, *given: object, chunk: int, **more: object):  # type: ignore[no-untyped-def]
        seen.append(chunk)
        return original(neurons, *given, chunk=chunk, **more)

    original = chunked.decayed_recurrence
    monkeypatch.setattr(chunked, "decayed_recurrence", spy)
    memory = build()
    for memory.chunk_override in (5, 100, None):
        call(memory, *tokens(memory, 1, 70))
    memory.scratch_bytes = 4 * 16 * 2 * 6 * (3 * 4 + 2)
    call(memory, *tokens(memory, 1, 70))
    assert seen == [5, 70, 64, 16]
    assert memory.runtime_chunk(1, 70) == 16
    memory.scratch_bytes = 4 << 30
    assert memory.runtime_chunk(24, 512) == 64
    memory.chunk_override = 0
    with pytest.raises(ValueError, match=r"at least 1 token, got 0$"):
        call(memory, *tokens(memory, 1, 70))


def test_the_form_says_what_it_does() -> None:
    memory = Rwkv8(2, 8, 4)
    assert (memory.choice(10_000).form, memory.choice(10_000).tile, memory.choice(100).tile) == (
        "chunked",
        512,
        100,
    )
    assert "64" in memory.choice(10_000).reason
    memory.chunk_override = 48
    assert "48" in memory.choice(10_000).reason
    assert Rwkv8(2, 8, 4, executor="reference").choice(100).form == "sequential"
    with pytest.raises(ValueError, match="unknown executor 'fast'"):
        Rwkv8(2, 8, 4, executor="fast")


@torch.no_grad()
@pytest.mark.parametrize("executor", ["reference", "naive"])
def test_the_reference_executor_is_the_loop(monkeypatch: pytest.MonkeyPatch, executor: str) -> None:
    memory = build()
    document = tokens(memory, 1, 6)
    expected, _ = call(memory, *document)
    monkeypatch.setattr(chunked, "decayed_recurrence", None)
    monkeypatch.setattr(chunked, "single_token", None)
    memory.executor = executor
    torch.testing.assert_close(call(memory, *document)[0], expected)
    call(memory, *tokens(memory, 1, 1))


def test_sizes_and_roles() -> None:
    memory = Rwkv8(4, 32, 16)
    assert (memory.read_heads, memory.time_decay.shape) == (4, (4, 32))
    assert {name: tuple(x.shape) for name, x in memory.initial_state(3).items()} == {
        "rho": (3, 4, 32, 16),
        "norm": (3, 4, 32),
    }
    assert all(x.dtype == torch.float32 and not x.any() for x in memory.initial_state(3).values())
    assert {name: role_of(p) for name, p in memory.named_parameters()} == Rwkv8.parameter_roles


def test_copies_and_pickles_carry_no_buffers() -> None:
    memory = build()
    small = len(pickle.dumps(memory))
    document = tokens(memory, 2, 60)
    expected, _ = call(memory, *document)
    assert len(pickle.dumps(memory)) == small
    for twin in (copy.deepcopy(memory), pickle.loads(pickle.dumps(memory))):
        assert torch.equal(call(twin, *document)[0], expected)


def test_weights_of_an_inference_run_still_train() -> None:
    """Buffers that were made in inference mode are written to outside of it."""
    memory = build()
    document = tokens(memory, 1, 20)
    with torch.inference_mode():
        call(memory, *document)
    assert outcome(memory, *document, None)["gradient.time_decay"].isfinite().all()


def test_the_naive_form_takes_what_the_module_hands_over() -> None:
    """lam = sigmoid(time_decay), neurons as keys and queries alike, the stream as values."""
    memory = build()
    neurons, stream = tokens(memory, 2, 5)
    state = prefix(memory, 2)
    log_decay = torch.nn.functional.logsigmoid(memory.time_decay)
    expected, rho, norm = naive.decayed_recurrence(neurons, stream, log_decay, state["rho"], state["norm"])
    read, final = call(memory, neurons, stream, state)
    torch.testing.assert_close(read, expected)
    torch.testing.assert_close(final["rho"], rho)
    torch.testing.assert_close(final["norm"], norm)


def test_going_backward_twice_finds_the_same() -> None:
    """What is kept for the backward pass is read, never written to."""
    memory = build(chunk=4)
    neurons, stream = (x.requires_grad_() for x in tokens(memory, 2, 11))
    read, state = call(memory, neurons, stream, prefix(memory, 2))
    loss = read.square().sum() + state["rho"].square().sum() + state["norm"].square().sum()
    inputs = [memory.time_decay, neurons, stream]
    once = torch.autograd.grad(loss, inputs, retain_graph=True)
    call(memory, *tokens(memory, 3, 9))
    for one, other in zip(once, torch.autograd.grad(loss, inputs), strict=True):
        assert torch.equal(one, other)
