"""The rate of products: operations over the median time of the fastest."""

from __future__ import annotations

import pytest
import torch

from wyrmling.watch import matrix_rate as module
from wyrmling.watch.matrix_rate import matrix_rate, operations_of


def test_the_fastest_product_counts_by_its_median(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that gives the second product a thousandth of a second and the others a whole one, but for one hitch."""
    shapes = [(2, 3, 4), (5, 6, 7)]
    monkeypatch.setattr(module, "SHAPES", shapes)
    now, durations = 0.0, [1.0, 1e-3, 1.0, 9.0, 1.0, 1e-3]
    waits = 0

    def wait() -> None:
        nonlocal waits
        waits += 1

    readings = iter(_readings(durations))
    rate = matrix_rate(torch.float32, seconds=0.0, wait=wait, clock=lambda: next(readings))
    assert rate == pytest.approx(operations_of(shapes[1]) / 1e-3)
    assert waits == 1 + 3 * len(shapes)
    assert now == 0.0


def _readings(durations: list[float]) -> list[float]:
    """What a clock says: at the beginning, then before and after every product."""
    now, found = 0.0, [0.0]
    for taken in durations:
        found += [now, now + taken]
        now += taken
    return [*found, now, now]


def test_measuring_draws_from_no_generator_of_the_process() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    products = module.products(torch.float64)
    assert torch.equal(torch.get_rng_state(), before)
    assert len(products) == len(module.SHAPES)
    assert products[module.product_name(torch.float64, module.SHAPES[1])]().shape == (1024, 8192)
