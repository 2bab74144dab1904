"""The benchmark measures what it says: turns, medians, and memory above the base."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
from benchmarks import harness, speed


def test_contestants_take_turns_and_medians_are_medians() -> None:
    order: list[str] = []
    times = harness.interleaved({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, rounds=3)
    assert order == ["a", "b"] * 4  # one unmeasured call of each first
    assert all(len(timing.seconds) == 3 for timing in times.values())
    timing = harness.Timing((1.0, 9.0, 2.0))
    assert (timing.median, timing.spread) == (2.0, 4.0)


def test_both_models_of_a_pair_compute_the_same() -> None:
    import torch

    size = speed.Size("tiny", 2, 16, 2, 4, 2, 9)
    plain, ours = speed.pair(size)
    tokens, targets = speed.batch(size)
    speed.plain_step(plain, tokens, targets, low=False)
    speed.our_step(ours, tokens, targets, low=False)
    torch.testing.assert_close(ours.decoder.grad, plain.decoder.grad, rtol=1e-4, atol=1e-7)


def test_recompute_needs_less_than_half_of_the_plain_memory() -> None:
    """Peaks of child processes, at the smallest size of the benchmark."""
    used = {
        who: harness.peak_memory("benchmarks.speed", {"who": who, "size": 0})
        for who in ("plain", "recompute")
    }
    assert used["recompute"] < used["plain"] / 2


def test_a_table_is_markdown() -> None:
    assert harness.table(["a", "b"], [["1", "2"]]) == "| a | b |\n| --- | --- |\n| 1 | 2 |"
