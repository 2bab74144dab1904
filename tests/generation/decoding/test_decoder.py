"""The decoder is the model, read one token at a time, whatever the model, the rows and the path taken."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_dragons import (
    KINDS,
    POSITIONS,
    VOCABULARY,
    assert_same_state,
    random_tokens,
    read_by_model,
    small_dragon,
    state_after,
)
from torch import Tensor

from wyrmling.generation.decoding import Decoder, can_decode, products
from wyrmling.model import State


@contextmanager
def paths(large: bool, dense_sums: bool) -> Iterator[None]:
    """Take the ways of large tables, or of many rows, however small the model is."""
    before = products.LARGE, products.SUMMED_SHARE
    products.LARGE = 0 if large else before[0]
    products.SUMMED_SHARE = 0.0 if dense_sums else before[1]
    try:
        yield
    finally:
        products.LARGE, products.SUMMED_SHARE = before


def read_by_decoder(decoder: Decoder, tokens: Tensor) -> Tensor:
    """Tokens [R, T] -> logits [R, T, V]."""
    return torch.stack([decoder.logits(decoder.step(token)) for token in tokens.T], 1)


@given(
    kind=KINDS,
    before=st.lists(st.sampled_from([0, 0, 1, 7]), min_size=1, max_size=4),
    length=st.integers(1, 60),
    large=st.booleans(),
    dense_sums=st.booleans(),
)
@settings(max_examples=40)
def test_the_decoder_is_the_model(
    kind: dict[str, object], before: list[int], length: int, large: bool, dense_sums: bool
) -> None:
    """Scores of every token and the final state; rows at unequal positions, some of which have seen nothing."""
    model = small_dragon(**kind)
    state, tokens = state_after(model, before), random_tokens(len(before), length)
    expected, final = read_by_model(model, tokens, state)
    with paths(large, dense_sums):
        decoder = Decoder(model)
        decoder.load(state)
        torch.testing.assert_close(read_by_decoder(decoder, tokens), expected, rtol=1e-10, atol=1e-10)
        assert_same_state(decoder.state(), final)


@pytest.mark.parametrize("positions", POSITIONS)
def test_a_history_becomes_a_state_on_the_way(positions: str) -> None:
    model, tokens = small_dragon(rotary_embedding=positions), random_tokens(2, 90)
    expected, final = read_by_model(model, tokens, None)
    decoder = Decoder(model)
    decoder.start(2)
    assert not decoder.holds_state
    read_by_decoder(decoder, tokens[:, :4])
    assert not decoder.holds_state
    found = read_by_decoder(decoder, tokens[:, 4:])
    assert decoder.holds_state
    torch.testing.assert_close(found, expected[:, 4:], rtol=1e-10, atol=1e-10)
    assert_same_state(decoder.state(), final)


@given(positions=st.sampled_from(POSITIONS), first=st.integers(1, 45), second=st.integers(1, 45))
@settings(max_examples=15)
def test_a_state_can_be_asked_for_and_continued_anywhere(positions: str, first: int, second: int) -> None:
    """By the decoder that gave it, which is not disturbed, by another one, and by the model."""
    model, tokens = small_dragon(rotary_embedding=positions), random_tokens(3, first + second)
    expected, final = read_by_model(model, tokens, None)
    one, other = Decoder(model), Decoder(model)
    one.start(3)
    read_by_decoder(one, tokens[:, :first])
    middle = one.state()
    kept = middle.map(torch.clone)
    other.load(middle)
    rest = tokens[:, first:]
    for decoder in (one, other):
        scores = read_by_decoder(decoder, rest)
        torch.testing.assert_close(scores, expected[:, first:], rtol=1e-10, atol=1e-10)
        assert_same_state(decoder.state(), final)
    assert_same_state(middle, kept, 0)
    scores, by_model = read_by_model(model, rest, middle)
    torch.testing.assert_close(scores, expected[:, first:], rtol=1e-10, atol=1e-10)
    assert_same_state(by_model, final)


@given(
    positions=st.sampled_from(POSITIONS),
    before=st.lists(st.integers(0, 3), min_size=4, max_size=4),
    first=st.integers(0, 40),
    second=st.integers(1, 40),
    keep=st.lists(st.integers(0, 3), min_size=1, max_size=5),
)
@settings(max_examples=15)
def test_rows_leave_and_are_repeated(
    positions: str, before: list[int], first: int, second: int, keep: list[int]
) -> None:
    model = small_dragon(rotary_embedding=positions)
    state, tokens, rest = (
        state_after(model, before),
        random_tokens(4, first),
        random_tokens(len(keep), second),
    )
    decoder = Decoder(model)
    decoder.load(state)
    if first:
        read_by_decoder(decoder, tokens)
        _, state = read_by_model(model, tokens, state)
    assert_same_state(decoder.state(keep), state.select(keep))
    decoder.select(keep)
    expected, final = read_by_model(model, rest, state.select(keep))
    torch.testing.assert_close(read_by_decoder(decoder, rest), expected, rtol=1e-10, atol=1e-10)
    assert_same_state(decoder.state(), final)


@pytest.mark.parametrize("positions", POSITIONS)
def test_nothing_that_was_given_is_written_to(positions: str) -> None:
    model = small_dragon(rotary_embedding=positions)
    state = state_after(model, [5, 2])
    state_kept = state.map(torch.clone)
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    decoder = Decoder(model)
    decoder.load(state)
    first = read_by_decoder(decoder, random_tokens(2, 70))
    assert_same_state(state, state_kept, 0)
    assert all(torch.equal(tensor, weights[name]) for name, tensor in model.state_dict().items())
    with torch.no_grad():  # and the other way: the model goes on being trained
        for parameter in model.parameters():
            parameter.zero_()
    decoder.load(state)
    assert torch.equal(read_by_decoder(decoder, random_tokens(2, 70)), first)


@pytest.mark.parametrize("positions", ["rope", "pope"])
def test_positions_are_exact_however_far(positions: str) -> None:
    """To what float64 tells apart: 1e-7 of a turn after a billion tokens."""
    model = small_dragon(rotary_embedding=positions)
    near = state_after(model, [3, 4])
    far = State(near.layers, torch.tensor([10**9 + 7, 2**31]))
    tokens = random_tokens(2, 40)
    expected, final = read_by_model(model, tokens, far)
    decoder = Decoder(model)
    decoder.load(far)
    torch.testing.assert_close(read_by_decoder(decoder, tokens), expected, rtol=1e-4, atol=1e-4)
    assert_same_state(decoder.state(), final, 1e-4)


@pytest.mark.parametrize("large", [False, True])
def test_a_model_in_which_nothing_fires_still_answers(large: bool) -> None:
    model, tokens = small_dragon(relu_threshold=1e6), random_tokens(2, 40)
    expected, final = read_by_model(model, tokens, None)
    with paths(large, dense_sums=False):
        decoder = Decoder(model)
        decoder.start(2)
        torch.testing.assert_close(read_by_decoder(decoder, tokens), expected)
        assert_same_state(decoder.state(), final)


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("positions", POSITIONS)
def test_single_precision(positions: str, large: bool) -> None:
    model, tokens = small_dragon(torch.float32, rotary_embedding=positions), random_tokens(3, 60)
    expected, final = read_by_model(model, tokens, None)
    with paths(large, dense_sums=False):
        decoder = Decoder(model)
        decoder.start(3)
        scores = read_by_decoder(decoder, tokens)
        assert scores.dtype == torch.float32
        torch.testing.assert_close(scores, expected, rtol=1e-3, atol=1e-3)
        assert_same_state(decoder.state(), final, 1e-3)


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("rows", [1, 3])
def test_bfloat16_weights_err_as_autocast_does(rows: int, large: bool) -> None:
    model = small_dragon(torch.float32, n_embd=32, latent_total=256, relu_threshold=0.3)
    tokens = random_tokens(rows, 60)
    exact, _ = read_by_model(model, tokens, None)
    with torch.autocast("cpu", torch.bfloat16):
        cast, _ = read_by_model(model, tokens, None)
    with paths(large, dense_sums=False):
        decoder = Decoder(model, weights="bfloat16")
        decoder.start(rows)
        rounded = read_by_decoder(decoder, tokens)
    error, usual = ((scores.float() - exact).norm() / exact.norm() for scores in (rounded, cast))
    assert 0 < error < 2 * usual + 1e-3
    assert decoder.state().layers[0]["rho"].dtype == torch.float32


def test_which_models_can_be_decoded() -> None:
    model = small_dragon()
    assert can_decode(model)
    assert not can_decode(torch.nn.Linear(1, 1))
    assert not can_decode(small_dragon(torch.bfloat16))
    reference = small_dragon(sequence_kernel={"executor": "reference"})
    assert not can_decode(reference)
    with pytest.raises(ValueError, match="linear memory on the CPU"):
        Decoder(reference)
    with pytest.raises(ValueError, match="float32 or bfloat16"):
        Decoder(model, weights="int8")


def test_the_number_of_tokens_must_be_that_of_the_rows() -> None:
    decoder = Decoder(small_dragon())
    decoder.start(2)
    with pytest.raises(ValueError, match="2 rows are decoded"):
        decoder.step(torch.tensor([VOCABULARY - 1]))
