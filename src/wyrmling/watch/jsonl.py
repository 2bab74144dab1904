"""The record of a run: `events.jsonl`, one JSON object per line, only ever appended to.

Every line has `event` (started, resumed, step, validation, checkpoint, epoch, sample, message, ended),
`time` (seconds since 1970, UTC) and `step`, then the fields of the report. A number that is not finite is
written as null: the file is valid JSON throughout. Steps between two logged ones are not written.

A process killed in the middle of a line leaves a torn last line: the next writer cuts it off, a reader
passes over it. A run that goes on from a checkpoint at step S writes `resumed` with that step; events of
later steps that stand before it belong to work that was lost, and are superseded.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from numbers import Integral, Real
from pathlib import Path
from types import UnionType
from typing import Any, BinaryIO, Literal, get_args, get_origin, get_type_hints

from ..errors import DataError, StorageError
from ..files import read_regular, storage_errors
from .events import (
    Callback,
    CheckpointReport,
    EpochReport,
    Message,
    Report,
    RunEnded,
    RunStarted,
    SampleReport,
    StepReport,
    ValidationReport,
)

_TAIL = 1 << 16
_REPORTS: dict[str, type] = {
    "started": RunStarted,
    "resumed": RunStarted,
    "step": StepReport,
    "validation": ValidationReport,
    "checkpoint": CheckpointReport,
    "epoch": EpochReport,
    "sample": SampleReport,
    "message": Message,
    "ended": RunEnded,
}
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0)


class EventLog(Callback):
    """Appends what happens to `path`; each line reaches the operating system before the call returns.

    A line is written whole or not at all: when the disk fills up in the middle of one, the fragment is cut
    off again and the error is raised. Checkpoints also make the record durable (fsync), so that it never
    ends before the checkpoint it led to. A record that somebody removes while the run goes on begins again, and
    `tell` is told.

    `lost` counts whole lines at the end that were no events and were cut off: more than a kill can leave.

    Raises:
        StorageError: no space, no permission, read-only.
    """

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.time) -> None:
        self.path = path
        self.tell: Callable[[Message], None] = self.on_message
        self._clock = clock
        self._step = 0
        with storage_errors(path):
            if path.is_fifo():
                raise StorageError(f"{path} is a pipe, where a record would wait for a reader; move it away")
            self.lost = cut_torn_end(path).count(b"\n")
            self._descriptor: int | None = os.open(path, _FLAGS, 0o666)

    def on_start(self, report: RunStarted) -> None:
        self._write("resumed" if report.resumed else "started", report)

    def on_step(self, report: StepReport) -> None:
        self._step = report.step
        if report.loss is not None:
            self._write("step", report)

    def on_validation(self, report: ValidationReport) -> None:
        self._write("validation", report)

    def on_checkpoint(self, report: CheckpointReport) -> None:
        self._write("checkpoint", report)
        if self._descriptor is not None:
            with storage_errors(self.path):
                os.fsync(self._descriptor)

    def on_epoch(self, report: EpochReport) -> None:
        self._write("epoch", report)

    def on_sample(self, report: SampleReport) -> None:
        self._write("sample", report)

    def on_message(self, report: Message) -> None:
        self._write("message", report)

    def on_end(self, report: RunEnded) -> None:
        self._write("ended", report)
        self.close()

    def close(self) -> None:
        """Close the file; events after this are not recorded."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _write(self, event: str, report: Report) -> None:
        if self._descriptor is None:
            return
        self._step = getattr(report, "step", self._step)
        record = {"event": event, "time": round(self._clock(), 3), "step": self._step}
        for field in fields(report):
            if field.name not in ("control", "step"):
                record[field.name] = _plain(getattr(report, field.name), self.path.parent)
        line = json.dumps(record, ensure_ascii=True, allow_nan=False, separators=(",", ":")) + "\n"
        with storage_errors(self.path):
            self._append(line.encode("ascii"))

    def _append(self, line: bytes) -> None:
        assert self._descriptor is not None
        if os.fstat(self._descriptor).st_nlink == 0:
            os.close(self._descriptor)
            self._descriptor = None
            self._descriptor = os.open(self.path, _FLAGS, 0o666)
            self.tell(Message("warning", "record", f"{self.path.name} was removed: it begins again here"))
        before = os.fstat(self._descriptor).st_size
        written = 0
        try:
            while written < len(line):
                written += os.write(self._descriptor, line[written:])
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, before)
            self.close()
            raise


