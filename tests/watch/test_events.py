"""Reports reach every watcher; a watcher that fails is named; a watcher can end the run."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from wyrmling.errors import StorageError
from wyrmling.watch import (
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

CONTROL = Control()
REPORTS = {
    "on_start": RunStarted("r", Path("runs/r"), 0, 10, 100, CONTROL),
    "on_step": StepReport(1, 10, 1e-3, 8, 8, CONTROL),
    "on_validation": ValidationReport(1, 2.0, 8, 0.1, CONTROL),
    "on_checkpoint": CheckpointReport(1, Path("c"), 10, 0.1, CONTROL),
    "on_epoch": EpochReport(1, 1, 8, CONTROL),
    "on_sample": SampleReport(1, "a", "b", CONTROL),
    "on_message": Message("info", "device", "cpu"),
    "on_end": RunEnded(1, "finished", 1.0, 8, Path("runs/r")),
}


class Recorder(Callback):
    def __init__(self, log: list[tuple[str, str, object]], name: str) -> None:
        for method in REPORTS:
            setattr(self, method, lambda report, method=method: log.append((name, method, report)))


class Failing(Callback):
    def __init__(self, error: BaseException) -> None:
        self.error = error

    def on_step(self, report: StepReport) -> None:
        raise self.error

    def on_end(self, report: RunEnded) -> None:
        raise self.error


@pytest.mark.parametrize("method", list(REPORTS))
def test_each_report_reaches_every_callback_in_order(method: str) -> None:
    log: list[tuple[str, str, object]] = []
    getattr(Broadcaster([Recorder(log, "first"), Recorder(log, "second")]), method)(REPORTS[method])
    assert log == [("first", method, REPORTS[method]), ("second", method, REPORTS[method])]


@pytest.mark.parametrize("method", list(REPORTS))
def test_the_base_callback_ignores_everything(method: str) -> None:
    assert getattr(Callback(), method)(REPORTS[method]) is None


def test_a_failing_callback_is_named_with_its_cause() -> None:
    with pytest.raises(CallbackError, match=r"Failing failed in on_step: ValueError: bad number") as caught:
        Broadcaster([Failing(ValueError("bad number"))]).on_step(REPORTS["on_step"])
    assert isinstance(caught.value.__cause__, ValueError)
    assert caught.value.exit_code == 1


@pytest.mark.parametrize("error", [StorageError("disk full"), KeyboardInterrupt()])
def test_errors_for_people_and_interrupts_pass_unchanged(error: BaseException) -> None:
    with pytest.raises(type(error)) as caught:
        Broadcaster([Failing(error)]).on_step(REPORTS["on_step"])
    assert caught.value is error


def test_the_end_reaches_every_callback_even_when_one_fails() -> None:
    log: list[tuple[str, str, object]] = []
    broadcaster = Broadcaster(
        [Failing(ValueError("first")), Failing(OSError("second")), Recorder(log, "last")]
    )
    with pytest.raises(CallbackError, match="first"):
        broadcaster.on_end(REPORTS["on_end"])
    assert [entry[1] for entry in log] == ["on_end"]


def test_the_first_reason_to_stop_is_kept() -> None:
    control = Control()
    assert not control.stop_requested
    assert control.reason is None
    control.stop("patience")
    control.stop("signal")
    assert control.stop_requested
    assert control.reason == "patience"


def test_reports_cannot_be_changed_by_a_watcher() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        REPORTS["on_step"].loss = 0.0
