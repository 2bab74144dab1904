"""The recurrence of Mamba-3: its own numbers, other ways to write it, and the chunked form against the loop."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mamba3_cases import empty_state, make_tokens, outcome, part_of, prefix_state
from torch import Tensor

from memory_cases import assert_close, draw
from wyrmling.memory.base import MemoryState
from wyrmling.memory.mamba3 import chunked, naive
from wyrmling.memory.mamba3.naive import Tokens
from wyrmling.memory.ssd import naive as ssd_naive


def by_chunks(chunk: int):  # type: ignore[no-untyped-def]
    return partial(chunked.mamba3, chunk=chunk)


def still(tokens: Tokens) -> Tokens:
    """The same tokens without rotation."""
    return tokens._replace(spin=torch.zeros_like(tokens.spin))


def test_two_tokens_by_hand() -> None:
    """One channel, one key, dt = 1, lambda = 1/4, decay 1/2, no rotation, D = 0, from S = 8, v = 2, k = 1.

    S_1 = 1/2 (8 + 3/4 2 1) + 1/4 4 1 = 5.75, y_1 = 5.75;  S_2 = 1/2 (5.75 + 3/4 4 1) + 1/4 8 2 = 8.375, y_2 = 3 S_2.
    """
    one = torch.ones(1, 1, 2, dtype=torch.float64)
    tokens = Tokens(
        log_decay=one * math.log(0.5),
        step=one,
        blend=one * 0.25,
        spin=torch.zeros(1, 2, 1, dtype=torch.float64),
        values=torch.tensor([4.0, 8.0]).double().view(1, 1, 2, 1),
        keys=torch.tensor([[1.0, 0.0], [2.0, 0.0]]).double().view(1, 1, 2, 2),
        queries=torch.tensor([[1.0, 0.0], [3.0, 0.0]]).double().view(1, 1, 2, 2),
    )
    state = {**empty_state(tokens), "value": torch.full((1, 1, 1), 2.0).double()}
    state["ssm"] = torch.tensor([8.0, 0.0]).double().view(1, 1, 1, 2)
    state["key"] = torch.tensor([1.0, 0.0]).double().view(1, 1, 2)
    for form in (naive.mamba3, by_chunks(1), by_chunks(2)):
        reads, final = form(tokens, torch.zeros(1).double(), state)
        torch.testing.assert_close(reads.flatten(), torch.tensor([5.75, 3 * 8.375]).double())
        torch.testing.assert_close(final["ssm"].flatten(), torch.tensor([8.375, 0.0]).double())
        assert final["key"].flatten().tolist() == [2, 0]
        assert final["value"].item() == 8


@pytest.mark.parametrize("length", [1, 2, 9])
@pytest.mark.parametrize("carried", [False, True])
@pytest.mark.parametrize("chunk", [1, 3, 4, 5, 9, 64])
def test_chunks_of_any_size_equal_the_loop(chunk: int, carried: bool, length: int) -> None:
    """Reads, all four parts of the state, and the gradient of everything: no border counts a write twice."""
    tokens = make_tokens(length=length)
    state, skip = prefix_state(tokens) if carried else empty_state(tokens), draw(2)
    truth = outcome(naive.mamba3, tokens, skip, state)
    assert_close(outcome(by_chunks(chunk), tokens, skip, state), truth)
    if not carried:  # None is the empty state
        nothing = outcome(by_chunks(chunk), tokens, skip, None)
        assert_close(nothing, {name: x for name, x in truth.items() if "from." not in name})


@pytest.mark.parametrize("only", [None, "read", "ssm", "angle", "key", "value"])
@pytest.mark.parametrize("carried", [False, True])
@pytest.mark.parametrize(("chunk", "segment"), [(1, 1), (1, 4), (3, 3), (2, 5), (4, 8)])
def test_gradients_do_not_notice_where_segments_end(
    monkeypatch: pytest.MonkeyPatch, only: str | None, carried: bool, chunk: int, segment: int
) -> None:
    """Sums of angles' gradients end there; of everything, and of one part of what comes out alone."""
    monkeypatch.setattr(chunked, "SEGMENT", segment)
    tokens = make_tokens(length=11)
    state, skip = prefix_state(tokens) if carried else None, draw(2)

    def gradients(form, first: MemoryState | None) -> list[Tensor]:  # type: ignore[no-untyped-def]
        inputs = [x.clone().requires_grad_() for x in tokens]
        start = None if first is None else {name: x.clone().requires_grad_() for name, x in first.items()}
        read, final = form(Tokens(*inputs), skip, start)
        found = {"read": read, **final}
        losses = [(x * draw(*x.shape, seed=7)).sum() for name, x in found.items() if only in (None, name)]
        leaves = [*inputs, *(start or {}).values()] if carried else inputs
        return list(torch.autograd.grad(sum(losses), leaves, materialize_grads=True))

    truth = gradients(naive.mamba3, state or empty_state(tokens))
    for one, other in zip(gradients(by_chunks(chunk), state), truth, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


@settings(max_examples=40)
@given(data=st.data())
def test_the_whole_is_the_sum_of_any_parts(data: st.DataObject) -> None:
    """Cut anywhere, down to single tokens, with any sizes; gradients cross the cuts."""
    length = data.draw(st.integers(1, 14))
    keys = data.draw(st.integers(2, 7))
    tokens = make_tokens(
        data.draw(st.integers(1, 3)),
        data.draw(st.integers(1, 3)),
        length,
        keys=keys,
        values=data.draw(st.integers(1, 4)),
        angles=data.draw(st.integers(1, keys // 2)),
        seed=data.draw(st.integers(0, 99)),
    )
    cuts = (
        sorted(data.draw(st.sets(st.integers(1, max(1, length - 1)), max_size=length))) if length > 1 else []
    )
    chunk = data.draw(st.sampled_from([1, 3, 4, 5, length]))
    state, skip = prefix_state(tokens), draw(tokens.step.shape[1])
    truth = outcome(naive.mamba3, tokens, skip, state)
    assert_close(outcome(naive.mamba3, tokens, skip, state, cuts), truth)
    assert_close(outcome(by_chunks(chunk), tokens, skip, state, cuts), truth)
    assert_close(outcome(chunked.single_token, tokens, skip, state, range(1, length)), truth)


def test_float32_is_near() -> None:
    tokens = make_tokens(length=200, keys=16, values=8, angles=4)
    state, skip = prefix_state(tokens), draw(2)
    truth = outcome(naive.mamba3, tokens, skip, state)
    low = Tokens(*(x.float() for x in tokens))
    for chunk, cuts in ((64, []), (64, [77]), (5, [1, 2, 100])):
        found = outcome(by_chunks(chunk), low, skip.float(), state, cuts)
        assert_close(found, truth, 2e-4)


@pytest.mark.parametrize("length", [1, 2, 5])
def test_gradcheck(length: int) -> None:
    tokens, skip = make_tokens(1, 2, length, keys=4, values=2, angles=1), draw(2)
    state = prefix_state(tokens)
    inputs = [x.clone().requires_grad_() for x in (*tokens, skip, *state.values())]

    def run(form, *given: Tensor) -> tuple[Tensor, ...]:  # type: ignore[no-untyped-def]
        reads, final = form(Tokens(*given[:7]), given[7], dict(zip(state, given[8:], strict=True)))
        return reads, *final.values()

    assert torch.autograd.gradcheck(partial(run, by_chunks(2)), inputs)
    if length == 1:
        assert torch.autograd.gradcheck(partial(run, chunked.single_token), inputs)


def test_without_rotation_and_trapezoid_it_is_mamba_2() -> None:
    """lambda = 1, angle = 0: values of weight dt written at once."""
    tokens = still(make_tokens(length=11))
    tokens = tokens._replace(blend=torch.ones_like(tokens.blend))
    reads, final = chunked.mamba3(tokens, torch.zeros(2).double(), None, chunk=4)
    weighted = tokens.step[..., None] * tokens.values
    expected, state = ssd_naive.ssd(tokens.log_decay, weighted, tokens.keys, tokens.queries, None)
    torch.testing.assert_close(reads, expected, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(final["ssm"], state, rtol=1e-11, atol=1e-11)


def test_rotating_the_state_instead_is_the_same() -> None:
    """A complex state whose pairs turn back by each step's own angle, read by queries that never turn."""
    tokens, skip = make_tokens(length=12), draw(2)
    pairs = tokens.spin.shape[-1]

    def as_complex(x: Tensor) -> Tensor:  # pairs that turn, then the rest, as complex numbers
        turning = torch.view_as_complex(x[..., : 2 * pairs].unflatten(-1, (pairs, 2)).contiguous())
        return torch.cat([turning, x[..., 2 * pairs :].to(turning.dtype)], dim=-1)

    keys, queries = as_complex(tokens.keys), as_complex(tokens.queries)
    state = torch.zeros(*tokens.values.shape[:2], tokens.values.shape[-1], keys.shape[-1], dtype=keys.dtype)
    before_key, before_value = torch.zeros_like(keys[:, :, 0]), torch.zeros_like(tokens.values[:, :, 0])
    reads = []
    for t in range(tokens.step.shape[2]):
        step, blend = tokens.step[:, :, t, None, None], tokens.blend[:, :, t, None, None]
        turn = torch.exp(-1j * math.pi * step[..., 0] * tokens.spin[:, None, t])
        turn = torch.cat([turn, turn.new_ones(*turn.shape[:2], keys.shape[-1] - pairs)], dim=-1)[:, :, None]
        value = tokens.values[:, :, t]
        old = state + step * (1 - blend) * before_value[..., None] * before_key[..., None, :]
        state = torch.exp(tokens.log_decay[:, :, t, None, None]) * old * turn
        state = state + step * blend * value[..., None] * keys[:, :, t, None, :]
        read = (state * queries[:, :, t, None, :].conj()).real.sum(-1)
        reads.append(read + skip[:, None] * value)
        before_key, before_value = keys[:, :, t], value
    found, _ = chunked.mamba3(tokens, skip, None, chunk=5)
    torch.testing.assert_close(found, torch.stack(reads, dim=2), rtol=1e-11, atol=1e-11)


def test_the_published_square_is_the_same() -> None:
    """All pairs of tokens at once: keys that carry their successor's share, which the diagonal gives back."""
    tokens, skip = make_tokens(length=13), draw(2)
    state = prefix_state(tokens)
    angle = state["angle"][:, :, None] + math.pi * (tokens.step[..., None] * tokens.spin[:, None]).cumsum(2)
    keys, queries = naive.rotated(tokens.keys, angle), naive.rotated(tokens.queries, angle)
    ahead = (1 - tokens.blend) * tokens.step
    successor = torch.cat([ahead[..., 1:], torch.zeros_like(ahead[..., :1])], dim=-1)
    scale = tokens.blend * tokens.step + successor
    total = tokens.log_decay.cumsum(-1)
    decays = (total[..., :, None] - total[..., None, :]).tril().exp().tril()
    scores = torch.einsum("bhtn,bhsn->bhts", queries, keys)
    start = state["ssm"] + ahead[..., :1, None] * state["value"][..., None] * state["key"][..., None, :]
    expected = torch.einsum("bhts,bhsp->bhtp", scores * decays * scale[..., None, :], tokens.values)
    expected = expected + total.exp()[..., None] * torch.einsum("bhpn,bhtn->bhtp", start, queries)
    own = skip[:, None] - successor * scores.diagonal(dim1=-2, dim2=-1)
    expected = expected + own[..., None] * tokens.values
    found, _ = chunked.mamba3(tokens, skip, state, chunk=4)
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)


def test_the_trapezoid_is_of_second_order() -> None:
    """h' = -h + u(t), whose solution is known: halving the step divides the error by 4, and by 2 with lambda = 1."""

    def error(steps: int, blend: float) -> float:
        time = torch.arange(1, steps + 1, dtype=torch.float64) * (2.0 / steps)
        size = torch.full((1, 1, steps), 2.0 / steps).double()
        one = torch.tensor([1.0, 0.0]).double().expand(1, 1, steps, 2)
        tokens = Tokens(
            -size, size, torch.full_like(size, blend), size.new_zeros(1, steps, 1),
            torch.cos(time).view(1, 1, steps, 1), one, one,
        )  # fmt: skip
        state = {**empty_state(tokens), "key": one[:, :, 0], "value": torch.ones(1, 1, 1).double()}
        reads, _ = chunked.mamba3(tokens, torch.zeros(1).double(), state, chunk=8)
        exact = (torch.cos(time) + torch.sin(time) - torch.exp(-time)) / 2
        return float((reads.flatten() - exact).abs().max())

    assert error(40, 0.5) / error(80, 0.5) == pytest.approx(4, rel=0.05)
    assert error(40, 1.0) / error(80, 1.0) == pytest.approx(2, rel=0.1)


@pytest.mark.parametrize("dropped", ["ssm", "angle", "key", "value"])
def test_every_part_of_the_state_is_needed(dropped: str) -> None:
    tokens, skip = make_tokens(length=10), draw(2)
    whole, _ = chunked.mamba3(tokens, skip, None)
    _, state = chunked.mamba3(part_of(tokens, 0, 6), skip, None)
    rest = part_of(tokens, 6, 10)
    kept, _ = chunked.mamba3(rest, skip, state)
    torch.testing.assert_close(kept, whole[:, :, 6:], rtol=1e-11, atol=1e-11)
    lost, _ = chunked.mamba3(rest, skip, {**state, dropped: torch.zeros_like(state[dropped])})
    assert float((lost - whole[:, :, 6:]).abs().max()) > 1e-3


def test_the_sign_of_the_state_is_the_parity() -> None:
    """Ones turn by half a turn (dt tanh(angle) = 1), zeros not at all: the read of a mark set at the start flips."""
    bits = torch.randint(0, 2, (1, 300), generator=torch.Generator().manual_seed(3))
    step = torch.full((1, 1, 300), 2.0)
    tokens = Tokens(
        log_decay=-1e-9 * step,
        step=step,
        blend=torch.ones_like(step),
        spin=(bits * 0.5)[..., None],
        values=torch.zeros(1, 1, 300, 1),
        keys=torch.ones(1, 1, 300, 2),
        queries=torch.tensor([1.0, 0.0]).expand(1, 1, 300, 2),
    )
    state = {**empty_state(tokens), "ssm": torch.tensor([1.0, 0.0]).view(1, 1, 1, 2)}
    signs = 1 - 2 * (bits.cumsum(1) % 2)
    for form in (naive.mamba3, by_chunks(7)):
        reads, _ = form(tokens, torch.zeros(1), state)
        torch.testing.assert_close(reads.flatten(), signs.flatten().float(), rtol=0, atol=1e-4)


@pytest.mark.parametrize("changed", range(9))
@pytest.mark.parametrize("form", [naive.mamba3, by_chunks(4)])
def test_no_later_token_moves_a_read_by_one_bit(form, changed: int) -> None:  # type: ignore[no-untyped-def]
    """Also one with an enormous step: its share of the write before it must not pass through the read before it."""
    tokens = make_tokens(length=9, dtype=torch.float32)
    state = {name: part.float() for name, part in prefix_state(tokens).items()}
    other = Tokens(*(x.clone() for x in tokens))
    for name, x in zip(Tokens._fields, other, strict=True):
        factor = 1e6 if name in ("step", "log_decay") else 0.5
        (x[:, changed] if name == "spin" else x[:, :, changed]).mul_(factor)
    before, _ = form(tokens, torch.ones(2), state)
    after, _ = form(other, torch.ones(2), state)
    assert torch.equal(before[:, :, :changed], after[:, :, :changed])
    assert not torch.equal(before[:, :, changed], after[:, :, changed])


def test_rows_and_heads_never_mix() -> None:
    tokens, skip = make_tokens(3, 2, 9), draw(2)
    state = prefix_state(tokens)
    reads, final = chunked.mamba3(tokens, skip, state, chunk=4)
    other = Tokens(*(x.clone() for x in tokens))
    other_state = {name: part.clone() for name, part in state.items()}
    for x in (*other, *other_state.values()):
        x[1] = torch.tanh(x[1] * 0.7)
    other.log_decay[1].abs_().neg_()
    found, other_final = chunked.mamba3(other, skip, other_state, chunk=4)
    for row in (0, 2):
        assert torch.equal(found[row], reads[row])
        assert all(torch.equal(other_final[name][row], final[name][row]) for name in final)
    assert not torch.equal(found[1], reads[1])


def test_nobody_who_does_not_ask_gets_a_final_state() -> None:
    assert chunked.mamba3(make_tokens(), draw(2), None, carry=False)[1] is None


@pytest.mark.parametrize("decay", [0.0, -1e-6, -50.0, -1e30])
@pytest.mark.parametrize("step", [1e-30, 1.0, 1e6])
def test_extremes_stay_finite(decay: float, step: float) -> None:
    """Reads, state and gradients, with all tokens equal."""
    tokens = make_tokens(1, 2, 70, dtype=torch.float32)
    tokens = Tokens(
        *(
            x[:, :1].expand_as(x) if name == "spin" else x[:, :, :1].expand_as(x)
            for name, x in zip(Tokens._fields, tokens, strict=True)
        )
    )
    tokens = tokens._replace(
        log_decay=torch.full_like(tokens.step, decay), step=torch.full_like(tokens.step, step)
    )
    for form in (naive.mamba3, by_chunks(16)):
        found = outcome(form, tokens, torch.ones(2), empty_state(tokens))
        assert all(bool(x.isfinite().all()) for x in found.values())


def test_what_is_kept_grows_with_the_stream_alone() -> None:
    """Bytes kept for the backward pass per token do not grow with the number of chunks."""

    def kept(length: int) -> int:
        tokens = Tokens(*(x.requires_grad_() for x in make_tokens(1, 2, length)))
        sizes: dict[int, int] = {}

        def pack(x: Tensor) -> Tensor:
            sizes[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
            return x

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            reads, _ = chunked.mamba3(tokens, draw(2), None, chunk=8)
        assert reads.requires_grad
        return sum(sizes.values())

    assert kept(512) - kept(256) == pytest.approx(2 * (kept(256) - kept(128)), rel=0.05)


def test_strong_and_slow_decays_stand_side_by_side() -> None:
    """Tokens that wipe everything between tokens that keep everything: none costs the others their digits."""
    tokens = make_tokens(2, 2, 150, keys=8, values=4)
    wiping = torch.rand(tokens.step.shape, generator=torch.Generator().manual_seed(1)) < 0.2
    tokens = tokens._replace(log_decay=torch.where(wiping, -3e4, tokens.log_decay * 1e-3))
    truth = outcome(naive.mamba3, tokens, draw(2), empty_state(tokens))
    low = Tokens(*(x.float() for x in tokens))
    found = outcome(chunked.mamba3, low, draw(2).float(), empty_state(low))
    assert_close(found, truth, 2e-4)


def test_there_is_no_loop_over_tokens() -> None:
    """A chunk of 200 tokens launches as many operations as a chunk of 20."""

    def launched(length: int) -> int:
        tokens = make_tokens(1, 2, length)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            chunked.mamba3(tokens, draw(2), None, chunk=length)
        return sum(event.count for event in profile.key_averages())

    assert launched(20) == launched(200)
