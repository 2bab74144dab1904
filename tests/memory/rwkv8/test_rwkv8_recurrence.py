"""The decayed normalised recurrence: its own numbers, the chunked form against the loop, precision, memory."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rwkv8_cases import Case, by_chunks, decays, firing, loop, make_case, outcome
from torch import Tensor

from memory_cases import assert_close
from wyrmling.memory.rwkv8 import chunked, forward, naive
from wyrmling.memory.rwkv8.naive import EPS


def test_two_tokens_by_hand() -> None:
    """Decay 1/2: the second token reads a quarter of the first neuron's mean; the state decays before it is written."""
    case = Case(
        torch.tensor([[2.0, 0.0], [1.0, 3.0]]).view(1, 1, 2, 2),
        torch.tensor([[10.0, 20.0], [30.0, 40.0]]).view(1, 2, 2),
        torch.full((1, 2), 0.5).log(),
        None,
        None,
    )
    for form in (loop, by_chunks(1), by_chunks(2), by_chunks(64)):
        reads, rho, norm = form(*case)
        torch.testing.assert_close(reads.flatten(), torch.tensor([0, 0, 2.5, 5]), rtol=0, atol=1e-4)
        assert rho.flatten().tolist() == [40, 60, 90, 120]
        assert norm.flatten().tolist() == [2, 3]


def test_golden_numbers() -> None:
    """The described system's own run of 5 tokens from a state: norms after it (float32)."""

    def counted(start: float, step: float, *shape: int) -> Tensor:
        count = torch.Size(shape).numel()
        return (start + step * torch.arange(count, dtype=torch.float64)).view(shape)

    q, v = counted(0.15, 0.013, 1, 2, 5, 4), counted(-0.2, 0.017, 1, 5, 6)
    rho, norm = counted(-0.1, 0.009, 1, 2, 4, 6), counted(0.4, 0.021, 1, 2, 4)
    decay = torch.tensor([[0.97, 0.95, 0.93, 0.91], [0.96, 0.94, 0.92, 0.90]], dtype=torch.float64)
    expected = torch.tensor(
        [1.5544561, 1.5578794, 1.5574768, 1.5537275, 2.7866828, 2.7363230, 2.6847200, 2.6322460]
    ).double()
    for form in (loop, by_chunks(2), by_chunks(5)):
        final = form(q, v, decay.log(), rho, norm)[2]
        torch.testing.assert_close(final.flatten(), expected, rtol=0, atol=1e-6)


def test_a_read_is_a_mean_of_what_was() -> None:
    """Weights of what a token reads add up to 1 but for eps: a constant stream is read back as it is."""
    case = make_case(length=40, carried=False)._replace(neurons=firing(2, 2, 40, 5) + 1)
    case = case._replace(values=torch.ones_like(case.values) * 3)
    reads, _, _ = by_chunks(16)(*case)
    torch.testing.assert_close(reads[:, :, 1:], torch.full_like(reads[:, :, 1:], 3.0), rtol=1e-5, atol=0)
    assert not reads[:, :, 0].any()


@pytest.mark.parametrize("length", [1, 2, 9])
@pytest.mark.parametrize("carried", [False, True])
@pytest.mark.parametrize("chunk", [1, 3, 4, 5, 9, 64])
def test_chunks_of_any_size_equal_the_loop(chunk: int, carried: bool, length: int) -> None:
    """Reads, both parts of the state, and the gradient of everything."""
    case = make_case(length=length, carried=carried)
    assert_close(outcome(by_chunks(chunk), case), outcome(loop, case))


