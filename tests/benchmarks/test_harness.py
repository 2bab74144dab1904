"""The benchmark measures what it says: turns, medians, and memory above the base."""

from __future__ import annotations

import time

import pytest
import torch
from benchmarks.sizes import SHORT, Size, batch, our_step, pair, plain_step

from benchmarks import harness, memory
from wyrmling.errors import WyrmlingError


def test_contestants_take_turns_and_medians_are_medians() -> None:
    order: list[str] = []
    times = harness.interleaved({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, rounds=3)
    assert order == ["a", "b"] * 4  # one unmeasured call of each first
    assert all(len(timing.seconds) == 3 for timing in times.values())
    timing = harness.Timing((1.0, 9.0, 2.0))
    assert (timing.median, timing.spread) == (2.0, 4.0)


def test_a_slow_contestant_runs_in_fewer_rounds_but_at_least_two() -> None:
    calls = {"slow": lambda: time.sleep(0.02), "quick": lambda: None}
    times = harness.interleaved(calls, rounds=4, patience=0.01)
    assert {name: len(timing.seconds) for name, timing in times.items()} == {"slow": 2, "quick": 4}
    assert len(harness.interleaved(calls, rounds=1, patience=0.01)["slow"].seconds) == 1


def test_both_models_of_a_pair_compute_the_same() -> None:
    size = Size("tiny", 2, 16, 2, 4, 2, 9)
    plain, ours = pair(size)
    tokens, targets = batch(size)
    plain_step(plain, tokens, targets, low=False)
    our_step(ours, tokens, targets, low=False)
    torch.testing.assert_close(ours.decoder.grad, plain.decoder.grad, rtol=1e-4, atol=1e-7)


def test_recompute_needs_less_than_half_of_the_plain_memory() -> None:
    """Peaks of child processes, at the smallest size of the benchmark."""
    used = {who: memory.measured(who, SHORT[0], False) for who in ("plain", "recompute")}
    assert used["recompute"] < used["plain"] / 2


def test_a_child_that_fails_says_why() -> None:
    with pytest.raises(WyrmlingError, match=r"code 1: ValueError: no such thing"):
        harness.child(["-c", "raise ValueError('no such thing')"])


def test_a_table_is_markdown() -> None:
    assert harness.table(["a", "b"], [["1", "2"]]) == "| a | b |\n| --- | --- |\n| 1 | 2 |"
