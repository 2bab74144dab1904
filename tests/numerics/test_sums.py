"""Running sums, however they are made."""

from __future__ import annotations

import pytest
import torch

from wyrmling.numerics.sums import by_doubling, running_sum


@pytest.mark.parametrize("length", [0, 1, 2, 3, 7, 8, 33])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_both_ways_agree_with_a_loop(length: int, dim: int) -> None:
    shape = [2, 3, 4]
    shape[dim] = length
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    total, sums = torch.zeros_like(x.select(dim, 0)) if length else None, []
    for t in range(length):
        total = total + x.select(dim, t)
        sums.append(total)
    expected = torch.stack(sums, dim) if sums else x
    weights = torch.randn_like(expected)
    (wanted,) = torch.autograd.grad((expected * weights).sum(), x)
    for found in (running_sum(x, dim), by_doubling(x, dim)):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
        (gradient,) = torch.autograd.grad((found * weights).sum(), x)
        torch.testing.assert_close(gradient, wanted, rtol=1e-12, atol=1e-12)


def test_sums_are_made_in_the_type_that_is_asked_for() -> None:
    x = torch.full((3,), 0.1, dtype=torch.float32)
    assert running_sum(x, dtype=torch.float64).dtype == torch.float64