@settings(max_examples=40)
@given(data=st.data())
def test_the_whole_is_the_sum_of_any_parts(data: st.DataObject) -> None:
    """Any sizes, any chunk, cut anywhere, down to single tokens; gradients cross the cuts."""
    length = data.draw(st.integers(1, 40), "length")
    case = make_case(
        data.draw(st.integers(1, 3), "rows"),
        data.draw(st.integers(1, 3), "heads"),
        length,
        data.draw(st.integers(1, 7), "neurons"),
        data.draw(st.integers(1, 4), "width"),
        carried=data.draw(st.booleans(), "carried"),
        seed=data.draw(st.integers(0, 99), "seed"),
    )
    chunk = data.draw(st.sampled_from([1, 3, 4, 5, 16, 19, length]), "chunk")
    cuts = sorted(c for c in data.draw(st.sets(st.integers(1, 39), max_size=4), "cuts") if c < length)
    truth = outcome(loop, case)
    assert_close(outcome(by_chunks(chunk), case), truth)
    assert_close(outcome(by_chunks(chunk), case, cuts), truth)


@pytest.mark.parametrize("chunk", [16, 64, 128])
def test_float32_is_near_float64(chunk: int) -> None:
    case = make_case(length=300, neurons=24, width=8)
    exact = outcome(loop, case)
    low = outcome(by_chunks(chunk), case.to(torch.float32), [130, 131])
    assert_close({name: x.double() for name, x in low.items()}, exact, 2e-4)


def test_a_few_heads_and_rows_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """How a call is cut for the cache makes no difference."""
    case = make_case(rows=3, heads=4, length=21)
    truth = outcome(loop, case)
    for numbers in (1, 5 * 8 * 2, 5 * 8 * 3, 5 * 8 * 7):
        monkeypatch.setattr(forward, "SLAB", numbers)
        assert_close(outcome(by_chunks(8), case), truth)


@pytest.mark.parametrize("carried", [False, True])
def test_states_that_are_made_again(monkeypatch: pytest.MonkeyPatch, carried: bool) -> None:
    """Of many chunks only some states are kept; the others come out of the backward pass the same."""
    case = make_case(length=23, carried=carried)
    monkeypatch.setattr(forward, "KEPT_STATES", 3)
    assert_close(outcome(by_chunks(2), case), outcome(loop, case))


@pytest.mark.parametrize("carried", [False, True])
@pytest.mark.parametrize(("length", "chunk"), [(1, 4), (4, 4), (5, 2), (7, 3)])
def test_the_analytic_backward_pass_is_right(length: int, chunk: int, carried: bool) -> None:
    case = make_case(rows=1, heads=2, length=length, neurons=3, width=2, carried=carried)
    case = case._replace(neurons=case.neurons + 0.1, log_decay=case.log_decay / 4)
    inputs = [x.requires_grad_() for x in case if x is not None]

    def run(*given: Tensor) -> tuple[Tensor, ...]:
        state = given[3:] if carried else (None, None)
        return chunked.decayed_recurrence(*given[:3], *state, chunk=chunk)

    assert torch.autograd.gradcheck(run, inputs)


@pytest.mark.parametrize("use", [(0,), (1,), (2,), (0, 2), (1, 2)])
def test_only_what_is_used_gets_a_gradient(use: tuple[int, ...]) -> None:
    """A loss of the reads alone, of one part of the state alone; inputs that nobody asks about."""
    case = make_case(length=11)

    def gradients(form, wanted: list[int]) -> list[Tensor | None]:  # type: ignore[no-untyped-def]
        inputs = [x.clone().requires_grad_(i in wanted) for i, x in enumerate(case)]
        found = form(*inputs)
        loss = sum(found[i].square().sum() for i in use)
        return list(torch.autograd.grad(loss, [inputs[i] for i in wanted], allow_unused=True))

    depends = {0: {0, 1, 2, 3, 4}, 1: {0, 1, 2, 3}, 2: {0, 2, 4}}
    for wanted in ([0, 1, 2, 3, 4], [0], [1], [2], [3], [4]):
        if not any(depends[i] & set(wanted) for i in use):
            continue
        pairs = zip(gradients(loop, wanted), gradients(by_chunks(4), wanted), strict=True)
        for expected, found in pairs:
            if expected is None or found is None:  # not used, or told to be zero
                assert all(x is None or not x.any() for x in (expected, found))
            else:
                torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


