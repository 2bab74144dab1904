"""Linear attention: the recurrence's own numbers, the analytic backward pass, the choice of a form."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from wyrmling.memory import LinearAttention, choose_form
from wyrmling.memory.choose import chunked_cost, dense_cost
from wyrmling.memory.linear import chunked, dense, naive


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(
        *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed + sum(shape))
    )


def test_the_outer_product_contract() -> None:
    """Two tokens by hand: the first reads nothing, the second reads the first; the state is the sum of products."""
    q = torch.tensor([[2.0, 3.0], [5.0, 7.0]]).view(1, 1, 2, 2)
    v = torch.tensor([[11.0, 13.0], [17.0, 19.0]]).view(1, 2, 2)
    for form in (naive, dense, chunked):
        read, state = form.linear_attention(q, v, torch.zeros(1, 1, 2, 2), None)
        assert read.flatten().tolist() == [0, 0, 341, 403]
        assert state.flatten().tolist() == [107, 121, 152, 172]


def test_decay_comes_after_the_write() -> None:
    """With d = 1/2: token 2 reads half of token 1; the state holds a quarter of token 1 and half of token 2."""
    q, v = torch.ones(1, 1, 2, 1), torch.tensor([4.0, 8.0]).view(1, 2, 1)
    half = torch.tensor([0.5], dtype=torch.float64).log()
    for form in (naive, dense, chunked):
        read, state = form.linear_attention(q, v, torch.zeros(1, 1, 1, 1), half)
        assert read.flatten().tolist() == [0, 2]
        assert state.item() == 4 / 4 + 8 / 2


@pytest.mark.parametrize("log_decay", [None, torch.tensor([0.9, 0.4], dtype=torch.float64).log()])
@pytest.mark.parametrize("carried", [False, True])
@pytest.mark.parametrize("length", [1, 2, 7])
def test_the_analytic_backward_pass_is_right(log_decay: Tensor | None, carried: bool, length: int) -> None:
    """gradcheck in float64, to queries, values and the initial state, through reads and the final state."""
    q = draw(2, 2, length, 3).requires_grad_()
    v = draw(2, length, 4).requires_grad_()
    state = draw(2, 2, 3, 4).requires_grad_() if carried else None
    inputs = (q, v, state) if carried else (q, v)

    def block(*given: Tensor) -> tuple[Tensor, Tensor]:
        return dense.linear_attention(given[0], given[1], given[2] if carried else None, log_decay)

    def chunks(*given: Tensor) -> tuple[Tensor, Tensor]:
        return chunked.linear_attention(given[0], given[1], given[2] if carried else None, log_decay, chunk=2)

    assert torch.autograd.gradcheck(block, inputs)
    assert torch.autograd.gradcheck(chunks, inputs)


def test_only_what_is_needed_gets_a_gradient() -> None:
    """A loss of the reads alone, or of the final state alone, or without a state to read."""
    q, v = draw(1, 2, 5, 3).requires_grad_(), draw(1, 5, 4).requires_grad_()
    state = draw(1, 2, 3, 4).requires_grad_()
    for use in ("reads", "state"):
        expected = torch.autograd.grad(
            naive.linear_attention(q, v, state, None)[use == "state"].square().sum(), (q, v, state)
        )
        found = torch.autograd.grad(
            dense.linear_attention(q, v, state, None)[use == "state"].square().sum(), (q, v, state)
        )
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-11)
    _, nothing = dense.linear_attention(q, v, None, None, carry=False)
    assert nothing is None


def test_the_upper_half_is_never_built(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted operations of the scores: rows of 128 against what lies before their end, not T against T."""
    seen = []
    original = torch.bmm

    def counting(a: Tensor, b: Tensor) -> Tensor:
        seen.append((a.shape[1], b.shape[2]))
        return original(a, b)

    monkeypatch.setattr(torch, "bmm", counting)
    dense.linear_attention(draw(1, 1, 512, 16), draw(1, 512, 4), None, None, carry=False)
    scores = [(rows, columns) for rows, columns in seen if columns != 4]
    assert scores == [(128, 128), (128, 256), (128, 384), (128, 512)]


def test_work_per_chunk_does_not_grow_with_the_length() -> None:
    """The chunked form launches the same operations for every chunk."""

    def launched(length: int) -> int:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            chunked.linear_attention(draw(1, 1, length, 4), draw(1, length, 4), None, None, chunk=16)
        return sum(event.count for event in profile.key_averages())

    few, more, many = launched(64), launched(128), launched(192)
    assert more - few == many - more


