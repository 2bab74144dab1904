"""The headline numbers of a run, against histories whose answer is known."""

from __future__ import annotations

from typing import Any

import pytest

from wyrmling.watch.figures import count_figures, series


def event(kind: str, step: int, time: float = 0.0, **fields: Any) -> dict[str, Any]:
    defaults: dict[str, dict[str, Any]] = {
        "started": {"name": "r", "total_steps": 10, "parameters": 7},
        "resumed": {"name": "r", "total_steps": 10, "parameters": 7},
        "step": {"loss": 1.0, "tokens_seen": 8 * step, "tokens_per_second": None, "memory_bytes": None},
        "validation": {"loss": 1.0, "bits_per_byte": None},
        "message": {"level": "info", "name": "x", "text": "y"},
        "ended": {"reason": "finished", "tokens": 8 * step},
    }
    return {"event": kind, "step": step, "time": time, **defaults.get(kind, {}), **fields}


def test_nothing_happened() -> None:
    figures = count_figures([])
    assert (figures.status, figures.step, figures.loss, figures.seconds) == ("not started", 0, None, 0.0)


def test_pauses_between_processes_are_not_time_of_training() -> None:
    events = [
        event("message", 0, 1.0),
        event("started", 0, 10.0),
        event("step", 5, 30.0),
        event("message", 5, 1000.0),
        event("resumed", 5, 1010.0),
        event("step", 10, 1015.0),
        event("ended", 10, 1016.0),
    ]
    assert count_figures(events).seconds == pytest.approx(20 + 6)


@pytest.mark.parametrize(
    ("last", "status"),
    [
        (event("step", 3), "unfinished"),
        (event("ended", 3), "finished"),
        (event("ended", 3, reason="SIGINT"), "stopped: SIGINT"),
        (event("resumed", 3), "unfinished"),
    ],
)
def test_status_follows_the_last_mark(last: dict[str, Any], status: str) -> None:
    events = [event("started", 0), event("ended", 3, reason="SIGTERM")]
    assert count_figures([*events[: 1 if last["event"] != "resumed" else 2], last]).status == status


def test_the_first_of_equal_validation_losses_is_the_best_and_missing_ones_never_are() -> None:
    events = [
        event("started", 0),
        event("validation", 1, loss=3.0, bits_per_byte=4.0),
        event("validation", 2, loss=2.0, bits_per_byte=2.9),
        event("validation", 3, loss=None),
        event("validation", 4, loss=2.0, bits_per_byte=2.9),
        event("validation", 5, loss=2.5, bits_per_byte=3.6),
    ]
    figures = count_figures(events)
    assert (figures.best_loss, figures.best_step, figures.best_bits_per_byte) == (2.0, 2, 2.9)
    assert (figures.validation_loss, figures.bits_per_byte) == (2.5, 3.6)


def test_tokens_and_steps_include_those_after_the_last_logged_step() -> None:
    figures = count_figures([event("started", 0), event("step", 8), event("ended", 9, tokens=72)])
    assert (figures.step, figures.tokens) == (9, 72)


def test_a_series_leaves_out_what_has_no_value() -> None:
    events = [event("step", 1, loss=3.0), event("step", 2, loss=None), event("step", 3, loss=1.0)]
    assert series(events, "step", "loss") == [(1, 3.0), (3, 1.0)]
