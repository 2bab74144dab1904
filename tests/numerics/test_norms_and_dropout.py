"""The four norms by hand, and dropout masks as functions of their key."""

from __future__ import annotations

import hashlib
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from wyrmling.numerics.dropout import Dropout
from wyrmling.numerics.norms import Norm
from wyrmling.numerics.roles import role_of


@pytest.mark.parametrize(
    ("kind", "given_values", "expected"),
    [
        ("layer_norm", [1.0, 3.0], [-1.0, 1.0]),
        ("rms_norm", [3.0, 3.0], [1.0, 1.0]),
        ("dynamic_tanh", [0.0, 2.0], [0.0, math.tanh(1.0)]),
        ("derf", [0.0, 1.0], [0.0, math.erf(0.88622695)]),
    ],
)
def test_norms_by_hand(kind: str, given_values: list[float], expected: list[float]) -> None:
    assert Norm(2, kind)(torch.tensor(given_values)).tolist() == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("kind", ["layer_norm", "rms_norm", "dynamic_tanh", "derf"])
@pytest.mark.parametrize("affine", [False, True])
def test_norms_have_the_parameters_that_they_use(kind: str, affine: bool) -> None:
    """Every parameter gets a gradient and declares a role; without gain and bias there is nothing to train."""
    norm = Norm(6, kind, affine=affine).double()
    x = torch.randn(3, 6, dtype=torch.float64, requires_grad=True)
    norm(x).square().sum().backward()
    names = {name for name, _ in norm.named_parameters()}
    expected = {"gain", "bias"} if affine else set()
    expected |= {"dynamic_tanh": {"alpha"}, "derf": {"alpha", "shift"}}.get(kind, set())
    assert names == expected
    for name, parameter in norm.named_parameters():
        assert parameter.grad is not None
        assert role_of(parameter, name) in ("gain", "bias")
    assert torch.autograd.gradcheck(norm, (x,))


def test_half_precision_is_normalised_in_float32() -> None:
    x = torch.randn(4, 64).bfloat16()
    assert Norm(64)(x).dtype == torch.float32


def mask(key: Dropout, position: list[int], length: int, layer: int = 0) -> torch.Tensor:
    return key.mask(layer, torch.tensor(position), length, 2, 6)


@given(start=st.integers(0, 200), length=st.integers(1, 150), cut=st.integers(0, 150))
def test_a_mask_is_a_function_of_the_position(start: int, length: int, cut: int) -> None:
    key = Dropout(0.25, 3, 9, (5,))
    whole = mask(key, [start], length)
    cut = min(cut, length)
    parts = [mask(key, [start], cut)] if cut else []
    parts += [mask(key, [start + cut], length - cut)] if cut < length else []
    assert torch.equal(torch.cat(parts, dim=2), whole)


def test_a_mask_depends_on_every_part_of_its_key() -> None:
    base = mask(Dropout(0.5, 1, 1, (0,)), [0], 64)
    for other in (
        mask(Dropout(0.5, 2, 1, (0,)), [0], 64),
        mask(Dropout(0.5, 1, 2, (0,)), [0], 64),
        mask(Dropout(0.5, 1, 1, (1,)), [0], 64),
        mask(Dropout(0.5, 1, 1, (0,)), [0], 64, layer=1),
        mask(Dropout(0.5, 1, 1, (0,)), [64], 64),
    ):
        assert 0.4 < float((base == other).float().mean()) < 0.6


def test_a_row_keeps_its_mask_in_any_batch() -> None:
    """Another micro-batch, another process: the global row decides."""
    together = mask(Dropout(0.3, 1, 1, (4, 7)), [0, 10], 20)
    assert torch.equal(together[:, 1:], mask(Dropout(0.3, 1, 1, (7,)), [10], 20))


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.5, 0.9])
def test_the_rate_is_kept_and_the_expectation_exact(rate: float) -> None:
    key = Dropout(rate, 7, 3, (0, 1))
    kept = key.mask(0, torch.tensor([0, 0]), 256, 4, 64).double()
    deviation = math.sqrt(rate * (1 - rate) / kept.numel())
    assert abs(float(kept.mean()) - (1 - rate)) <= 4 * deviation + 1e-9
    assert key.scale * (1 - key.threshold / 65536) == pytest.approx(1.0, abs=1e-12)


def test_masks_are_not_aligned_between_neighbours() -> None:
    """No correlation along time, heads or neurons beyond chance."""
    kept = Dropout(0.5, 11, 2, (0,)).mask(0, torch.tensor([0]), 512, 4, 64).double() - 0.5
    for axis in (0, 2, 3):
        shifted = kept.roll(1, axis)
        correlation = float((kept * shifted).mean()) * 4
        assert abs(correlation) < 4 / math.sqrt(kept.numel())


def test_masks_of_several_threads_do_not_mix() -> None:
    from concurrent.futures import ThreadPoolExecutor

    keys = [Dropout(0.5, seed, 0, (0,)) for seed in range(24)]

    def draw(key: Dropout) -> torch.Tensor:
        return key.mask(0, torch.tensor([0]), 256, 4, 64)

    alone = [draw(key) for key in keys]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(draw, keys))
    assert all(torch.equal(a, b) for a, b in zip(alone, together, strict=True))


def test_a_rate_next_to_one_still_keeps_something() -> None:
    key = Dropout(0.999999, 0, 0, (0,))
    assert key.scale == 65536.0
    assert key.threshold == 65535


def test_masks_are_a_format() -> None:
    """A run that goes on with another version draws the masks it would have drawn."""
    kept = Dropout(0.25, 3, 9, (5, 8)).mask(1, torch.tensor([0, 100]), 70, 2, 6)
    assert hashlib.sha256(kept.numpy().tobytes()).hexdigest()[:16] == "1a0e816dd52c2f8f"


@given(
    start=st.integers(0, 200),
    length=st.integers(1, 150),
    heads=st.integers(1, 3),
    pairs=st.integers(1, 40),
    rate=st.sampled_from([0.0, 0.1, 0.5, 0.999999]),
)
def test_halves_are_the_same_mask_in_another_order(
    start: int, length: int, heads: int, pairs: int, rate: float
) -> None:
    key, position = Dropout(rate, 3, 9, (5, 2)), torch.tensor([start, 64])
    kept = key.mask(1, position, length, heads, 2 * pairs)
    halves = key.mask(1, position, length, heads, 2 * pairs, halves=True)
    assert torch.equal(halves, torch.cat((kept[..., 0::2], kept[..., 1::2]), dim=-1))


def test_an_odd_number_of_neurons_has_no_halves() -> None:
    with pytest.raises(ValueError, match="7 neurons"):
        Dropout(0.5, 0, 0, (0,)).mask(0, torch.tensor([0]), 3, 2, 7, halves=True)


@pytest.mark.parametrize("halves", [False, True])
def test_a_second_thread_draws_the_same_mask(halves: bool) -> None:
    """Many pieces, with borders inside a tile: wide rows of an odd number of values a word."""
    key, position, threads = Dropout(0.3, 1, 1, (4, 7, 9)), torch.tensor([0, 10, 63]), torch.get_num_threads()

    def draw(count: int) -> torch.Tensor:
        torch.set_num_threads(count)
        try:
            return key.mask(2, position, 70, 3, 4098, halves=halves)
        finally:
            torch.set_num_threads(threads)

    alone = draw(1)
    assert all(torch.equal(draw(2), alone) for _ in range(3))
