"""Watching a run: events, the screen, the record of events, profile, report."""

from __future__ import annotations

from .events import (
    Broadcaster,
    Callback,
    CallbackError,
    CheckpointReport,
    Control,
    EpochReport,
    Message,
    RunEnded,
    RunStarted,
    SampleReport,
    StepReport,
    ValidationReport,
)

__all__ = [
    "Broadcaster",
    "Callback",
    "CallbackError",
    "CheckpointReport",
    "Control",
    "EpochReport",
    "Message",
    "RunEnded",
    "RunStarted",
    "SampleReport",
    "StepReport",
    "ValidationReport",
]