def read_events(path: Path) -> list[dict[str, Any]]:
    """The events that count, in the order they were written: no torn last line, nothing superseded.

    Raises:
        DataError: there is no such file, it is not a regular one, or a line before the last is no event, or holds
            something else than that event does.
    """
    try:
        lines = read_regular(path, largest=sys.maxsize).split(b"\n")
    except FileNotFoundError:
        raise DataError(f"{path}: no events recorded; is this the directory of a run?") from None
    except (OSError, ValueError) as error:
        raise DataError(
            f"{path} cannot be read: {error}; put it back, or move it away to go on without"
        ) from None
    records = [_parse(line) for line in lines[:-1]]
    while records and records[-1] is None:
        records.pop()
    events: list[dict[str, Any]] = []
    for number, record in enumerate(records, start=1):
        wrong = "not a JSON object with event and step" if record is None else _misfit(record)
        if record is None or wrong is not None:
            raise DataError(f"{path}, line {number}: {wrong}; remove that line to read the others")
        if record["event"] == "resumed":
            events = [event for event in events if event["step"] <= record["step"]]
        events.append(record)
    return events


def cut_torn_end(path: Path) -> bytes:
    """Cut from the end of `path` what is not a whole line with a JSON object, and return it.

    Reads only the end of the file. A file that does not exist is left alone.
    """
    if not path.exists():
        return b""
    with open(path, "rb+") as file:
        size = file.seek(0, os.SEEK_END)
        good = _good_length(file, size)
        file.seek(good)
        torn = file.read(size - good)
        if torn:
            file.truncate(good)
        return torn


def _good_length(file: BinaryIO, size: int) -> int:
    """Where the last good line ends, looking at an end of the file that doubles until one is found."""
    tail = _TAIL
    while True:
        start = max(0, size - tail)
        file.seek(start)
        block = file.read(size - start)
        end = block.rfind(b"\n") + 1
        while end > 0:
            begin = block.rfind(b"\n", 0, end - 1) + 1
            if begin == 0 and start > 0:
                break
            if _parse(block[begin : end - 1]) is not None:
                return start + end
            end = begin
        if start == 0:
            return 0
        tail *= 2


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) and {"event", "step"} <= record.keys() else None


def _misfit(record: Mapping[str, Any]) -> str | None:
    """What of an event is not of its kind; None: nothing. Kinds and keys of later versions pass."""
    if not isinstance(record["event"], str):
        return f"event is {record['event']!r:.40}"
    for key, kinds, needed in _keys_of(record["event"]):
        value = record.get(key)
        if key not in record:
            if needed:
                return f"{record['event'][:40]} without {key}"
        elif not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            return f"{key} is {value!r:.40}"
    return None


@functools.cache
def _keys_of(event: str) -> tuple[tuple[str, tuple[type, ...], bool], ...]:
    """The keys of an event that have plain values: name, types, and whether an event must have it."""
    found = [("step", (int,), True), ("time", (int, float), True)]
    report = _REPORTS.get(event)
    if report is not None:
        hints = get_type_hints(report)
        for item in fields(report):
            hint = hints[item.name]
            kinds: set[Any] = set(get_args(hint)) if isinstance(hint, UnionType) else {hint}
            if get_origin(hint) is Literal:
                kinds = {str}
            if item.name != "step" and kinds <= {int, float, str, bool, type(None)}:
                # a number that is not finite is written as null
                if float in kinds:
                    kinds |= {int, type(None)}
                found.append((item.name, tuple(kinds), item.default is MISSING))
    return tuple(found)


def _plain(value: Any, base: Path) -> Any:
    """JSON-able and finite. Paths inside the run's directory become relative to it: a run can be moved."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Path):
        return (value.relative_to(base) if value.is_relative_to(base) else value).as_posix()
    if isinstance(value, Mapping):
        return {str(key): _plain(entry, base) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(entry, base) for entry in value]
    return str(value)
