"""State space duality: the chunked form against the loop, its backward pass, its extremes, its memory."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from wyrmling.memory.ssd import chunked, naive

TOLERANCE = 1e-10


class Inputs(NamedTuple):
    """What the core takes, by name."""

    log_decay: Tensor
    values: Tensor
    keys: Tensor
    queries: Tensor
    state: Tensor | None

    def cut(self, begin: int, end: int) -> list[Tensor]:
        """All but the state, tokens `begin` to `end`."""
        return [tensor[:, :, begin:end] for tensor in self[:4]]

    def leaves(self) -> list[Tensor]:
        return [tensor for tensor in self if tensor is not None]


def draw(
    rows: int,
    heads: int,
    groups: int,
    length: int,
    *,
    width: int = 3,
    keys: int = 4,
    seed: int = 0,
    carried: bool = True,
    strength: float = 1.0,
    dtype: torch.dtype = torch.float64,
) -> Inputs:
    """Random inputs that ask for gradients; the state is what a random prefix of seven tokens leaves."""
    rng = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=rng, dtype=torch.float64)

    def stream(tokens: int) -> list[Tensor]:
        return [
            -strength * torch.rand(rows, heads, tokens, generator=rng, dtype=torch.float64),
            normal(rows, heads, tokens, width),
            normal(rows, groups, tokens, keys),
            normal(rows, groups, tokens, keys),
        ]

    state = naive.ssd(*stream(7), None)[1] if carried else None
    made = [*stream(length), state]
    return Inputs(*(None if t is None else t.to(dtype).requires_grad_() for t in made))


def outcome(inputs: Inputs, cuts: list[int], chunk: int | None) -> list[Tensor]:
    """Reads, final state and the gradient of everything; in pieces; by the loop where `chunk` is None."""
    length, state, reads = inputs.values.shape[2], inputs.state, []
    for begin, end in zip([0, *cuts], [*cuts, length], strict=True):
        piece = inputs.cut(begin, end)
        form = naive.ssd(*piece, state) if chunk is None else chunked.ssd(*piece, state, chunk=chunk)
        read, state = form
        reads.append(read)
    whole = torch.cat(reads, dim=2)
    rng = torch.Generator().manual_seed(99)
    weights = [torch.randn(t.shape, generator=rng, dtype=torch.float64).to(t.dtype) for t in (whole, state)]
    loss = (whole * weights[0]).sum() + (state * weights[1]).sum()
    return [whole.detach(), state.detach(), *torch.autograd.grad(loss, inputs.leaves())]


@torch.no_grad()
def assert_same(found: list[Tensor], expected: list[Tensor], tolerance: float = TOLERANCE) -> None:
    for a, b in zip(found, expected, strict=True):
        scale = max(1.0, float(b.abs().max()))
        assert float((a - b).abs().max()) / scale < tolerance


def test_two_tokens_by_hand() -> None:
    """Decay by one half, write 2 . 3, read by 5; then write 7 . 11, read by 13: a token sees itself."""
    half = torch.full((1, 1, 2), 0.5).log()
    values = torch.tensor([2.0, 7.0]).view(1, 1, 2, 1)
    keys = torch.tensor([3.0, 11.0]).view(1, 1, 2, 1)
    queries = torch.tensor([5.0, 13.0]).view(1, 1, 2, 1)
    start = torch.full((1, 1, 1, 1), 8.0)
    first = 8 / 2 + 2 * 3
    second = first / 2 + 7 * 11
    for reads, final in (
        naive.ssd(half, values, keys, queries, start),
        chunked.ssd(half, values, keys, queries, start),
    ):
        assert reads.flatten().tolist() == pytest.approx([first * 5, second * 13])
        assert final.item() == pytest.approx(second)


@settings(max_examples=60)
@given(data=st.data())
def test_chunks_and_cuts_equal_the_loop(data: st.DataObject) -> None:
    """Reads, final state, gradients of every input and of the initial state; any sizes, any cuts."""
    groups, share = data.draw(st.integers(1, 3), "groups"), data.draw(st.integers(1, 3), "heads per group")
    length = data.draw(st.integers(1, 23), "length")
    cuts = sorted(c for c in data.draw(st.sets(st.integers(1, 22), max_size=4), "cuts") if c < length)
    chunk = data.draw(st.sampled_from([1, 2, 3, 4, 5, 7, length, 64]), "chunk")
    inputs = draw(
        data.draw(st.integers(1, 3), "rows"),
        groups * share,
        groups,
        length,
        width=data.draw(st.integers(1, 5), "width"),
        keys=data.draw(st.integers(1, 5), "keys"),
        seed=data.draw(st.integers(0, 1000), "seed"),
        carried=data.draw(st.booleans(), "carried"),
        strength=data.draw(st.sampled_from([0.0, 0.1, 1.0, 30.0]), "strength"),
    )
    assert_same(outcome(inputs, cuts, chunk), outcome(inputs, [], None))


@pytest.mark.parametrize("chunk", [1, 3, 4, 5, 13])
def test_token_by_token_equals_chunks(chunk: int) -> None:
    inputs = draw(2, 4, 2, 13)
    assert_same(outcome(inputs, list(range(1, 13)), chunk), outcome(inputs, [], chunk))


def test_segments_hand_the_state_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments of 8 tokens, chunks of 4: three segments and a rest."""
    monkeypatch.setattr(chunked, "SEGMENT", 8)
    inputs = draw(2, 2, 1, 27)
    assert_same(outcome(inputs, [], 4), outcome(inputs, [], None))