def test_a_final_state_that_nobody_reads_is_not_made() -> None:
    assert chunked.decayed_recurrence(*make_case(), chunk=4, carry=False)[1:] == (None, None)


def test_a_second_derivative_fails_instead_of_being_wrong() -> None:
    case = make_case()
    neurons = case.neurons.requires_grad_()
    reads = by_chunks(4)(*case)[0]
    (first,) = torch.autograd.grad(reads.square().sum(), neurons, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiate"):
        first.square().sum().backward()


@pytest.mark.parametrize("chunk", [4, 8, 64])
def test_no_token_sees_itself_or_what_comes(chunk: int) -> None:
    """And rows and heads never mix: a change at token t of one row moves no other bit before it, nor elsewhere."""
    case = make_case(rows=2, heads=2, length=20)
    before, _, _ = by_chunks(chunk)(*case)
    for t in (0, 3, 4, 8, 19):
        neurons, values = case.neurons.clone(), case.values.clone()
        values[0, t] += 5
        after, _, _ = by_chunks(chunk)(*case._replace(values=values))
        assert torch.equal(after[0, :, : t + 1], before[0, :, : t + 1])
        assert torch.equal(after[1], before[1])
        neurons[0, 1, t] += 1
        after, _, _ = by_chunks(chunk)(*case._replace(neurons=neurons))
        assert torch.equal(after[0, :, :t], before[0, :, :t])
        assert torch.equal(after[0, 0], before[0, 0])
        assert torch.equal(after[1], before[1])


@pytest.mark.parametrize("raw", [-100.0, 0.0, 100.0])
def test_both_ends_of_the_decays(raw: float) -> None:
    """lam of sigmoid(-100), below the smallest normal number, to sigmoid(100), which is 1: right and finite."""
    log_decay = torch.nn.functional.logsigmoid(torch.full((2, 6), raw, dtype=torch.float64))
    case = make_case(length=150, neurons=6)._replace(log_decay=log_decay)
    exact = outcome(loop, case)
    assert_close(outcome(by_chunks(64), case), exact)
    low = outcome(by_chunks(64), case.to(torch.float32))
    assert all(bool(x.isfinite().all()) for x in low.values())
    assert_close({name: x.double() for name, x in low.items()}, exact, 2e-4)


def test_neurons_that_never_fire_read_nothing_and_keep_nothing() -> None:
    case = make_case(length=20)
    nothing = torch.zeros_like(case.neurons)
    reads, rho, norm = by_chunks(8)(*case._replace(neurons=nothing))
    assert not reads.any()
    decay = (20 * case.log_decay).exp()
    torch.testing.assert_close(rho, decay[..., None] * case.rho)
    torch.testing.assert_close(norm, decay * case.norm)


@pytest.mark.parametrize("scale", [1e-30, 1e-12, 1e12, 1e20])
def test_neurons_of_any_size(scale: float) -> None:
    """Reads are means: far from eps they do not depend on how strongly neurons fire, and nothing overflows."""
    case = make_case(length=70, carried=False)
    case = case._replace(neurons=(case.neurons * scale)).to(torch.float32)
    found = outcome(by_chunks(32), case)
    assert all(bool(x.isfinite().all()) for name, x in found.items() if name != "gradient.neurons")
    reads = loop(*case.to(torch.float64))[0]
    torch.testing.assert_close(found["reads"].double(), reads, rtol=2e-4, atol=1e-5)
    assert found["gradient.neurons"].isfinite().all()


def test_low_products_keep_the_state_in_float32() -> None:
    """bfloat16 neurons: products in bfloat16, sums and states in float32, everything near the exact values."""
    case = make_case(length=300, neurons=32, width=16)
    exact = outcome(loop, case)
    low = outcome(by_chunks(128), case.to(torch.float32), low=torch.bfloat16)
    assert {low[name].dtype for name in ("reads", "state.rho", "state.norm")} == {torch.float32}
    for name, x in low.items():
        assert float((x.double() - exact[name]).norm() / exact[name].norm()) < 1e-2, name


def test_rounding_does_not_drown_the_gradient_of_fast_decays() -> None:
    """What flows between neighbours weighs nothing; rounded, and multiplied with their ages, it would be noise."""
    raw = torch.linspace(-12, -3, 32, dtype=torch.float64)[None]
    case = make_case(heads=1, length=300, neurons=32, width=16, carried=False)
    case = case._replace(log_decay=torch.nn.functional.logsigmoid(raw))
    exact = outcome(loop, case)["gradient.log_decay"]
    low = outcome(by_chunks(128), case.to(torch.float32), low=torch.bfloat16)["gradient.log_decay"]
    assert float((low.double() - exact).norm() / exact.norm()) < 3e-2


def test_what_is_kept_grows_with_the_stream_alone() -> None:
    """Bytes kept for the backward pass, without the inputs: so many per token, and the square root of the chunks'
    states."""

    def kept(length: int) -> int:
        case = make_case(rows=1, heads=1, length=length, neurons=64, width=64, carried=False)
        sizes: dict[int, int] = {}

        def pack(x: Tensor) -> Tensor:
            sizes[x.data_ptr()] = x.numel() * x.element_size()
            return x

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            neurons = case.neurons.requires_grad_()
            by_chunks(8)(*case)
        inputs = (neurons, case.values, case.log_decay)
        return sum(sizes.values()) - sum(x.numel() * x.element_size() for x in inputs)

    state = 64 * 64 * 8
    per_token = 8 * (64 + 8 + 8)  # a read, a row of scores, an eighth of the sums z
    for length in (512, 2048):
        chunks = length // 8
        assert kept(length) < per_token * length + (chunks**0.5 + 2) * state + 64 * 8 * 2


def test_the_loop_over_chunks_launches_the_same_for_every_chunk() -> None:
    """No loop over tokens: what a chunk launches does not depend on how many there are, nor much on its size."""

    def launched(length: int, chunk: int) -> int:
        case = make_case(rows=1, heads=1, length=length, carried=False)
        run = by_chunks(chunk)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            run(*case)
        return sum(event.count for event in profile.key_averages())

    counts = [launched(n * 16, 16) for n in (2, 3, 4, 5)]
    steps = [b - a for a, b in pairwise(counts)]
    assert len(set(steps)) == 1
    assert launched(256, 128) < 1.5 * launched(32, 16)


def test_the_reads_of_single_tokens() -> None:
    """The direct step against the loop, from a state, with gradients."""
    case = make_case(length=1)

    def step(*inputs: Tensor):  # type: ignore[no-untyped-def]
        return chunked.single_token(*inputs)

    assert_close(outcome(step, case), outcome(loop, case))


def test_the_naive_form_is_the_text() -> None:
    """One neuron, three tokens, every number written out."""
    q, v = torch.tensor([1.0, 2.0, 4.0]).view(1, 1, 3, 1), torch.tensor([3.0, 5.0, 7.0]).view(1, 3, 1)
    zero = torch.zeros(1, 1, 1)
    reads, rho, norm = naive.decayed_recurrence(q, v, torch.tensor([[0.25]]).log(), zero[..., None], zero)
    second = 2 / (2 + EPS) * (1 * 3) / (1 + EPS)
    third = 4 / (4 + EPS) * (0.25 * 1 * 3 + 2 * 5) / (0.25 * 1 + 2 + EPS)
    torch.testing.assert_close(reads.flatten(), torch.tensor([0, second, third]))
    torch.testing.assert_close(rho.flatten(), torch.tensor([(0.25 * 3 + 10) * 0.25 + 28]))
    torch.testing.assert_close(norm.flatten(), torch.tensor([(0.25 + 2) * 0.25 + 4]))


def test_decays_are_drawn_near_both_ends() -> None:
    """The cases above mean something: their decays lie everywhere between 0 and 1."""
    lam = decays(4, 64).exp()
    assert float(lam.min()) < 0.01
    assert float(lam.max()) > 0.99
