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
    ExponentialSchedule,
    LinearSchedule,
    NoamSchedule,
    Optimizer,
    StepSchedule,
)
from wyrmling.errors import ConfigError
from wyrmling.optim import (
    Constant,
    Cosine,
    Exponential,
    Linear,
    Noam,
    Schedule,
    Step,
    TwoStage,
    build_schedule,
    describe_length,
)


def rates(schedule: Schedule, steps: int) -> list[float]:
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


def test_exponential_times_gamma_at_every_step() -> None:
    optimizer = Optimizer(learning_rate=0.5, lr_schedule=ExponentialSchedule(gamma=0.5))
    assert rates(build_schedule(optimizer, 9), 5) == [0.5, 0.25, 0.125, 0.0625, 0.03125]
    assert build_schedule(optimizer, 9).rate(10**9) == 0.0
    assert "it was" not in describe_length(optimizer, 9, previous_total=8)


def test_step_from_0_5_by_tenths_after_every_3() -> None:
    optimizer = Optimizer(lr_schedule=StepSchedule(initial_lr=0.5, step_size=3))
    expected = [0.5] * 3 + [0.05] * 3 + [0.005] * 3
    assert rates(build_schedule(optimizer, 100), 9) == pytest.approx(expected, rel=1e-12)
    whole = Optimizer(lr_schedule=StepSchedule(initial_lr=0.5))
    assert set(rates(build_schedule(whole, 7), 7)) == {0.5}
    assert "set step_size to keep them" in describe_length(whole, 7, previous_total=5)


@given(factor=st.floats(1e-3, 10), width=st.integers(1, 512), warmup=st.integers(1, 40))
def test_noam_rises_to_its_warm_up_and_falls_with_the_root(factor: float, width: int, warmup: int) -> None:
    table = NoamSchedule(initial_lr=factor, warmup_steps=warmup)
    schedule = build_schedule(Optimizer(lr_schedule=table), 100, width)
    values = rates(schedule, 3 * warmup + 3)
    for step, value in enumerate(values, start=1):
        exact = factor * width**-0.5 * min(step**-0.5, step * warmup**-1.5)
        assert value == pytest.approx(exact, rel=1e-12)
    assert max(values) == pytest.approx(factor / math.sqrt(width * warmup))
    assert values.index(max(values)) == warmup - 1


def test_noam_takes_the_models_width_and_the_whole_run_where_nothing_is_given() -> None:
    optimizer = Optimizer(learning_rate=1.0, lr_schedule=NoamSchedule())
    assert build_schedule(optimizer, 50, 16) == Noam(1.0, 16, 50)
    named = Optimizer(learning_rate=1.0, lr_schedule=NoamSchedule(model_size=4))
    assert build_schedule(named, 50, 16) == Noam(1.0, 4, 50)
    assert "set warmup_steps to keep them" in describe_length(optimizer, 50, previous_total=40)
    late = Optimizer(lr_schedule=NoamSchedule(warmup_steps=60))
    assert "ends before the warm-up does" in describe_length(late, 50)


SCHEDULES: list[Schedule] = [
    Constant(0.1),
    Cosine(0.1, 0.0, 2, 5),
    Linear(0.1, 0.0, 2, 5),
    Exponential(0.1, 0.9),
    Step(0.1, 0.5, 2),
    Noam(0.1, 4, 2),
    TwoStage(0.1, 0.05, 2, 5),
]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_schedule_has_no_memory(schedule: Schedule) -> None:
    forwards = rates(schedule, 9)
    assert [schedule.rate(step) for step in range(9, 0, -1)] == forwards[::-1]
    assert all(math.isfinite(schedule.rate(step)) and schedule.rate(step) >= 0 for step in (1, 10**6, 2**62))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_steps_count_from_one(schedule: Schedule) -> None:
    with pytest.raises(ValueError, match="count from 1"):
        schedule.rate(0)


@pytest.mark.parametrize("peak", [0.0, -1.0, math.nan, math.inf])
def test_rates_that_are_not_positive_numbers_are_refused(peak: float) -> None:
    for make in (
        lambda: Constant(peak),
        lambda: Cosine(peak, 0.0, 0, 5),
        lambda: Linear(peak, 0.0, 0, 5),
        lambda: Exponential(peak, 0.5),
        lambda: Exponential(0.5, peak),
        lambda: Step(0.5, peak, 3),
        lambda: Noam(peak, 4, 2),
    ):
        with pytest.raises(ConfigError):
            make()