@pytest.mark.parametrize("strength", [0.01, 1.0, 100.0])
def test_float32_agrees_within_float32(strength: float) -> None:
    inputs = draw(2, 4, 2, 200, width=8, keys=8, strength=strength, dtype=torch.float32)
    exact = Inputs(*(None if t is None else t.detach().double().requires_grad_() for t in inputs))
    assert_same(outcome(inputs, [], 64), outcome(exact, [], None), 2e-5)
    assert_same(outcome(inputs, [1, 67, 130], 64), outcome(exact, [], None), 2e-5)


def test_weak_decays_after_strong_ones_keep_their_digits() -> None:
    """What is forgotten at once, then kept for long: the gradient of the weak decays is right in float32."""
    inputs = draw(1, 2, 1, 64, width=8, keys=8, dtype=torch.float32)
    with torch.no_grad():
        inputs.log_decay[:, :, :32] = -3000
        inputs.log_decay[:, :, 32:] = -1e-3
    exact = Inputs(*(None if t is None else t.detach().double().requires_grad_() for t in inputs))
    assert_same(outcome(inputs, [], 64), outcome(exact, [], None), 2e-6)


@pytest.mark.parametrize("carried", [False, True])
@pytest.mark.parametrize(("length", "chunk"), [(1, 4), (2, 4), (5, 2), (7, 3)])
def test_the_analytic_backward_pass_is_right(carried: bool, length: int, chunk: int) -> None:
    """gradcheck in float64, to every input, through reads and the final state."""
    inputs = draw(1, 4, 2, length, width=2, keys=3, carried=carried)

    def core(*given: Tensor) -> tuple[Tensor, Tensor]:
        return chunked.ssd(*given[:4], given[4] if carried else None, chunk=chunk)

    assert torch.autograd.gradcheck(core, inputs.leaves())


@pytest.mark.parametrize("use", ["reads", "state"])
@pytest.mark.parametrize("carried", [False, True])
def test_only_what_is_used_is_needed(use: str, carried: bool) -> None:
    """A loss of the reads alone, or of the final state alone."""
    inputs = draw(2, 2, 1, 11, carried=carried)
    which = int(use == "state")
    # queries make no difference to the state
    leaves = [t for t in inputs.leaves() if use == "reads" or t is not inputs.queries]
    expected = torch.autograd.grad(naive.ssd(*inputs)[which].square().sum(), leaves)
    found = torch.autograd.grad(chunked.ssd(*inputs, chunk=4)[which].square().sum(), leaves)
    assert_same(list(found), list(expected))


@pytest.mark.parametrize("length", [3, 4, 11])
@pytest.mark.parametrize("carried", [False, True])
def test_a_state_that_nobody_wants_is_not_made(length: int, carried: bool) -> None:
    """Without `carry` no state comes back; reads and gradients are the same."""
    inputs = draw(2, 2, 1, length, carried=carried)
    reads, nothing = chunked.ssd(*inputs, chunk=4, carry=False)
    assert nothing is None
    expected, _ = naive.ssd(*inputs)
    along = torch.randn_like(expected)
    found = torch.autograd.grad((reads * along).sum(), inputs.leaves())
    assert_same([reads, *found], [expected, *torch.autograd.grad((expected * along).sum(), inputs.leaves())])


def test_a_second_derivative_fails_instead_of_being_wrong() -> None:
    inputs = draw(1, 1, 1, 4)
    (first,) = torch.autograd.grad(
        chunked.ssd(*inputs, chunk=2)[0].square().sum(), inputs.values, create_graph=True
    )
    with pytest.raises(RuntimeError, match="differentiate"):
        first.square().sum().backward()


