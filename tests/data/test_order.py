"""Law 3: what a row reads is a pure function of (seed, split, step, row); nothing is missed or read twice."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wyrmling.data.order import EpochWindows, RandomWindows, Windows

SEEDS = st.integers(0, 2**63 - 1)


def targets_of(windows: Windows) -> list[int]:
    """Positions of all targets of some windows, row after row."""
    pairs = zip(windows.starts.tolist(), windows.lengths.tolist(), strict=True)
    return [position for start, length in pairs for position in range(start + 1, start + length + 1)]


def one_epoch(order: EpochWindows, epoch: int) -> Windows:
    rows = np.arange(order.global_rows)
    first = epoch * order.steps_per_epoch
    parts = [order.windows(step, rows) for step in range(first, first + order.steps_per_epoch)]
    return Windows(np.concatenate([p.starts for p in parts]), np.concatenate([p.lengths for p in parts]))


@pytest.mark.parametrize("extra", [1, 2, 3, 10])
def test_random_starts_are_exactly_the_legal_ones(extra: int) -> None:
    """D8: with block + 1 tokens there is one window, with block + 2 two; the last start is reached."""
    block = 7
    order = RandomWindows(block + extra, block, 1, "train")
    windows = [order.windows(step, np.arange(8)) for step in range(125)]
    starts = np.concatenate([w.starts for w in windows])
    assert set(starts.tolist()) == set(range(extra))
    assert all((w.lengths == block).all() for w in windows)
    counts = np.bincount(starts, minlength=extra)
    assert counts.min() > 0.6 * len(starts) / extra


@given(st.integers(1, 50), st.integers(0, 300), SEEDS, st.integers(0, 10**9), st.data())
def test_random_windows_fit_and_depend_on_the_row_alone(
    block: int, extra: int, seed: int, step: int, data: st.DataObject
) -> None:
    order = RandomWindows(block + 1 + extra, block, seed, "train")
    rows = np.array(data.draw(st.lists(st.integers(0, 10**6), max_size=8)), dtype=np.int64)
    together = order.windows(step, rows)
    assert together.reset is None
    assert ((together.starts >= 0) & (together.starts + block + 1 <= block + 1 + extra)).all()
    again = RandomWindows(block + 1 + extra, block, seed, "train")
    for row, start in zip(rows, together.starts, strict=True):
        assert again.windows(step, np.array([row])).starts[0] == start


def test_random_windows_differ_by_seed_split_step_and_row() -> None:
    n, rows = 10**6, np.arange(4)
    draws = [
        RandomWindows(n, 8, seed, split).windows(step, rows).starts
        for seed, split, step in [(1, "train", 0), (2, "train", 0), (1, "validation", 0), (1, "train", 1)]
    ]
    assert len(np.unique(np.concatenate(draws))) == 16


def test_random_windows_of_a_given_seed_never_change() -> None:
    """A run that is resumed, also after an upgrade, finds the batches of the run that was stopped."""
    order = RandomWindows(1000, 10, 1337, "train")
    assert order.windows(0, np.arange(4)).starts.tolist() == [427, 224, 796, 492]
    epochs = EpochWindows(100, 10, 4, 1337, "train")
    assert epochs.windows(0, np.arange(4)).starts.tolist() == [79, 59, 0, 29]
    assert epochs.windows(5, np.arange(4)).starts.tolist() == [0, 29, 0, 0]


@pytest.mark.parametrize("n", [0, 1, 8])
def test_too_few_tokens_for_a_random_window_are_refused(n: int) -> None:
    with pytest.raises(ValueError, match=f"{n} tokens"):
        RandomWindows(n, 8, 1, "train")


@settings(max_examples=200)
@given(st.integers(2, 120), st.integers(1, 40), st.integers(1, 9), SEEDS, st.integers(0, 1000))
def test_an_epoch_has_every_target_exactly_once(n: int, block: int, rows: int, seed: int, epoch: int) -> None:
    """D8 as an invariant: the multiset of targets of an epoch is {1, .., n - 1}, in every epoch alike."""
    order = EpochWindows(n, block, rows, seed, "train")
    windows = one_epoch(order, epoch)
    assert sorted(targets_of(windows)) == list(range(1, n))
    assert (windows.lengths <= block).all()
    assert np.count_nonzero(windows.lengths) == order.count
    assert len(windows.lengths) - order.count < rows


@given(st.integers(2, 200), st.integers(1, 60))
def test_the_number_of_windows_is_the_same_for_every_cut_that_is_allowed(n: int, block: int) -> None:
    """And every first length that gives this number and is a legal length is allowed."""
    order = EpochWindows(n, block, 1, 0, "train")
    m = n - 1

    def number(first: int) -> int:
        return 1 + -(-(m - first) // block)

    lengths = {order.first_length(epoch) for epoch in range(40 * block if n < 30 else 60)}
    assert {number(first) for first in lengths} == {order.count}
    if m < 2 * block or block == 1:
        assert lengths == {min(block, m)}
    elif n < 30:
        same = {first for first in range(1, block + 1) if number(first) == order.count}
        whole = {block} if m % block == 0 else set()
        assert lengths == same - whole


def test_borders_move_and_the_order_changes_between_epochs() -> None:
    order = EpochWindows(10_002, 16, 4, 5, "train")
    epochs = [one_epoch(order, epoch) for epoch in range(6)]
    assert len({order.first_length(epoch) for epoch in range(6)}) > 2
    for before, after in pairwise(epochs):
        assert np.mean(before.starts == after.starts) < 0.05
    assert not np.array_equal(epochs[0].starts, np.sort(epochs[0].starts))


@given(st.integers(2, 200), st.integers(1, 30), st.integers(1, 8), SEEDS, st.integers(0, 10**6), st.data())
def test_a_row_of_an_epoch_does_not_depend_on_who_else_is_asked(
    n: int, block: int, rows: int, seed: int, step: int, data: st.DataObject
) -> None:
    order = EpochWindows(n, block, rows, seed, "train")
    whole = order.windows(step, np.arange(rows))
    some = np.array(data.draw(st.lists(st.integers(0, rows - 1), max_size=8)), dtype=np.int64)
    part = EpochWindows(n, block, rows, seed, "train").windows(step, some)
    np.testing.assert_array_equal(part.starts, whole.starts[some])
    np.testing.assert_array_equal(part.lengths, whole.lengths[some])


def test_rows_outside_are_refused() -> None:
    with pytest.raises(ValueError, match=r"rows 0\.\.2"):
        EpochWindows(100, 10, 2, 1, "train").windows(0, np.arange(3))
    with pytest.raises(ValueError, match=r"rows -1\.\.0"):
        EpochWindows(100, 10, 2, 1, "train").windows(0, np.array([-1, 0]))
    for build in (
        lambda: EpochWindows(1, 4, 1, 0, "train"),
        lambda: EpochWindows(9, 0, 1, 0, "train"),
        lambda: EpochWindows(9, 4, 0, 0, "train"),
    ):
        with pytest.raises(ValueError, match="at least"):
            build()
