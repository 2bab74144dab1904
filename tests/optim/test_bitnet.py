"""Two stages: a rate that holds to the middle and falls to two thirds, a weight decay that fades."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from wyrmling.config.schema.optimizer import CosineSchedule, Optimizer
from wyrmling.errors import ConfigError
from wyrmling.numerics.roles import declare
from wyrmling.optim import (
    TwoStage,
    WeightDecay,
    build_optimizer,
    build_schedule,
    build_weight_decay,
    describe_length,
    set_rates,
)

MODE = "bitnet_b158_reference"


def test_the_known_rates() -> None:
    stages = TwoStage(1.2e-3, 8e-4, warmup=2, total=6)
    expected = [6e-4, 1.2e-3, 1.2e-3, 1.2e-3, 1.0e-3, 8e-4, 8e-4, 8e-4]
    assert [stages.rate(step) for step in range(1, 9)] == pytest.approx(expected, abs=1e-12)


def test_the_known_weight_decays() -> None:
    decay = WeightDecay(0.1, 0.0, 10)
    expected = [0.1] * 6 + [0.075, 0.05, 0.025, 0.0, 0.0]
    assert [decay.at(step) for step in range(1, 12)] == pytest.approx(expected, abs=1e-12)
    assert decay.at(10) == 0.0


@given(peak=st.floats(1e-6, 1.0), total=st.integers(1, 9000))
def test_the_proportions_follow_the_run(peak: float, total: int) -> None:
    stages = TwoStage.of(peak, total)
    assert stages.warmup == min(-(-total // 20), 375)
    assert stages.final == pytest.approx(peak * 2 / 3)
    assert stages.rate(stages.warmup) == peak
    assert stages.rate(min(total // 2 + 1, total)) == peak
    if total > 2:
        assert stages.rate(total) == stages.rate(total + 100) == stages.final
    later = [stages.rate(step) for step in range(total // 2 + 1, total + 1, max(1, total // 50))]
    assert later == sorted(later, reverse=True)


@given(initial=st.floats(0, 1), final=st.floats(0, 1), total=st.integers(1, 1000))
def test_weight_decay_is_between_its_ends_and_exact_at_both(initial: float, final: float, total: int) -> None:
    decay = WeightDecay(initial, final, total)
    values = [decay.at(step) for step in range(1, total + 1)]
    assert values[: total // 2 + 1] == [initial] * min(total // 2 + 1, total)
    assert all(min(initial, final) - 1e-12 <= value <= max(initial, final) + 1e-12 for value in values)
    if total > 2:
        assert decay.at(total) == decay.at(total + 7) == final


def test_the_rate_is_that_of_the_mode_unless_a_table_says_otherwise() -> None:
    table = Optimizer(learning_rate=0.3, schedule_mode=MODE)
    assert build_schedule(table, 10) == TwoStage.of(0.3, 10)
    assert Optimizer(name="bitnet_published").schedule_mode == "bdh_reference"
    given = Optimizer(learning_rate=0.3, schedule_mode=MODE, lr_schedule=CosineSchedule(num_iters=5))
    assert build_schedule(given, 10).rate(5) == 0.0


@pytest.mark.parametrize(
    ("keys", "last"),
    [
        ({}, 0.1),
        ({"schedule_mode": MODE}, 0.1),
        ({"schedule_mode": MODE, "weight_decay_final": 0.02}, 0.02),
        ({"name": "muon", "schedule_mode": MODE, "weight_decay_final": 0.0}, 0.0),
        ({"name": "bitnet_published"}, 0.0),
        ({"name": "bitnet_published", "weight_decay_final": 0.05}, 0.05),
    ],
)
def test_who_lets_the_weight_decay_fade(keys: dict[str, object], last: float) -> None:
    decay = build_weight_decay(Optimizer.model_validate(keys), 20)
    assert decay.at(1) == decay.at(11) == 0.1
    assert decay.at(20) == last


def test_weights_shrink_by_the_decay_of_the_step() -> None:
    model = nn.Module()
    model.weight = declare(nn.Parameter(torch.ones(2, 2)), "matrix")
    model.gain = declare(nn.Parameter(torch.ones(2)), "gain")
    table = Optimizer(name="bitnet_published", learning_rate=0.1, weight_decay=0.5)
    optimizer, choices = build_optimizer(model, table, total_steps=4)
    decay, size = build_weight_decay(table, 4), 1.0
    for step in range(1, 6):
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        set_rates(optimizer, 0.1, decay.at(step))
        optimizer.step()
        size *= 1 - 0.1 * (0.5, 0.5, 0.5, 0.0, 0.0)[step - 1]
        assert model.weight.detach().flatten().tolist() == pytest.approx([size] * 4, rel=1e-6)
    assert torch.equal(model.gain.detach(), torch.ones(2))
    printed = {choice.name: choice.value for choice in choices}["weight decay"]
    assert printed.startswith("0.5 to step 3, then in a line to 0 at step 4 on matrix")


def test_another_length_of_the_run_is_announced() -> None:
    table = Optimizer(name="bitnet_published", schedule_mode=MODE)
    line = describe_length(table, 20, previous_total=10)
    assert "two stages over 20 steps" in line
    assert "it was 10, so the rates differ" in line
    assert "weight decay was 0.1 to step 6" in line
    assert "\n" not in line
    assert "it was" not in describe_length(table, 20, previous_total=20)
    assert "rates differ" not in describe_length(Optimizer(name="bitnet_published"), 20, previous_total=10)


def test_numbers_that_make_no_sense_are_refused() -> None:
    for make in (
        lambda: TwoStage(0.0, 0.1, 1, 2),
        lambda: TwoStage(0.1, 0.1, 3, 2),
        lambda: TwoStage(0.1, 0.1, 0, 2),
        lambda: WeightDecay(-0.1, 0.0, 2),
        lambda: WeightDecay(0.1, float("nan"), 2),
    ):
        with pytest.raises(ConfigError):
            make()
    with pytest.raises(ValueError, match="count from 1"):
        WeightDecay(0.1, 0.0, 4).at(0)
