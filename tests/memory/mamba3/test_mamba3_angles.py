"""The angles of Mamba-3: exact over long streams, in one call or many, with the gradients of a plain sum."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from memory_cases import draw
from wyrmling.memory.mamba3.angles import accumulate, rotate_pairs, rotors, wrap
from wyrmling.memory.mamba3.naive import rotated

LONG = 65_536


def steps_and_spins(length: int, rows: int = 1) -> tuple[Tensor, Tensor]:
    """float32 steps as trained models have them (mean 0.1), and spins that lean one way, so that turns add up."""
    generator = torch.Generator().manual_seed(7)
    step = torch.rand(rows, 2, length, generator=generator) * 0.2
    spin = torch.tanh(torch.randn(rows, length, 3, generator=generator) + 1)
    return step, spin


def apart(one: Tensor, other: Tensor) -> float:
    """The largest distance on the circle, radians."""
    return float(wrap(one.double() - other.double()).abs().max())


def test_a_long_stream_keeps_its_phase_in_float32() -> None:
    """65,536 tokens, thousands of turns: float32 within what rounding single steps explains; a plain sum is not."""
    step, spin = steps_and_spins(LONG)
    exact = accumulate(None, step.double(), spin.double())
    assert apart(accumulate(None, step, spin), exact) < 5e-6
    plain = math.pi * (step[..., None] * spin[:, None]).cumsum(2)
    assert float(plain.max()) > 500 * 2 * math.pi
    assert apart(plain, exact) > 1e-3


@pytest.mark.parametrize(("length", "bound"), [(1000, 5e-6), (1, 2.5e-5)])
def test_a_carried_stream_keeps_its_phase_in_float32(length: int, bound: float) -> None:
    """The same stream in many calls, the angle kept in float32 between them: one rounding of 2e-7 per call."""
    tokens = LONG if length > 1 else 8192
    step, spin = steps_and_spins(tokens)
    exact = accumulate(None, step.double(), spin.double())[:, :, -1]
    angle = None
    for begin in range(0, tokens, length):
        part = slice(begin, begin + length)
        angle = accumulate(angle, step[..., part], spin[:, part])[:, :, -1].float()
    assert angle is not None
    assert apart(angle, exact) < bound


def test_dropping_turns_one_by_one_does_not_drift() -> None:
    """Token by token with `wrap`, hundreds of turns: a float32 turn, 2e-7 too long, would pull the phase along."""
    step, spin = steps_and_spins(8192)
    exact = accumulate(None, step.double(), spin.double())[:, :, -1]
    angle = torch.zeros(1, 2, 3)
    for t in range(8192):
        turned = math.pi * (step[:, :, t, None] * spin[:, None, t]).double()
        angle = wrap(angle + turned.float())
    assert apart(angle, exact) < 2.5e-5


def test_a_start_far_out_is_a_start_within_a_turn() -> None:
    step, spin = draw(1, 2, 5).abs(), torch.tanh(draw(1, 5, 3))
    near = draw(1, 2, 3)
    far = near + 2 * math.pi * 1000
    assert apart(accumulate(far, step, spin), accumulate(near, step, spin)) < 1e-11


@given(turns=st.floats(-1e6, 1e6), length=st.integers(1, 5))
def test_angles_lie_within_half_a_turn(turns: float, length: int) -> None:
    angle = accumulate(None, torch.full((1, 1, length), abs(turns)), torch.full((1, length, 1), 0.7))
    assert float(angle.abs().max()) <= math.pi * (1 + 1e-6)
    assert apart(wrap(angle), angle) < 1e-6


def test_gradients_are_those_of_a_plain_sum() -> None:
    """Dropping whole turns changes no gradient: to steps, spins and the start, through every angle."""
    start = (draw(2, 3, 2) * 40).requires_grad_()
    step, spin = (draw(2, 3, 9).exp() * 3).requires_grad_(), torch.tanh(draw(2, 9, 2)).requires_grad_()
    along = draw(2, 3, 9, 2)
    found = torch.autograd.grad((accumulate(start, step, spin) * along).sum(), (start, step, spin))
    plain = start[:, :, None] + math.pi * (step[..., None] * spin[:, None]).cumsum(2)
    expected = torch.autograd.grad((plain * along).sum(), (start, step, spin))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_the_rotation_turns_adjacent_pairs_and_leaves_the_rest() -> None:
    x = torch.tensor([1.0, 0.0, 0.0, 1.0, 5.0, 6.0, 7.0])
    turned = rotate_pairs(x, rotors(torch.tensor([math.pi / 2, math.pi])))
    torch.testing.assert_close(turned, torch.tensor([0.0, 1.0, 0.0, -1.0, 5.0, 6.0, 7.0]))


@given(width=st.integers(2, 9), seed=st.integers(0, 99), data=st.data())
def test_rotation_keeps_norms_and_products_see_differences(
    width: int, seed: int, data: st.DataObject
) -> None:
    pairs = data.draw(st.integers(1, width // 2))
    x, y, angle, other = (draw(4, n, seed=seed + i) for i, n in enumerate((width, width, pairs, pairs)))
    turned = rotate_pairs(x, rotors(angle))
    torch.testing.assert_close(turned, rotated(x, angle), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1), rtol=1e-12, atol=1e-12)
    product = (turned * rotate_pairs(y, rotors(other))).sum(-1)
    relative = (rotate_pairs(x, rotors(angle - other)) * y).sum(-1)
    torch.testing.assert_close(product, relative, rtol=1e-11, atol=1e-11)
