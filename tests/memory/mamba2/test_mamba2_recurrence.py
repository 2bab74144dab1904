"""Mamba-2 over time: the loop, chunks, pieces and single tokens agree; rows and documents do not mix."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mamba2_cases import TOLERANCE, assert_same, build, draw, naively, outcome, prefix_state, read

from wyrmling.memory.ssd import chunked as ssd

OPTIONS = [
    {},
    {"ngroups": 2},
    {"ngroups": 2, "norm_full_width": True},
    {"ngroups": 4, "norm_before_gate": True},
    {"norm_before_gate": True, "conv_bias": False},
    {"d_conv": 1},
    {"d_conv": 2, "ngroups": 2, "norm_full_width": True, "norm_before_gate": True},
]


@settings(max_examples=40)
@given(data=st.data())
def test_every_cut_equals_the_loop(data: st.DataObject) -> None:
    """Reads, every part of the state, every gradient; any sizes, any pieces, any chunk, from any state."""
    groups, share = data.draw(st.integers(1, 3), "groups"), data.draw(st.integers(1, 2), "heads per group")
    headdim = data.draw(st.integers(1, 4), "headdim")
    length = data.draw(st.integers(1, 19), "length")
    cuts = sorted(c for c in data.draw(st.sets(st.integers(1, 18), max_size=4), "cuts") if c < length)
    memory = build(
        width=groups * share * headdim,
        expand=data.draw(st.sampled_from([1, 2]), "expand"),
        headdim=headdim,
        ngroups=groups,
        d_state=data.draw(st.integers(1, 5), "d_state"),
        d_conv=data.draw(st.integers(1, 5), "d_conv"),
        conv_bias=data.draw(st.booleans(), "conv_bias"),
        norm_before_gate=data.draw(st.booleans(), "norm_before_gate"),
        norm_full_width=data.draw(st.booleans(), "norm_full_width"),
        chunk_size=data.draw(st.sampled_from([1, 2, 3, 4, 5, 7, 64]), "chunk"),
        seed=data.draw(st.integers(0, 1000), "seed"),
    )
    rows = data.draw(st.integers(1, 3), "rows")
    prefix = data.draw(st.integers(0, 9), "prefix")
    stream = draw(rows, length, memory.width)
    state = prefix_state(memory, rows, length=prefix) if prefix else None
    assert_same(outcome(memory, stream, state, cuts), naively(memory, stream, state))


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("chunk", [1, 3, 4, 5, 13])
def test_token_by_token_equals_the_whole_pass(options: dict[str, object], chunk: int) -> None:
    memory = build(chunk_size=chunk, **options)
    stream, state = draw(2, 13), prefix_state(memory, 2)
    whole = naively(memory, stream, state)
    assert_same(outcome(memory, stream, state), whole)
    assert_same(outcome(memory, stream, state, list(range(1, 13))), whole)


def test_pieces_shorter_than_the_window() -> None:
    """Two and one tokens where the convolution looks three back: the window keeps what an older piece left in it."""
    memory = build(d_conv=4)
    stream, state = draw(2, 8), prefix_state(memory, 2)
    assert_same(outcome(memory, stream, state, [2, 3, 5, 7]), naively(memory, stream, state))
    assert_same(outcome(memory, stream, None, [1, 2, 4]), naively(memory, stream))


def test_float32_agrees_within_float32() -> None:
    exact = build(width=16, headdim=8, ngroups=2, d_state=8)
    memory = build(width=16, headdim=8, ngroups=2, d_state=8).float()
    stream = draw(2, 150, 16)
    expected = naively(exact, stream)
    for cuts in ([], [1, 65, 67, 130]):
        assert_same(outcome(memory, stream.float(), None, cuts), expected, 2e-4)


def test_gradcheck_of_the_whole_memory() -> None:
    """In float64, to stream, weights and both parts of the state, through the read and both parts of the state."""
    memory = build(width=2, expand=2, headdim=2, d_state=2, d_conv=3, chunk_size=2)
    names = [name for name, _ in memory.named_parameters()]
    state = prefix_state(memory, 1)

    def whole(stream: torch.Tensor, *rest: torch.Tensor) -> tuple[torch.Tensor, ...]:
        arguments = (stream.new_zeros(1, 1, stream.shape[1], 1), stream, dict(zip(state, rest, strict=False)))
        found, final = torch.func.functional_call(
            memory,
            dict(zip(names, rest[len(state) :], strict=True)),
            arguments,
            {"position": torch.zeros(1, dtype=torch.int64)},
        )
        return found, *final.values()

    given = [draw(1, 5, 2), *state.values(), *(p.detach() for p in memory.parameters())]
    assert torch.autograd.gradcheck(whole, [t.clone().requires_grad_() for t in given])


@torch.no_grad()
@pytest.mark.parametrize("changed", [0, 2, 3, 4, 9, 10])
def test_no_token_depends_on_later_ones_nor_on_other_rows(changed: int) -> None:
    """Earlier reads, and other rows, do not move by one bit; the token's own and all later reads do."""
    memory, stream = build(chunk_size=4), draw(2, 11)
    other = stream.clone()
    other[0, changed] -= 0.5
    before, after = read(memory, stream), read(memory, other)
    assert torch.equal(before[0][0, :, :changed], after[0][0, :, :changed])
    assert torch.equal(before[0][1], after[0][1])
    for name in ("ssm", "conv"):
        assert torch.equal(before[1][name][1], after[1][name][1])
    moved = (before[0][0] - after[0][0]).abs().amax(-1)[0]
    assert float(moved[changed:].min()) > 1e-8


