"""Gradients are unscaled, then measured, then clipped."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from wyrmling.config.schema.optimizer import Optimizer
from wyrmling.numerics.roles import declare
from wyrmling.optim import build_optimizer, first_nonfinite, limits, scale_and_clip


def parameter(*gradient: float, dtype: torch.dtype = torch.float32) -> nn.Parameter:
    made = nn.Parameter(torch.zeros(len(gradient), dtype=dtype))
    made.grad = torch.tensor(gradient, dtype=dtype)
    return made


@given(
    values=st.lists(st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=5), min_size=1, max_size=5),
    limit=st.floats(1e-3, 1e3),
)
def test_the_norm_is_global_and_measured_before_clipping(values: list[list[float]], limit: float) -> None:
    parameters = [parameter(*row) for row in values]
    exact = math.sqrt(sum(value * value for row in values for value in row))
    assert scale_and_clip(parameters, max_norm=limit) == pytest.approx(exact, rel=1e-5, abs=1e-20)
    factor = min(1.0, limit / exact) if exact > 0 else 1.0
    for row, clipped in zip(values, parameters, strict=True):
        assert clipped.grad.tolist() == pytest.approx([value * factor for value in row], rel=1e-4, abs=1e-20)


@given(values=st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=9), limit=st.floats(1e-3, 1e3))
def test_clipping_by_value_clamps_each_element(values: list[float], limit: float) -> None:
    clipped = parameter(*values)
    norm = scale_and_clip([clipped], max_value=limit)
    assert norm == pytest.approx(math.sqrt(sum(value * value for value in values)), rel=1e-5, abs=1e-20)
    expected = [max(-limit, min(limit, value)) for value in values]
    assert clipped.grad.tolist() == pytest.approx(expected, rel=1e-6)


def test_without_a_limit_the_norm_is_only_measured() -> None:
    measured = parameter(3.0, 4.0)
    assert scale_and_clip([measured]) == 5.0
    assert measured.grad.tolist() == [3.0, 4.0]


def test_tied_weights_are_counted_and_scaled_once() -> None:
    tied = parameter(3.0, 4.0)
    assert scale_and_clip([tied, tied], max_norm=1.0) == 5.0
    assert tied.grad.tolist() == pytest.approx([0.6, 0.8])
    scale_and_clip([tied, tied], 0.5)
    assert tied.grad.tolist() == pytest.approx([0.3, 0.4])


@given(
    values=st.lists(st.floats(-100, 100), min_size=1, max_size=8),
    factor=st.floats(1e-3, 10),
    limit=st.sampled_from(
        [{}, {"max_norm": 0.5}, {"max_norm": 1e6}, {"max_norm_per_tensor": 0.5}, {"max_value": 0.25}]
    ),
)
def test_what_is_measured_and_clipped_is_the_scaled_gradient(
    values: list[float], factor: float, limit: dict[str, float]
) -> None:
    """One multiplication, the outcome of two passes."""
    together = parameter(*values, dtype=torch.float64)
    apart = parameter(*[value * factor for value in values], dtype=torch.float64)
    norms = scale_and_clip([together], factor, **limit), scale_and_clip([apart], **limit)
    assert norms[0] == pytest.approx(norms[1], rel=1e-10, abs=1e-300)
    torch.testing.assert_close(together.grad, apart.grad, rtol=1e-10, atol=1e-300)


def test_parameters_without_gradients_count_for_nothing() -> None:
    assert scale_and_clip([nn.Parameter(torch.ones(3))], max_norm=1.0) == 0.0
    assert scale_and_clip([], max_norm=1.0) == 0.0


@pytest.mark.parametrize("limit", [{"max_norm": 1.0}, {"max_norm_per_tensor": 0.5}, {"max_value": 0.5}, {}])
def test_a_loss_scale_changes_neither_the_update_nor_the_reported_norm(limit: dict[str, float]) -> None:
    """A scaled loss, unscaled before clipping, gives the update of the plain loss."""
    outcomes = []
    for loss_scale in (1.0, 1024.0):
        torch.manual_seed(0)
        model = nn.Linear(5, 3)
        declare(model.weight, "matrix")
        declare(model.bias, "bias")
        optimizer, _ = build_optimizer(model, Optimizer(learning_rate=0.01))
        norms = []
        for _ in range(3):
            optimizer.zero_grad()
            inputs = 3 * torch.randn(7, 5)
            (model(inputs).square().sum() * loss_scale).backward()
            norms.append(scale_and_clip(model.parameters(), 1 / (loss_scale * 7), **limit))
            optimizer.step()
        outcomes.append((norms, [value.detach().clone() for value in model.parameters()]))
    (plain_norms, plain), (scaled_norms, scaled) = outcomes
    assert min(plain_norms) > 1.0
    assert scaled_norms == pytest.approx(plain_norms, rel=1e-5)
    for first, second in zip(plain, scaled, strict=True):
        torch.testing.assert_close(first, second, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_gradients_that_are_not_finite_are_reported_by_name_and_left_alone(poison: float) -> None:
    good, bad = parameter(1.0, 2.0), parameter(5.0, poison)
    named = [("empty", nn.Parameter(torch.ones(1))), ("good", good), ("bad", bad)]
    norm = scale_and_clip([value for _, value in named], max_norm=1e-3)
    assert not math.isfinite(norm)
    assert good.grad.tolist() == [1.0, 2.0]
    assert first_nonfinite(named) == "bad"
    assert first_nonfinite(named[:2]) is None


def test_large_but_finite_gradients_are_clipped_not_reported() -> None:
    """Squares of 1e25 overflow float32; the norm must not."""
    large = parameter(3e25, 4e25)
    assert scale_and_clip([large], max_norm=1.0) == pytest.approx(5e25, rel=1e-6)
    assert large.grad.tolist() == pytest.approx([0.6, 0.8], rel=1e-6)


@given(
    values=st.lists(st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=5), min_size=1, max_size=5),
    limit=st.floats(1e-3, 1e3),
)
def test_each_gradient_is_clipped_by_its_own_norm(values: list[list[float]], limit: float) -> None:
    """A small gradient does not pay for a large one; what is returned is the global norm all the same."""
    parameters = [parameter(*row) for row in values]
    exact = math.sqrt(sum(value * value for row in values for value in row))
    assert scale_and_clip(parameters, max_norm_per_tensor=limit) == pytest.approx(exact, rel=1e-5, abs=1e-20)
    for row, clipped in zip(values, parameters, strict=True):
        norm = math.sqrt(sum(value * value for value in row))
        factor = min(1.0, limit / norm) if norm > 0 else 1.0
        assert clipped.grad.tolist() == pytest.approx([value * factor for value in row], rel=1e-4, abs=1e-20)


def test_a_large_gradient_is_clipped_alone() -> None:
    large, small, nothing = parameter(3e25, 4e25), parameter(0.3, 0.4), parameter(0.0, 0.0)
    scale_and_clip([large, small, nothing], max_norm_per_tensor=1.0)
    assert large.grad.tolist() == pytest.approx([0.6, 0.8], rel=1e-6)
    assert small.grad.tolist() == pytest.approx([0.3, 0.4])
    assert nothing.grad.tolist() == [0.0, 0.0]


def test_half_precision_gradients_are_summed_in_float32() -> None:
    gradient = parameter(*[1.0] * 1000, dtype=torch.bfloat16)
    assert scale_and_clip([gradient]) == pytest.approx(math.sqrt(1000), rel=1e-6)


def test_the_limits_of_the_configuration() -> None:
    none = {"max_norm": None, "max_norm_per_tensor": None, "max_value": None}
    assert limits(Optimizer()) == none | {"max_norm": 1.0}
    assert limits(Optimizer(grad_clip_norm="off")) == none
    assert limits(Optimizer(grad_clip_value=0.5)) == none | {"max_value": 0.5}
    assert limits(Optimizer(grad_clip_norm_per_tensor=0.5)) == none | {"max_norm_per_tensor": 0.5}


@pytest.mark.parametrize(
    "limit",
    [
        {"max_norm": 0.0},
        {"max_value": -1.0},
        {"max_norm_per_tensor": math.nan},
        {"max_norm": 1.0, "max_value": 1.0},
        {"max_norm": 1.0, "max_norm_per_tensor": 1.0},
    ],
)
def test_limits_that_make_no_sense_are_refused(limit: dict[str, float]) -> None:
    with pytest.raises(ValueError):
        scale_and_clip([parameter(1.0)], **limit)
