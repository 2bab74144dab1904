"""GDPO: gates, normalisation within groups and over the batch, the clipped loss, rollouts of a model."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agreement import build
from wyrmling.config.schema.gdpo import FixedGate, Gdpo, NoGate, PercentileGate
from wyrmling.errors import ConfigError
from wyrmling.generation import GenerationSettings
from wyrmling.training.gdpo import (
    advantages,
    draw_rollouts,
    gated,
    log_probabilities,
    policy_loss,
    within_groups,
)

INFINITE, NOT_A_NUMBER = math.inf, math.nan


def rewards(*rows: list[float]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def gdpo(**values: object) -> Gdpo:
    return Gdpo.model_validate({"group_size": 4, **values})


def found(hard: torch.Tensor, easy: torch.Tensor, **values: object) -> torch.Tensor:
    return advantages(hard, easy, gdpo(**values))[0]


def random_rewards(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_a_fixed_gate_lets_the_easy_reward_through_from_its_threshold_on() -> None:
    hard, easy = rewards([0.1, 0.9], [0.5, 0.8]), rewards([1, 2], [3, 4])
    assert gated(hard, easy, FixedGate(threshold=0.8)).tolist() == [[0, 2], [0, 4]]
    assert gated(hard, easy, NoGate()).tolist() == easy.tolist()


def test_a_percentile_gate_takes_the_quantile_of_each_group() -> None:
    """A quarter of [0, 2, 4, 6] is 1.5, and the median of [NaN, 1, inf, -inf] is 0.5, NaN being 0."""
    easy = torch.ones(1, 4, dtype=torch.float64)
    assert gated(rewards([0, 2, 4, 6]), easy, PercentileGate(quantile=0.25)).tolist() == [[0, 1, 1, 1]]
    mixed, zero = rewards([NOT_A_NUMBER, 1, INFINITE, -INFINITE]), torch.zeros(1, 4, dtype=torch.float64)
    values = found(mixed, easy, hard_weight=0.0)
    torch.testing.assert_close(
        values, found(zero, rewards([0, 1, 1, 0]), hard_weight=0.0), rtol=0, atol=1e-12
    )


def test_one_member_is_its_own_quantile() -> None:
    assert gated(rewards([-3.0]), rewards([2.0]), PercentileGate(quantile=0.9)).tolist() == [[2.0]]


def test_the_worked_example() -> None:
    values = found(rewards([0, 1, 0, 1]), rewards([1, 2, 3, 4]))
    assert values.tolist() == [pytest.approx([-0.976, 0.667, -0.976, 1.285], abs=5e-4)]


def test_nothing_to_tell_apart_is_no_advantage() -> None:
    assert float(found(torch.zeros(2, 3), torch.zeros(2, 3)).abs().max()) < 1e-6


@given(st.integers(1, 5), st.integers(3, 9), st.integers(0, 99), st.sampled_from(["off", "percentile"]))
def test_laws_of_advantages(prompts: int, group: int, seed: int, gate: str) -> None:
    """Mean 0 and deviation 1 over the batch; every reward may be moved, and scaled by a positive number."""
    hard, easy = random_rewards(seed, prompts, group), random_rewards(seed + 1000, prompts, group)
    parts = within_groups(hard, 1e-12)
    torch.testing.assert_close(parts.mean(dim=1), torch.zeros(prompts).double(), rtol=0, atol=1e-12)
    torch.testing.assert_close(parts.square().mean(dim=1), torch.ones(prompts).double(), rtol=1e-6, atol=0)
    settings = {"hard_gate": {"type": gate}, "norm_epsilon": 1e-12}
    values = found(hard, easy, **settings)
    assert float(values.mean()) == pytest.approx(0, abs=1e-10)
    assert float(values.square().mean()) == pytest.approx(1, rel=1e-6)
    moved = found(3 * hard + 2, easy * 5, **settings)
    torch.testing.assert_close(moved, values, rtol=1e-6, atol=1e-6)


def test_rewards_are_compared_before_they_are_added() -> None:
    """Doubling one reward changes nothing; adding them first, that would have drowned the other."""
    hard, easy = rewards([0, 1, 0, 1]), rewards([0, 0, 1, 1])
    plain = {"hard_gate": {"type": "off"}, "norm_epsilon": 1e-12}
    torch.testing.assert_close(
        found(hard, 1000 * easy, **plain), found(hard, easy, **plain), rtol=1e-6, atol=1e-6
    )
    assert found(hard, easy, **plain)[0].tolist() == pytest.approx(
        [-math.sqrt(2), 0, 0, math.sqrt(2)], abs=1e-6
    )


def test_advantages_are_limited_and_weighted() -> None:
    hard, easy = random_rewards(1, 3, 5), random_rewards(2, 3, 5)
    free = found(hard, easy)
    assert float(free.abs().max()) > 1.2
    assert torch.equal(found(hard, easy, advantage_clip=1.2), free.clamp(-1.2, 1.2))
    only = found(hard, easy, easy_weight=0.0)
    torch.testing.assert_close(only, found(hard, torch.zeros_like(easy)), rtol=1e-9, atol=1e-9)


def test_running_moments_are_those_of_all_batches_weighted_by_age() -> None:
    """Decay 0 is the batch alone; with 0.5, three batches count 1, 2 and 4 sevenths."""
    settings = gdpo(advantage_ema_decay=0.5, hard_gate={"type": "off"}, norm_epsilon=1e-12)
    plain = gdpo(hard_gate={"type": "off"}, norm_epsilon=1e-12)
    running, sums, squares = None, [], []
    for seed in range(3):
        hard, easy = (
            random_rewards(seed, 2, 4),
            random_rewards(seed + 50, 2, 4) + seed * random_rewards(seed, 2, 4),
        )
        raw = within_groups(hard, 1e-12) + within_groups(easy, 1e-12)
        sums.append(float(raw.mean()))
        squares.append(float(raw.square().mean()))
        values, running = advantages(hard, easy, settings, running)
        assert torch.equal(*(advantages(hard, easy, plain, before)[0] for before in (None, running)))
    shares = [1 / 7, 2 / 7, 4 / 7]
    mean = sum(a * b for a, b in zip(shares, sums, strict=True))
    square = sum(a * b for a, b in zip(shares, squares, strict=True))
    torch.testing.assert_close(values, (raw - mean) / math.sqrt(square - mean**2), rtol=1e-9, atol=1e-9)
    assert running is not None
    assert running.weight == pytest.approx(7 / 8)


def test_rewards_of_other_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\[prompts, group\], got \(2, 3\) and \(3, 2\)"):
        advantages(torch.zeros(2, 3), torch.zeros(3, 2), gdpo())
    with pytest.raises(ValueError, match="must have one shape"):
        policy_loss(torch.zeros(2, 3), torch.zeros(2, 3), torch.zeros(3, 2))


def test_the_loss_is_flat_beyond_its_range_where_the_advantage_pulls() -> None:
    """The described case: 0.3 against 0 with advantage 1 and range 0.2 costs -1.2."""
    new = torch.tensor([[0.3]], requires_grad=True)
    loss = policy_loss(new, torch.zeros(1, 1), torch.ones(1, 1), clip_range=0.2)
    assert loss.item() == pytest.approx(-1.2, abs=1e-6)
    loss.backward()
    assert float(new.grad) == 0
    against = torch.tensor([[0.3]], requires_grad=True)
    policy_loss(against, torch.zeros(1, 1), -torch.ones(1, 1), clip_range=0.2).backward()
    assert float(against.grad) == pytest.approx(math.exp(0.3))


def test_the_loss_without_a_range_is_the_plain_policy_gradient() -> None:
    gains = random_rewards(4, 2, 3)
    new, old = random_rewards(5, 2, 3).requires_grad_(), random_rewards(6, 2, 3).requires_grad_()
    loss = policy_loss(new, old, gains, clip_range=0.0, weight=0.5)
    assert loss.item() == pytest.approx(-0.5 * (new * gains).mean().item(), rel=1e-12)
    loss.backward()
    torch.testing.assert_close(new.grad, -0.5 * gains / 6, rtol=1e-12, atol=0)
    assert old.grad is None
    here = random_rewards(5, 2, 3).requires_grad_()
    policy_loss(here, here.detach(), gains, clip_range=0.2, weight=0.5).backward()
    torch.testing.assert_close(here.grad, new.grad, rtol=1e-12, atol=0)


def test_a_ratio_out_of_all_bounds_stays_finite_and_no_weight_is_no_loss() -> None:
    far = torch.tensor([[500.0, -500.0]], requires_grad=True)
    assert math.isfinite(policy_loss(far, torch.zeros(1, 2), -torch.ones(1, 2)).item())
    loss = policy_loss(far, torch.zeros(1, 2), torch.ones(1, 2), weight=0.0)
    loss.backward()
    assert loss.item() == 0
    assert far.grad.abs().max() == 0


def test_log_probabilities_are_those_with_which_tokens_were_drawn() -> None:
    """Prompts of unequal length, rows that stop early: the sum of each token's own log-probability after its past."""
    model = build("rope")
    prompts = [[1, 2, 3], [4], [5, 6]]
    settings = GenerationSettings(max_tokens=6, seed=3)
    rollouts = draw_rollouts(
        model, prompts, 4, settings, vocab_size=13, stop=lambda row, token: "stop" if token < 3 else None
    )
    assert rollouts.shape == (3, 4)
    assert len({len(ids) for group in rollouts.continuations for ids in group}) > 1
    values = log_probabilities(model, rollouts)
    for prompt, group, row in zip(prompts, rollouts.continuations, values, strict=True):
        assert len({tuple(ids) for ids in group}) > 1
        for ids, value in zip(group, row, strict=True):
            hidden, _ = model(torch.tensor([prompt + ids]))
            scores = torch.log_softmax(model.logits(hidden[0]), dim=-1)
            places = range(len(prompt) - 1, len(prompt) + len(ids) - 1)
            expected = sum(scores[place, token] for place, token in zip(places, ids, strict=True))
            torch.testing.assert_close(value, expected, rtol=1e-10, atol=1e-10)
    values.sum().backward()
    assert model.encoder.grad is not None