@torch.no_grad()
@pytest.mark.parametrize("length", [3, 4, 5, 8])
@pytest.mark.parametrize("executor", ["auto", "naive"])
def test_a_document_does_not_hear_the_one_before_it(length: int, executor: str) -> None:
    """The last token of document A changes, decays are slow: B, which begins with a reset, does not move by one bit.

    A ends before, at and after a border of chunks of 4; the other row, which goes on, does not notice the reset.
    """
    memory = build(chunk_size=4, executor=executor)
    memory.a_log.fill_(-8.0)
    first, second = draw(2, length, seed=1), draw(2, 6, seed=2)
    other = first.clone()
    other[0, -1] += 3
    reset = torch.tensor([True, False])
    results = []
    for document in (first, other):
        _, state = read(memory, document)
        results.append((*read(memory, second, state, reset=reset), read(memory, second, state)))
    (found, state, kept), (found_other, state_other, kept_other) = results
    assert torch.equal(found, found_other)
    assert all(torch.equal(state[name], state_other[name]) for name in state)
    assert (
        float((kept[0][0] - kept_other[0][0]).abs().max()) > 1e-6
    )  # without the reset it would have been heard
    assert torch.equal(found[1], kept[0][1])

    alone, state_alone = read(memory, second[:1])
    assert float((alone[0] - found[0]).abs().max()) < TOLERANCE
    for name, part in state_alone.items():
        assert float((part[0] - state[name][0]).abs().max()) < TOLERANCE


@torch.no_grad()
@pytest.mark.parametrize("length", [1, 5])
def test_a_reset_row_forgets_even_nan(length: int) -> None:
    memory = build()
    for part in ("ssm", "conv"):
        state = prefix_state(memory, 2)
        state[part][1] = float("nan")
        found, after = read(memory, draw(2, length), state, reset=torch.tensor([False, True]))
        assert bool(torch.isfinite(found).all())
        assert all(bool(torch.isfinite(tensor).all()) for tensor in after.values())


@torch.no_grad()
def test_each_part_of_the_state_matters() -> None:
    memory, stream = build(), draw(1, 5)
    state = prefix_state(memory, 1)
    whole, _ = read(memory, stream, state)
    for part in state:
        without = {**state, part: torch.zeros_like(state[part])}
        assert float((read(memory, stream, without)[0] - whole).abs().max()) > 1e-6


def test_a_state_that_nobody_wants_changes_nothing_else() -> None:
    memory, stream = build(chunk_size=4), draw(2, 11).requires_grad_()
    for state in (None, prefix_state(memory, 2)):
        for piece in (stream, stream[:, :1]):
            kept, _ = read(memory, piece, state)
            found, nothing = read(memory, piece, state, carry=False)
            assert nothing is None
            along, leaves = torch.randn_like(kept), [stream, *memory.parameters()]
            expected = torch.autograd.grad((kept * along).sum(), leaves)
            gradients = torch.autograd.grad((found * along).sum(), leaves)
            torch.testing.assert_close([found, *gradients], [kept, *expected], rtol=1e-12, atol=1e-12)


@torch.no_grad()
def test_one_token_takes_the_direct_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """No chunks, and the same numbers."""
    memory = build()
    stream, state = draw(3, 1), prefix_state(memory, 3)
    expected = read(build(executor="naive"), stream, state)
    monkeypatch.setattr(ssd, "_segment", None)
    torch.testing.assert_close(read(memory, stream, state), expected, rtol=1e-12, atol=1e-12)