@pytest.mark.parametrize(
    ("length", "keys", "values", "form"),
    [
        (64, 1024, 128, "dense"),
        (128, 1024, 128, "dense"),
        (512, 1024, 128, "dense"),
        (8192, 1024, 128, "chunked"),
        (1024, 8192, 256, "dense"),
        (4096, 8192, 256, "chunked"),
    ],
)
def test_short_sequences_are_dense_and_long_ones_chunked(
    length: int, keys: int, values: int, form: str
) -> None:
    assert choose_form(length, keys, values).form == form


@given(keys=st.integers(64, 8192), values=st.integers(16, 512))
def test_the_switch_moves_with_the_sizes_and_only_once(keys: int, values: int) -> None:
    """Dense up to some length, chunked beyond, and at the switch the counts cross."""
    forms = [choose_form(length, keys, values) for length in range(64, 8192, 64)]
    names = [form.form for form in forms]
    assert names == sorted(names, reverse=True)  # "dense" sorts after "chunked"
    for length, form in zip(range(64, 8192, 64), forms, strict=True):
        if form.form == "chunked":
            assert chunked_cost(form.tile, keys, values) < dense_cost(length, keys, values)


def test_wider_values_move_the_switch_to_longer_sequences() -> None:
    def switch(values: int) -> int:
        return next(t for t in range(128, 1 << 20, 128) if choose_form(t, 4096, values).form == "chunked")

    assert switch(64) < switch(128) < switch(256) < switch(512)


def test_a_forced_form_is_taken_and_says_why() -> None:
    assert choose_form(64, 64, 64, forced="chunked").form == "chunked"
    assert choose_form(1 << 20, 64, 64, forced="dense").form == "dense"
    assert "executor" in choose_form(64, 64, 64, forced="dense").reason


def test_rope_needs_pairs() -> None:
    with pytest.raises(ValueError, match="even"):
        LinearAttention(2, 7, 8)


def test_casting_a_model_keeps_its_frequencies_exact() -> None:
    memory = LinearAttention(2, 8, 8)
    before = memory.frequencies.clone()
    memory.to(torch.bfloat16).to(torch.float32)
    assert memory.frequencies.dtype == torch.float64
    assert torch.equal(memory.frequencies, before)


def test_loaded_frequencies_replace_the_cached_phases() -> None:
    """Phases follow the saved frequencies, also when they are loaded after a first use."""
    memory = LinearAttention(1, 4, 3).double()
    x, h, start = draw(1, 1, 6, 4).abs(), draw(1, 6, 3), torch.zeros(1, dtype=torch.int64)
    memory(x, h, position=start)
    memory.load_state_dict({"frequencies": memory.frequencies * 2})
    fresh = LinearAttention(1, 4, 3).double()
    fresh.load_state_dict({"frequencies": fresh.frequencies * 2})
    assert torch.equal(memory(x, h, position=start)[0], fresh(x, h, position=start)[0])


def test_low_precision_keys_keep_a_float32_state() -> None:
    """bfloat16 products, float32 sums: near the float32 result, and the state is float32."""
    memory = LinearAttention(2, 16, 8)
    x, h = torch.rand(2, 2, 40, 16), torch.randn(2, 40, 8)
    start = torch.zeros(2, dtype=torch.int64)
    exact, exact_state = memory(x, h, position=start)
    low, low_state = memory(x.bfloat16(), h, position=start)
    assert low.dtype == low_state["rho"].dtype == torch.float32
    assert float((low - exact).norm() / exact.norm()) < 2e-2
    assert float((low_state["rho"] - exact_state["rho"]).norm() / exact_state["rho"].norm()) < 2e-2


def test_half_precision_is_rotated_and_summed_in_float32() -> None:
    """Rounding happens once per value: rotating in bfloat16 itself, or summing values in it, would lose more."""
    from wyrmling.numerics.positions import PhaseTable, rotary_frequencies, rotate

    x = torch.rand(1, 1, 64, 32).bfloat16()
    rotor = PhaseTable(rotary_frequencies(32, 2.0**16))(torch.tensor([100]), 64, torch.float32, x.device)
    assert torch.equal(rotate(x, rotor), rotate(x.float(), rotor).bfloat16())

    q, v, along = torch.rand(1, 1, 300, 8).bfloat16(), torch.randn(1, 300, 4), torch.randn(1, 300, 4)

    def gradient(queries: Tensor) -> Tensor:
        values = v.clone().requires_grad_()
        read, _ = dense.linear_attention(queries, values, None, None, carry=False)
        (read * along).sum().backward()
        return values.grad

    exact = gradient(q.float())
    assert float((gradient(q) - exact).norm() / exact.norm()) < 6e-3