def test_a_model_learns_what_is_rewarded() -> None:
    """Token 7 as often as possible, and at least once: from a chance of 1 in 13 to most tokens."""
    model = build("rope")
    settings = gdpo(group_size=8)
    update = torch.optim.AdamW(model.parameters(), lr=0.02, weight_decay=0.0)
    shares, running = [], None
    for step in range(25):
        rollouts = draw_rollouts(
            model, [[1], [2, 3]], 8, GenerationSettings(max_tokens=4, seed=step), vocab_size=13
        )
        easy = torch.tensor([[ids.count(7) / 4 for ids in group] for group in rollouts.continuations])
        gains, running = advantages((easy > 0).double(), easy, settings, running)
        old = log_probabilities(model, rollouts).detach()
        for _ in range(2):
            update.zero_grad()
            policy_loss(log_probabilities(model, rollouts), old, gains).backward()
            update.step()
        shares.append(float(easy.mean()))
    assert sum(shares[:3]) / 3 < 0.25
    assert sum(shares[-3:]) / 3 > 0.75


@pytest.mark.parametrize("changed", [{"temperature": 0.5}, {"top_k": 3}, {"top_p": 0.9}, {"window": 8}])
def test_rollouts_from_other_probabilities_are_refused(changed: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="leave temperature at 1"):
        draw_rollouts(build("rope"), [[1]], 2, GenerationSettings(**changed))  # type: ignore[arg-type]