@torch.no_grad()
@pytest.mark.parametrize("changed", [0, 3, 4, 7, 12])
def test_no_token_depends_on_later_ones(changed: int) -> None:
    """Earlier reads do not move by one bit, later ones do; nor does another row."""
    inputs = draw(2, 2, 1, 13)
    other = Inputs(*(t.clone() for t in inputs))
    for tensor in other[:4]:
        tensor[0, :, changed] -= 0.5
    before, after = chunked.ssd(*inputs, chunk=4)[0], chunked.ssd(*other, chunk=4)[0]
    assert torch.equal(before[0, :, :changed], after[0, :, :changed])
    assert torch.equal(before[1], after[1])
    assert float((before[0, :, changed:] - after[0, :, changed:]).abs().amin((0, 2)).min()) > 0


@torch.no_grad()
def test_without_decay_it_is_linear_attention_and_with_all_of_it_only_the_token_itself() -> None:
    inputs = draw(2, 2, 2, 21, carried=False)
    scores = inputs.queries @ inputs.keys.mT
    nothing = torch.zeros_like(inputs.log_decay)
    reads, final = chunked.ssd(nothing, *inputs[1:4], None, chunk=4)
    assert_same([reads, final], [scores.tril() @ inputs.values, inputs.values.mT @ inputs.keys])
    for everything in (-1e4, -1e30, -float("inf")):
        reads, final = chunked.ssd(nothing + everything, *inputs[1:4], None, chunk=4)
        alone = torch.diagonal(scores, dim1=-2, dim2=-1)[..., None] * inputs.values
        assert_same([reads, final], [alone, inputs.values[:, :, -1, :, None] * inputs.keys[:, :, -1, None]])


@pytest.mark.parametrize("log_decay", [0.0, -1e-30, -1.0, -1e4, -1e30])
def test_all_that_comes_out_is_finite(log_decay: float) -> None:
    """At both ends of the decays, in float32, gradients too."""
    inputs = draw(1, 2, 1, 130, dtype=torch.float32)
    with torch.no_grad():
        inputs.log_decay.fill_(log_decay)
    assert all(bool(torch.isfinite(t).all()) for t in outcome(inputs, [], 64))


def test_autocast_does_not_reach_the_sums() -> None:
    """Under autocast, forwards and backwards, products and states are float32: the numbers do not change."""
    inputs = draw(2, 2, 1, 70, width=8, keys=8, dtype=torch.float32)
    expected = outcome(inputs, [], 32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = outcome(inputs, [], 32)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    low = Inputs(*(None if t is None else t.detach().bfloat16() for t in inputs))
    assert all(t.dtype == torch.float32 for t in chunked.ssd(*low))
    assert all(t.dtype == torch.float32 for t in chunked.ssd(*Inputs(*low.cut(0, 1), low.state)))


def test_the_backward_pass_keeps_the_inputs_and_the_states_and_nothing_else() -> None:
    """Numbers held per token do not grow with the chunk: no scores. Operations do not grow with the tokens."""

    def kept(chunk: int) -> int:
        sizes = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: sizes.append(t.numel()) or t, lambda t: t):
            chunked.ssd(*draw(1, 2, 1, 256, width=16, keys=4, carried=False), chunk=chunk)
        return sum(sizes)

    inputs = 256 * (2 + 2 * 16 + 4 + 4)
    for chunk in (16, 64, 128):
        assert kept(chunk) == inputs + 256 // chunk * 2 * 16 * 4


def test_work_within_a_chunk_is_done_for_all_chunks_at_once() -> None:
    """A further chunk of a segment costs the two operations that pass the state on, forwards."""

    def launched(length: int) -> int:
        inputs = draw(1, 1, 1, length)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            chunked.ssd(*inputs, chunk=16)
        return sum(
            e.count for e in profile.key_averages() if e.key in ("aten::bmm", "aten::baddbmm_", "aten::exp")
        )

    assert launched(32) == launched(512)


def test_the_gradient_of_a_decay_that_forgets_everything_is_nothing() -> None:
    """What does not survive has no gradient: exact zeros, which a factor of thousands leaves zeros."""
    inputs = draw(1, 2, 1, 64, width=8, keys=8, dtype=torch.float32)
    with torch.no_grad():
        inputs.log_decay[:, :, 1::3] = -3000
    for form in (naive, chunked):
        (gradient,) = torch.autograd.grad(form.ssd(*inputs)[0].square().sum(), inputs.log_decay)
        assert float(gradient[:, :, 1::3].abs().max()) == 0
        assert float(gradient[:, :, 2::3].abs().min()) > 0


@torch.no_grad()
@pytest.mark.parametrize("length", [1, 6])
def test_a_state_may_lie_in_memory_in_any_order(length: int) -> None:
    """As rows that were picked, or heads that come first, leave it."""
    inputs = draw(3, 4, 2, length)
    heads_first = inputs.state.permute(3, 1, 2, 0).contiguous().permute(3, 1, 2, 0)
    assert not heads_first.is_contiguous()
    found = chunked.ssd(*inputs[:4], heads_first, chunk=4)
    assert_same(list(found), list(naive.ssd(*inputs)))
