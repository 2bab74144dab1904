"""Sampling: its limits, its filters, and draws that depend on nothing but their key."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wyrmling.errors import ConfigError, DivergedError
from wyrmling.generation.sampling import draws, probabilities, sample
from wyrmling.generation.settings import GenerationSettings, SamplingSettings

LOGITS = st.lists(
    st.one_of(st.floats(-50, 50), st.sampled_from([0.0, 1.0, -math.inf])), min_size=1, max_size=12
).filter(lambda values: any(math.isfinite(value) for value in values))
SETTINGS = st.builds(
    SamplingSettings,
    temperature=st.sampled_from([0.0, 1e-320, 1e-8, 1e-4, 0.5, 1.0, 2.0, 1e30]),
    top_k=st.one_of(st.none(), st.integers(1, 15)),
    top_p=st.one_of(st.none(), st.sampled_from([1e-9, 0.1, 0.5, 0.9, 1.0])),
)


@given(logits=LOGITS, settings=SETTINGS, u=st.floats(0, 1, exclude_max=True))
def test_every_combination_draws_a_possible_token(
    logits: list[float], settings: SamplingSettings, u: float
) -> None:
    scores = np.asarray(logits)
    chances = probabilities(scores, settings)
    assert np.isfinite(chances).all()
    assert chances.sum() == pytest.approx(1)
    assert not chances[np.isneginf(scores)].any()
    if settings.top_k is not None:
        assert np.count_nonzero(chances) <= settings.top_k
    token = sample(scores[None], settings, np.asarray([u]))[0]
    assert chances[token] > 0


@given(logits=LOGITS, u=st.floats(0, 1, exclude_max=True))
def test_temperature_zero_takes_the_likeliest_and_of_equals_the_lowest_id(
    logits: list[float], u: float
) -> None:
    token = sample(np.asarray([logits]), SamplingSettings(temperature=0), np.asarray([u]))[0]
    assert token == logits.index(max(logits))


@given(logits=LOGITS, u=st.floats(0, 1, exclude_max=True), temperature=st.sampled_from([0.3, 1.0, 1e30]))
def test_top_k_of_one_and_a_vanishing_top_p_are_greedy(
    logits: list[float], u: float, temperature: float
) -> None:
    likeliest = logits.index(max(logits))
    one = SamplingSettings(temperature=temperature, top_k=1)
    assert sample(np.asarray([logits]), one, np.asarray([u]))[0] == likeliest
    if temperature < 1e30:  # there every token is as likely as any other, up to rounding
        sharp = SamplingSettings(temperature=temperature, top_p=1e-9)
        chosen = sample(np.asarray([logits]), sharp, np.asarray([u]))[0]
        assert logits[chosen] == pytest.approx(max(logits), abs=1e-12)


@given(logits=LOGITS, extra=st.integers(0, 5))
def test_top_k_of_the_whole_vocabulary_and_top_p_of_one_filter_nothing(
    logits: list[float], extra: int
) -> None:
    scores = np.asarray(logits)
    plain = probabilities(scores, SamplingSettings())
    np.testing.assert_array_equal(plain, probabilities(scores, SamplingSettings(top_k=len(logits) + extra)))
    np.testing.assert_array_equal(plain, probabilities(scores, SamplingSettings(top_p=1.0)))
    finite = scores[np.isfinite(scores)]
    exact = np.exp(finite - finite.max()) / np.exp(finite - finite.max()).sum()
    np.testing.assert_allclose(plain[np.isfinite(scores)], exact, rtol=1e-12)


@given(logits=LOGITS, k=st.integers(1, 12))
def test_top_k_keeps_the_k_likeliest(logits: list[float], k: int) -> None:
    kept = np.flatnonzero(probabilities(np.asarray(logits), SamplingSettings(top_k=k)))
    order = sorted(range(len(logits)), key=lambda token: (-logits[token], token))
    expected = [token for token in order[:k] if logits[token] > max(logits) - 700]
    assert kept.tolist() == sorted(expected)


@given(logits=st.lists(st.floats(-5, 5), min_size=1, max_size=12), p=st.floats(0.01, 0.99))
def test_top_p_keeps_the_fewest_that_reach_p(logits: list[float], p: float) -> None:
    plain = probabilities(np.asarray(logits), SamplingSettings())
    kept = np.flatnonzero(probabilities(np.asarray(logits), SamplingSettings(top_p=p)))
    total = plain[kept].sum()
    assert total >= p - 1e-12
    assert total - plain[kept].min() < p + 1e-12
    assert plain[kept].min() >= max((plain[i] for i in range(len(plain)) if i not in kept), default=0.0)


def test_of_equal_scores_top_p_and_top_k_keep_the_lowest_ids() -> None:
    scores = np.tile([-math.inf, 0.0], 512)
    odd = list(range(1, 1024, 2))
    assert np.flatnonzero(probabilities(scores, SamplingSettings(top_p=0.25))).tolist() == odd[:128]
    assert np.flatnonzero(probabilities(scores, SamplingSettings(top_k=9))).tolist() == odd[:9]


def test_top_p_counts_what_top_k_has_left() -> None:
    scores = np.log(np.asarray([0.4, 0.4, 0.1, 0.1]))
    both = probabilities(scores, SamplingSettings(top_k=2, top_p=0.5))
    assert np.flatnonzero(both).tolist() == [0]


def test_equal_scores_are_drawn_equally_often() -> None:
    uniform = draws(1, [0] * 4000, range(4000))
    tokens = sample(np.zeros((4000, 4)), SamplingSettings(), uniform)
    counts = np.bincount(tokens, minlength=4)
    assert abs(counts - 1000).max() < 150


def test_frequencies_follow_the_probabilities() -> None:
    scores = np.log(np.asarray([0.5, 0.3, 0.15, 0.05]))
    tokens = sample(np.tile(scores, (8000, 1)), SamplingSettings(), draws(3, [2] * 8000, range(8000)))
    counts = np.bincount(tokens, minlength=4)
    assert np.abs(counts / 8000 - [0.5, 0.3, 0.15, 0.05]).max() < 0.02


@pytest.mark.parametrize(
    ("row", "found"),
    [([0.0, math.nan], "NaN"), ([math.inf, 0.0], "infinity"), ([-math.inf] * 3, "no token that is possible")],
)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_scores_without_a_meaning_are_an_error(row: list[float], found: str, temperature: float) -> None:
    with pytest.raises(DivergedError, match=found):
        sample(np.asarray([row]), SamplingSettings(temperature=temperature), np.asarray([0.5]))


def test_a_draw_depends_on_seed_row_and_position_alone() -> None:
    together = draws(7, [0, 1, 2, 5], [3, 3, 4, 9])
    assert draws(7, [5, 1], [9, 3]).tolist() == [together[3], together[1]]
    assert len({*together, *draws(8, [0, 1, 2, 5], [3, 3, 4, 9])}) == 8
    assert ((together >= 0) & (together < 1)).all()


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("temperature", -1.0, "at least 0"),
        ("temperature", math.nan, "finite"),
        ("temperature", math.inf, "finite"),
        ("top_k", 0, "at least 1"),
        ("top_k", -3, "at least 1"),
        ("top_k", 1.5, "whole number"),
        ("top_k", True, "whole number"),
        ("top_p", 0.0, "above 0 and at most 1"),
        ("top_p", 1.1, "above 0 and at most 1"),
        ("top_p", math.nan, "above 0 and at most 1"),
        ("seed", -1, "from 0 to"),
        ("seed", 1 << 63, "from 0 to"),
        ("max_tokens", 0, "at least 1"),
        ("max_chars", -5, "at least 1"),
        ("window", 0, "at least 1"),
        ("prompt_chunk", 0, "at least 1"),
    ],
)
def test_invalid_settings_are_refused_in_one_line_with_their_range(
    name: str, value: float, says: str
) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        GenerationSettings.of({name: value})
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_setting_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigError, match="no setting 'temprature'"):
        GenerationSettings.of({"temprature": 1.0})


def test_a_seed_that_is_not_given_is_drawn_and_kept() -> None:
    assert SamplingSettings(seed=5).seeded().seed == 5
    seeds = {SamplingSettings().seeded().seed for _ in range(5)}
    assert None not in seeds
    assert len(seeds) > 1
