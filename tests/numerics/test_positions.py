"""Positions: exact phases anywhere in a stream, rotations that keep lengths, rows at different places."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from wyrmling.numerics.positions import (
    PhaseTable,
    default_slopes,
    polar,
    polar_frequencies,
    rotary_frequencies,
    rotate,
    rotors,
)


def test_frequencies_are_the_published_ones() -> None:
    """theta^(-2j/N) / 2 pi per pair, as the published float32 code computes them."""
    n, theta = 64, 2.0**16
    index = torch.arange(n, dtype=torch.float32)
    published = 1.0 / (theta ** (torch.floor(index / 2) * 2 / n)) / (2 * math.pi)
    assert torch.allclose(rotary_frequencies(n, theta).float(), published[::2], rtol=1e-6)
    assert torch.equal(published[::2], published[1::2])
    assert polar_frequencies(n, theta)[1] == pytest.approx(theta ** (-1 / n) / (2 * math.pi))


def test_default_slopes() -> None:
    assert default_slopes(4).tolist() == pytest.approx([1, 0.840896, 0.707107, 0.594604], abs=1e-6)


@pytest.mark.parametrize("start", [0, 1, 63, 1000, 10**6, 10**9])
def test_phases_are_exact_anywhere(start: int) -> None:
    """Against integer arithmetic of the fractional part with 80 bits, from the first token to the billionth."""
    frequencies = rotary_frequencies(16, 2.0**16)
    found = PhaseTable(frequencies)(torch.tensor([start]), 5, torch.float64, torch.device("cpu"))
    for t in range(5):
        for j, frequency in enumerate(frequencies.tolist()):
            numerator, denominator = frequency.as_integer_ratio()
            cycles = (start + t) * numerator % denominator / denominator
            expected = complex(math.cos(2 * math.pi * cycles), math.sin(2 * math.pi * cycles))
            assert abs(complex(found[t, j]) - expected) < 1e-6


@given(start=st.integers(0, 5000), length=st.integers(1, 90))
def test_a_run_of_phases_equals_its_tokens(start: int, length: int) -> None:
    table = PhaseTable(rotary_frequencies(8, 2.0**16))
    run = table(torch.tensor([start]), length, torch.float64, torch.device("cpu"))
    single = rotors(torch.arange(start, start + length), rotary_frequencies(8, 2.0**16), torch.float64)
    assert float((run - single).abs().max()) < 1e-12


def test_rows_at_different_places_get_their_own_phases() -> None:
    table = PhaseTable(rotary_frequencies(8, 2.0**16))
    both = table(torch.tensor([3, 40]), 6, torch.float64, torch.device("cpu"))
    assert both.shape == (2, 1, 6, 4)
    for row, start in enumerate((3, 40)):
        alone = table(torch.tensor([start]), 6, torch.float64, torch.device("cpu"))
        assert float((both[row, 0] - alone).abs().max()) < 1e-12


def test_a_table_made_under_inference_serves_training() -> None:
    table = PhaseTable(rotary_frequencies(4, 2.0**16))
    with torch.inference_mode():
        table(torch.tensor([0]), 4, torch.float32, torch.device("cpu"))
    x = torch.rand(1, 1, 4, 4, requires_grad=True)
    rotate(x, table(torch.tensor([0]), 4, torch.float32, torch.device("cpu"))).sum().backward()
    assert x.grad is not None


def test_rotation_keeps_lengths_and_depends_on_distance_alone() -> None:
    x = torch.randn(2, 3, 7, 8, dtype=torch.float64)
    table = PhaseTable(rotary_frequencies(8, 2.0**16))
    here = rotate(x, table(torch.tensor([0]), 7, torch.float64, torch.device("cpu")))
    there = rotate(x, table(torch.tensor([500]), 7, torch.float64, torch.device("cpu")))
    torch.testing.assert_close(here.norm(dim=-1), x.norm(dim=-1))
    torch.testing.assert_close(here @ here.mT, there @ there.mT, rtol=1e-9, atol=1e-9)


def test_rotation_is_the_textbook_rotation() -> None:
    x = torch.randn(1, 1, 5, 6, dtype=torch.float64)
    frequencies = rotary_frequencies(6, 2.0**16)
    angle = (torch.arange(5, dtype=torch.float64)[:, None] * frequencies.repeat_interleave(2)) * 2 * math.pi
    turned = torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)
    expected = x * angle.cos() + turned * angle.sin()
    found = rotate(x, PhaseTable(frequencies)(torch.tensor([0]), 5, torch.float64, torch.device("cpu")))
    torch.testing.assert_close(found, expected)


def test_polar_has_the_softplus_as_its_length() -> None:
    x = torch.randn(1, 2, 4, 5, dtype=torch.float64)
    table = PhaseTable(polar_frequencies(5, 2.0**16))
    keys = polar(x, table(torch.tensor([9]), 4, torch.float64, torch.device("cpu")))
    assert keys.shape == (1, 2, 4, 10)
    torch.testing.assert_close(keys.unflatten(-1, (5, 2)).norm(dim=-1), torch.nn.functional.softplus(x))
