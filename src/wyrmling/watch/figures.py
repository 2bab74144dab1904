"""What a run amounts to, counted from its events."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Event = dict[str, Any]
Point = tuple[float, float]


@dataclass(frozen=True)
class Figures:
    """Headline numbers of a run. None: the run has not got that far, or does not measure it.

    Losses are nats per token; `best` belongs to the lowest validation loss after a step, the first of equals. `seconds`
    is the time between the first and the last event of each process that took part, superseded work left out.
    `tokens_per_second` is the median over logged steps, `memory_bytes` the largest reading of a logged step.
    """

    name: str | None = None
    status: str = "not started"
    started: float | None = None
    step: int = 0
    total_steps: int | None = None
    parameters: int | None = None
    tokens: int = 0
    seconds: float = 0.0
    loss: float | None = None
    validation_loss: float | None = None
    bits_per_byte: float | None = None
    best_loss: float | None = None
    best_step: int | None = None
    best_bits_per_byte: float | None = None
    tokens_per_second: float | None = None
    memory_bytes: int | None = None
    checkpoints: int = 0
    last_checkpoint: int | None = None
    epochs: int = 0
    samples: int = 0
    warnings: int = 0
    resumed: int = 0


def count_figures(events: Sequence[Event]) -> Figures:
    """The figures of events as `read_events` returns them."""
    steps = of_kind(events, "step")
    validations = [event for event in of_kind(events, "validation") if event["loss"] is not None]
    starts = of_kind(events, "started", "resumed")
    checkpoints = of_kind(events, "checkpoint")
    trained = [event for event in validations if event["step"] > 0]
    best = min(trained, key=lambda event: event["loss"], default=None)
    speeds = [value for _, value in series(events, "step", "tokens_per_second")]
    memory = [value for _, value in series(events, "step", "memory_bytes")]
    losses = series(events, "step", "loss")
    last = validations[-1] if validations else {}
    return Figures(
        name=starts[-1]["name"] if starts else None,
        status=_status(events),
        started=starts[0]["time"] if starts else None,
        step=max((event["step"] for event in events), default=0),
        total_steps=starts[-1]["total_steps"] if starts else None,
        parameters=starts[-1]["parameters"] if starts else None,
        tokens=_tokens(events),
        seconds=_seconds(events),
        loss=losses[-1][1] if losses else None,
        validation_loss=last.get("loss"),
        bits_per_byte=last.get("bits_per_byte"),
        best_loss=best["loss"] if best else None,
        best_step=best["step"] if best else None,
        best_bits_per_byte=best["bits_per_byte"] if best else None,
        tokens_per_second=statistics.median(speeds) if speeds else None,
        memory_bytes=int(max(memory)) if steps and memory else None,
        checkpoints=len(checkpoints),
        last_checkpoint=checkpoints[-1]["step"] if checkpoints else None,
        epochs=len({event["epoch"] for event in of_kind(events, "epoch")}),
        samples=len(of_kind(events, "sample")),
        warnings=sum(event["level"] == "warning" for event in of_kind(events, "message")),
        resumed=len(of_kind(events, "resumed")),
    )


def of_kind(events: Sequence[Event], *kinds: str) -> list[Event]:
    """The events of these kinds, in order."""
    return [event for event in events if event["event"] in kinds]


def series(events: Sequence[Event], kind: str, field: str) -> list[Point]:
    """(step, value) of one field, where it has a value."""
    points = ((event["step"], event.get(field)) for event in of_kind(events, kind))
    return [(step, value) for step, value in points if value is not None]


def _status(events: Sequence[Event]) -> str:
    marks = of_kind(events, "started", "resumed", "ended")
    if not marks:
        return "not started"
    if marks[-1]["event"] != "ended":
        return "unfinished"
    reason = str(marks[-1]["reason"])
    if marks[-1].get("diverged"):
        return "diverged"
    return reason if reason == "finished" else f"stopped: {reason}"


def _tokens(events: Sequence[Event]) -> int:
    counts = [event["tokens_seen"] for event in of_kind(events, "step", "epoch")]
    counts += [event["tokens"] for event in of_kind(events, "ended")]
    return max(counts, default=0)


def _seconds(events: Sequence[Event]) -> float:
    """Summed over the stretches that begin with a start and end before the next one.

    Messages do not count: those that a process sends before it goes on would bridge the pause.
    """
    total, begin, end = 0.0, None, 0.0
    for event in events:
        if event["event"] == "message":
            continue
        if event["event"] in ("started", "resumed"):
            total += 0.0 if begin is None else end - begin
            begin = event["time"]
        end = event["time"]
    return total + (0.0 if begin is None else end - begin)
