"""The search for the largest micro-batch, as a function of what fits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wyrmling.config import resolve_gradient_accumulation
from wyrmling.training.autotune.batch_search import bounds, candidates, largest_fitting, nearest_to_target


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(4, 4, [4]), (4, 20, [4, 8, 16, 20]), (3, 24, [3, 6, 12, 24]), (1, 2, [1, 2])],
)
def test_candidates_double_and_end_at_the_largest(low: int, high: int, expected: list[int]) -> None:
    assert candidates(low, high) == expected


@given(low=st.integers(1, 40), more=st.integers(0, 300), limit=st.integers(0, 400))
def test_the_largest_that_fits_is_found_and_nothing_is_tried_twice(low: int, more: int, limit: int) -> None:
    high, asked = low + more, []

    def fits(rows: int) -> bool:
        asked.append(rows)
        return rows <= limit

    best = largest_fitting(low, high, fits, bisect=True)
    assert best == (None if limit < low else min(limit, high))
    assert len(asked) == len(set(asked))
    assert all(low <= rows <= high for rows in asked)
    assert len(asked) <= 2 * (high // low).bit_length() + low.bit_length() + 2


@given(low=st.integers(1, 40), more=st.integers(0, 300), limit=st.integers(0, 400))
def test_without_halving_the_answer_is_a_candidate(low: int, more: int, limit: int) -> None:
    found = candidates(low, low + more)
    best = largest_fitting(low, low + more, lambda rows: rows <= limit, bisect=False)
    assert best == max((rows for rows in found if rows <= limit), default=None)


@pytest.mark.parametrize(
    ("batch", "accumulation", "target", "expected"),
    [(64, 1, None, 1), (64, 3, None, 3), (64, 1, 64, 1), (21, 1, 64, 4), (16, 1, 128, 8)],
)
def test_accumulation_follows_from_the_target(
    batch: int, accumulation: int, target: int | None, expected: int
) -> None:
    assert resolve_gradient_accumulation(batch, accumulation, target) == expected


@given(rows=st.integers(1, 200), target=st.integers(1, 200))
def test_rows_of_a_step_come_as_near_to_the_target_as_the_number_of_micro_batches_allows(
    rows: int, target: int
) -> None:
    chosen = nearest_to_target(rows, 1, target)
    before, after = (resolve_gradient_accumulation(b, 1, target) for b in (rows, chosen))
    assert chosen <= rows
    assert after == before
    assert 0 <= chosen * after - target < after


def test_the_smallest_number_of_rows_is_kept_and_no_target_changes_nothing() -> None:
    assert nearest_to_target(21, 1, 64) == 16
    assert nearest_to_target(21, 18, 64) == 18
    assert nearest_to_target(21, 1, None) == 21


@pytest.mark.parametrize(
    ("batch", "low", "high", "target", "expected"),
    [
        (8, 1, None, None, (1, 8)),
        (8, 16, None, None, (16, 16)),
        (8, 2, 32, None, (2, 32)),
        (8, 1, None, 64, (1, 64)),
        (8, 1, 100, 64, (1, 64)),
        (8, 1, 16, 64, (1, 16)),
    ],
)
def test_bounds(
    batch: int, low: int, high: int | None, target: int | None, expected: tuple[int, int]
) -> None:
    assert bounds(batch, low, high, target) == expected