@pytest.mark.parametrize("log_decay", [None, torch.tensor([0.9, 0.6], dtype=torch.float64).log()])
def test_gradients_with_bfloat16_products_are_near_the_exact_ones(log_decay: Tensor | None) -> None:
    """To queries, values and the initial state, through reads and final state: within what rounding explains."""

    def gradients(dtype: torch.dtype) -> list[Tensor]:
        wide = torch.float32 if dtype == torch.bfloat16 else torch.float64
        q = draw(2, 2, 150, 8, seed=1).abs().to(torch.float32).requires_grad_()
        v = draw(2, 150, 4, seed=2).to(torch.float32).requires_grad_()
        state = draw(2, 2, 8, 4, seed=3).to(torch.float32).requires_grad_()
        read, final = dense.linear_attention(q.to(dtype), v.to(wide), state.to(wide), log_decay)
        loss = (read * draw(*read.shape, seed=4).to(wide)).sum() / 20
        (loss + (final * draw(*final.shape, seed=5).to(wide)).sum()).backward()
        return [q.grad, v.grad, state.grad]

    for low, exact in zip(gradients(torch.bfloat16), gradients(torch.float64), strict=True):
        assert float((low - exact).norm() / exact.norm()) < 2e-2


def test_a_backward_pass_inside_autocast_is_as_exact() -> None:
    """Where only `backward` is called under autocast, float32 products stay float32."""
    found = []
    for low in (False, True):
        generator = torch.Generator().manual_seed(5)
        queries = torch.rand(2, 2, 9, 8, generator=generator, requires_grad=True)
        values = torch.randn(2, 9, 6, generator=generator, requires_grad=True)
        reads, _ = dense.linear_attention(queries, values, None, None)
        with torch.autocast("cpu", torch.bfloat16, enabled=low):
            reads.sum().backward()
        found.append((queries.grad, values.grad))
    for plain, inside in zip(*found, strict=True):
        assert torch.equal(plain, inside)


def test_a_second_derivative_fails_instead_of_being_wrong() -> None:
    q = draw(1, 1, 4, 2).requires_grad_()
    read, _ = dense.linear_attention(q, draw(1, 4, 3), None, None)
    (first,) = torch.autograd.grad(read.square().sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiate"):
        first.square().sum().backward()


def test_copies_and_pickles_carry_no_tables() -> None:
    import copy
    import pickle

    memory = LinearAttention(2, 64, 8)
    small = len(pickle.dumps(memory))
    memory(torch.rand(1, 2, 600, 64), torch.rand(1, 600, 8), position=torch.zeros(1, dtype=torch.int64))
    assert len(pickle.dumps(memory)) == small
    assert copy.deepcopy(memory)._phases is None


def test_replaced_frequencies_never_meet_an_old_table() -> None:
    """Also when the new tensor takes the place of the old one in memory."""
    x, h, start = draw(1, 1, 6, 4).abs(), draw(1, 6, 3), torch.tensor([5])
    memory = LinearAttention(1, 4, 3).double()
    for factor in range(1, 12):
        frequencies = LinearAttention(1, 4, 3).frequencies * factor
        memory.load_state_dict({"frequencies": frequencies.clone()}, assign=True)
        fresh = LinearAttention(1, 4, 3).double()
        fresh.load_state_dict({"frequencies": frequencies})
        assert torch.equal(memory(x, h, position=start)[0], fresh(x, h, position=start)[0])


def test_a_memory_made_under_inference_works() -> None:
    with torch.inference_mode():
        memory = LinearAttention(1, 4, 3)
    assert memory(torch.rand(1, 1, 3, 4), torch.rand(1, 3, 3), position=torch.tensor([0]))[0].shape == (
        1,
        1,
        3,
        3,
    )


def test_the_reference_executor_is_the_automatic_one() -> None:
    assert choose_form(10**5, 64, 64, forced="reference").form == "chunked"
    assert choose_form(16, 64, 64, forced="reference").form == "dense"
