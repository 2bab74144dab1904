"""The learning rate is a closed formula of the optimizer step and of nothing else."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wyrmling.config.schema.optimizer import (
    ConstantSchedule,
    CosineSchedule,
    LinearSchedule,
    Optimizer,
)
from wyrmling.errors import ConfigError
from wyrmling.optim import Constant, Cosine, Linear, build_schedule, describe_length


def rates(schedule: Constant | Cosine | Linear, steps: int) -> list[float]:
    return [schedule.rate(step) for step in range(1, steps + 1)]


def test_linear_from_0_9_to_0_5_over_4() -> None:
    optimizer = Optimizer(lr_schedule=LinearSchedule(initial_lr=0.9, final_lr=0.5, num_iters=4))
    expected = [0.9, 0.8, 0.7, 0.6, 0.5, 0.5, 0.5]
    assert rates(build_schedule(optimizer, 100), 7) == pytest.approx(expected, abs=1e-12)


def test_cosine_holds_its_minimum() -> None:
    """Over two steps from 0.5 to 0.1: half way, then the minimum for good, never back to the peak."""
    optimizer = Optimizer(lr_schedule=CosineSchedule(initial_lr=0.5, min_lr=0.1, num_iters=2))
    assert rates(build_schedule(optimizer, 100), 5) == pytest.approx([0.3, 0.1, 0.1, 0.1, 0.1], abs=1e-12)


def test_warm_up_of_a_cosine_step_by_step() -> None:
    schedule = Cosine(peak=1.0, low=0.0, warmup=4, length=8)
    expected = [
        0.25,
        0.5,
        0.75,
        1.0,
        0.5 * (1 + math.cos(math.pi / 4)),
        0.5,
        0.5 * (1 - math.cos(math.pi / 4)),
        0.0,
    ]
    assert rates(schedule, 8) == pytest.approx(expected, abs=1e-12)


@given(
    peak=st.floats(1e-6, 1.0),
    fraction=st.floats(0.0, 1.0),
    warmup=st.integers(0, 50),
    total=st.integers(1, 200),
    kind=st.sampled_from(["cosine", "linear"]),
)
def test_a_schedule_over_the_whole_run_ends_exactly_at_its_end_value(
    peak: float, fraction: float, warmup: int, total: int, kind: str
) -> None:
    end = peak * fraction
    table = (
        CosineSchedule(min_lr=end, warmup_steps=warmup)
        if kind == "cosine"
        else LinearSchedule(final_lr=end, warmup_steps=warmup)
    )
    schedule = build_schedule(Optimizer(learning_rate=peak, lr_schedule=table), total)
    values = rates(schedule, total + 5)
    assert all(0 < value <= peak * (1 + 1e-12) or value == end for value in values)
    if warmup < total and total > 1:
        assert values[total - 1 :] == [end] * 6
    if warmup > 0:
        assert values[0] == pytest.approx(peak / warmup)
        rising = values[:warmup]
        assert rising == sorted(rising)
        if warmup <= len(values):
            assert values[warmup - 1] == peak
    falling = values[max(warmup - 1, 0) :]
    assert all(later <= earlier * (1 + 1e-12) for earlier, later in pairwise(falling))


def test_the_rate_depends_on_the_optimizer_step_alone() -> None:
    """Warm-up 10 of 20 steps: four micro-batches to a step, or steps skipped for overflow, change nothing."""
    optimizer = Optimizer(learning_rate=0.1, lr_schedule=CosineSchedule(warmup_steps=10))
    schedule = build_schedule(optimizer, 20)
    closed = [
        0.1 * s / 10 if s <= 10 else 0.05 * (1 + math.cos(math.pi * (s - 10) / 10)) for s in range(1, 21)
    ]
    with_accumulation = [[schedule.rate(step) for _ in range(4)] for step in range(1, 21)]
    assert [values[0] for values in with_accumulation] == pytest.approx(closed, abs=1e-15)
    assert all(len(set(values)) == 1 for values in with_accumulation)
    backwards = [schedule.rate(step) for step in range(20, 0, -1)]
    assert backwards[::-1] == rates(schedule, 20)
    assert closed[0] == pytest.approx(0.01)
    assert schedule.rate(20) == 0.0


def test_without_a_schedule_the_rate_is_constant() -> None:
    assert set(rates(build_schedule(Optimizer(learning_rate=0.25), 7), 20)) == {0.25}
    named = Optimizer(learning_rate=0.25, lr_schedule=ConstantSchedule(initial_lr=0.5))
    assert set(rates(build_schedule(named, 7), 20)) == {0.5}


def test_a_length_that_is_not_given_follows_a_new_total_on_resume() -> None:
    optimizer = Optimizer(learning_rate=0.1, lr_schedule=CosineSchedule(min_lr=0.01))
    assert build_schedule(optimizer, 10).rate(10) == 0.01
    assert build_schedule(optimizer, 20).rate(10) == pytest.approx(0.055)
    line = describe_length(optimizer, 20, previous_total=10)
    assert "over 20 steps" in line
    assert "it was 10" in line
    assert "\n" not in line
    fixed = Optimizer(learning_rate=0.1, lr_schedule=CosineSchedule(min_lr=0.01, num_iters=10))
    assert rates(build_schedule(fixed, 10), 30) == rates(build_schedule(fixed, 20), 30)
    assert "num_iters is set" in describe_length(fixed, 20, previous_total=10)


def test_a_run_shorter_than_its_warm_up_is_announced_and_stays_below_the_peak() -> None:
    optimizer = Optimizer(learning_rate=0.1, lr_schedule=CosineSchedule(warmup_steps=100))
    assert rates(build_schedule(optimizer, 5), 5) == pytest.approx([0.001, 0.002, 0.003, 0.004, 0.005])
    assert "ends before the warm-up does" in describe_length(optimizer, 5)


def test_a_warm_up_longer_than_a_given_length_is_refused() -> None:
    optimizer = Optimizer(lr_schedule=CosineSchedule(warmup_steps=16000, num_iters=1000))
    with pytest.raises(ConfigError, match=r"warmup_steps \(16000\) is longer than num_iters \(1000\)"):
        build_schedule(optimizer, 1000)


def test_a_minimum_above_the_peak_is_refused() -> None:
    optimizer = Optimizer(learning_rate=0.01, lr_schedule=CosineSchedule(min_lr=0.1))
    with pytest.raises(ConfigError, match="min_lr must be between 0 and the peak"):
        build_schedule(optimizer, 10)


@pytest.mark.parametrize("schedule", [Constant(0.1), Cosine(0.1, 0.0, 2, 5), Linear(0.1, 0.0, 2, 5)])
def test_steps_count_from_one(schedule: Constant | Cosine | Linear) -> None:
    with pytest.raises(ValueError, match="count from 1"):
        schedule.rate(0)


@pytest.mark.parametrize("peak", [0.0, -1.0, math.nan, math.inf])
def test_rates_that_are_not_positive_numbers_are_refused(peak: float) -> None:
    for make in (lambda: Constant(peak), lambda: Cosine(peak, 0.0, 0, 5), lambda: Linear(peak, 0.0, 0, 5)):
        with pytest.raises(ConfigError):
            make()
