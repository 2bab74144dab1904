"""Decays are powers of the exact number, not of a rounded one: in the state and wherever tokens are weighed."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from wyrmling.numerics.decays import decayed, powers


@given(slope=st.floats(1e-9, 50), steps=st.integers(0, 10**9))
def test_powers_round_once(slope: float, steps: int) -> None:
    log_decay = torch.tensor([[-slope]], dtype=torch.float64)
    expected = math.exp(-slope * steps)
    exact = powers(log_decay, torch.tensor([steps]), torch.float64, torch.device("cpu")).item()
    assert exact == pytest.approx(expected, rel=1e-12, abs=1e-300)
    single = powers(log_decay, torch.tensor([steps]), torch.float32, torch.device("cpu"))
    assert torch.equal(single, torch.tensor([[exact]], dtype=torch.float64).float())


@pytest.mark.parametrize("slope", [1e-6, 3e-6, 1e-5, 1e-3])
def test_many_small_steps_are_one_large_one(slope: float) -> None:
    """Of float32 states: each is rounded with every step, up or down as its digits fall, and their mean is right.

    With exp(-slope) rounded first all would be off together, by 1.3 % of the exponent for 1e-6.
    """
    state = torch.rand(2000, generator=torch.Generator().manual_seed(0)) + 0.5
    exponent = torch.tensor(-slope, dtype=torch.float64)
    found = state
    for _ in range(1024):
        found = decayed(found, exponent)
    error = (found.double() / state.double()).log() / (-slope * 1024) - 1
    assert float(error.mean().abs()) < 3e-9 / slope
    assert float(error.abs().max()) < 2**-24 / slope


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_slow_and_fast_decays_keep_their_digits(dtype: torch.dtype) -> None:
    """Side by side: what decays by e^-30 is not the rounding of what was there."""
    exponent = -torch.tensor([0.0, 1e-12, 1e-6, 0.5, math.log(2), 0.7, 5, 30, 80, 1e4, math.inf]).double()
    state = torch.full((3, len(exponent)), 1.7, dtype=dtype)
    expected = state.double() * exponent.exp()
    for out in (None, state):
        found = decayed(state, exponent, out=out)
        assert found.dtype == dtype
        torch.testing.assert_close(found.double(), expected, rtol=4 * torch.finfo(dtype).eps, atol=0)


def test_gradients_reach_state_and_exponent() -> None:
    state = torch.rand(4, 6, dtype=torch.float64, requires_grad=True)
    for exponent in ([-1e-3, -0.1, -0.6] * 2, [-1e-3, -1.0, -7.0] * 2):
        given = torch.tensor(exponent, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(decayed, (state, given))
