"""events.jsonl: valid JSON whatever happens, no whole line lost, nothing kept that was superseded."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wyrmling.errors import DataError, StorageError
from wyrmling.watch import (
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
from wyrmling.watch.jsonl import EventLog, cut_torn_end, read_events

CONTROL = Control()


def start(log: EventLog, step: int = 0, *, resumed: bool = False) -> None:
    log.on_start(RunStarted("r", log.path.parent, step, 100, 10, CONTROL, resumed=resumed))


def take_step(log: EventLog, step: int, loss: float | None = 1.0) -> None:
    log.on_step(StepReport(step, 100, 1e-3, 8, 8 * step, CONTROL, loss=loss))


def strict(line: bytes) -> object:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    return json.loads(line, parse_constant=refuse)


def test_every_report_becomes_one_line_with_its_fields(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl", clock=lambda: 12.3456)
    log.on_message(Message("warning", "data", "3 empty documents", {"count": np.int64(3)}))
    start(log)
    take_step(log, 1, 2.5)
    log.on_validation(ValidationReport(1, 2.0, 8, 0.1, CONTROL, bits_per_byte=2.9, best=True))
    log.on_checkpoint(CheckpointReport(1, tmp_path / "checkpoint" / "step-1", 10, 0.1, CONTROL))
    log.on_epoch(EpochReport(1, 1, 8, CONTROL))
    log.on_sample(SampleReport(1, "To be", " or\n\x1b\ud800not", CONTROL))
    log.on_end(RunEnded(1, "finished", 1.0, 8, tmp_path, loss=2.5))
    lines = log.path.read_bytes().splitlines()
    events = [strict(line) for line in lines]
    assert [event["event"] for event in events] == [
        "message",
        "started",
        "step",
        "validation",
        "checkpoint",
        "epoch",
        "sample",
        "ended",
    ]
    assert all(list(event)[:3] == ["event", "time", "step"] for event in events)
    assert all(event["time"] == 12.346 for event in events)
    assert not any("control" in event for event in events)
    assert events[0]["data"] == {"count": 3}
    assert events[2]["loss"] == 2.5
    assert events[3]["best"] is True
    assert events[4]["path"] == "checkpoint/step-1"
    assert events[6]["text"] == " or\n\x1b\ud800not"
    assert read_events(log.path) == events


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, np.float32("nan")])
def test_numbers_that_are_not_finite_are_null(value: float, tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    take_step(log, 1, value)
    log.on_message(Message("info", "x", "y", {"deep": [{"value": value}]}))
    records = [strict(line) for line in log.path.read_bytes().splitlines()]
    assert records[0]["loss"] is None
    assert records[1]["data"] == {"deep": [{"value": None}]}


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_finite_numbers_survive_exactly(value: float) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        log = EventLog(Path(folder) / "events.jsonl")
        take_step(log, 1, value)
        log.close()
        assert read_events(log.path)[0]["loss"] == value


def test_steps_between_logged_ones_are_not_written(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    for step in range(1, 10):
        take_step(log, step, 1.0 if step % 3 == 0 else None)
    assert [event["step"] for event in read_events(log.path)] == [3, 6, 9]


def test_each_line_is_in_the_file_before_the_call_returns(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    for step in range(1, 4):
        take_step(log, step)
        assert read_events(log.path)[-1]["step"] == step


@given(cut=st.integers(0, 400))
@settings(deadline=None)
def test_a_record_cut_anywhere_keeps_its_whole_lines_and_can_go_on(cut: int) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "events.jsonl"
        log = EventLog(path)
        for step in range(1, 4):
            take_step(log, step, 1.0 / step)
        log.close()
        whole = path.read_bytes()
        kept = whole[: min(cut, len(whole))]
        path.write_bytes(kept)
        count = kept.count(b"\n")
        assert [event["step"] for event in read_events(path)] == list(range(1, count + 1))
        log = EventLog(path)
        take_step(log, 50)
        log.close()
        assert [event["step"] for event in read_events(path)] == [*range(1, count + 1), 50]


def test_a_torn_end_longer_than_the_part_first_looked_at_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    good = b'{"event":"message","step":0,"text":"' + b"a" * 300_000 + b'"}\n'
    path.write_bytes(good + b"\x00" * 200_000 + b'\n{"event":"st')
    assert len(cut_torn_end(path)) == 200_000 + 13
    assert path.read_bytes() == good


def test_a_file_with_no_whole_line_becomes_empty(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'{"event"')
    assert read_events(path) == []
    assert len(cut_torn_end(path)) == 8
    assert path.read_bytes() == b""


def test_events_after_the_resumed_step_are_superseded(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    log = EventLog(path)
    start(log)
    for step in (10, 20, 30):
        take_step(log, step, loss=100.0 + step)
    log.close()
    log = EventLog(path)
    start(log, 20, resumed=True)
    take_step(log, 30, loss=1.0)
    log.close()
    log = EventLog(path)
    start(log, 10, resumed=True)
    take_step(log, 20, loss=2.0)
    log.close()
    events = read_events(path)
    assert [(event["event"], event["step"]) for event in events] == [
        ("started", 0),
        ("step", 10),
        ("resumed", 10),
        ("step", 20),
    ]
    assert events[-1]["loss"] == 2.0
    assert len(path.read_bytes().splitlines()) == 8, "the file itself is only appended to"


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("{oops", "not a JSON object"),
        ("[]", "not a JSON object"),
        ("{" * 100_000, "not a JSON object"),
        ('{"event":"epoch","step":"1","time":1,"epoch":1,"tokens_seen":2}', "step is '1'"),
        ('{"event":"epoch","step":1,"time":true,"epoch":1,"tokens_seen":2}', "time is True"),
        ('{"event":"epoch","step":1,"time":1,"epoch":1}', "epoch without tokens_seen"),
        ('{"event":"validation","step":1,"time":1,"loss":"low","tokens":2,"seconds":1}', "loss is 'low'"),
        ('{"event":[],"step":1}', "event is"),
    ],
)
def test_a_damaged_line_in_the_middle_is_named_with_what_is_wrong(
    tmp_path: Path, line: str, told: str
) -> None:
    path = tmp_path / "events.jsonl"
    whole = '{"event":"epoch","step":1,"time":1,"epoch":1,"tokens_seen":2,"later":[]}'
    path.write_text(f"{whole}\n{line}\n{whole}\n")
    with pytest.raises(DataError, match="line 2: .*" + re.escape(told)) as caught:
        read_events(path)
    assert len(str(caught.value)) < 400


def test_no_file_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no events recorded"):
        read_events(tmp_path / "events.jsonl")


def test_nothing_is_written_after_the_end(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    log.on_end(RunEnded(1, "finished", 1.0, 8, tmp_path))
    take_step(log, 2)
    assert [event["event"] for event in read_events(log.path)] == ["ended"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_is_a_storage_error() -> None:
    log = EventLog(Path("/dev/full"))
    with pytest.raises(StorageError, match="no space left"):
        take_step(log, 1)
    take_step(log, 2)


_LIMITED = """
import resource, sys
from pathlib import Path
from wyrmling.errors import StorageError
from wyrmling.watch import Control, StepReport
from wyrmling.watch.jsonl import EventLog, read_events
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
log = EventLog(Path(sys.argv[1]))
try:
    for step in range(1, 100):
        log.on_step(StepReport(step, 100, 1e-3, 8, 8, Control(), loss=1.0))
except StorageError as error:
    print(step, error)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs a limit on file size")
def test_a_line_that_does_not_fit_leaves_no_fragment(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    child = subprocess.run(
        [sys.executable, "-c", _LIMITED, str(path)], capture_output=True, text=True, check=True
    )
    failed = int(child.stdout.split()[0])
    assert "limit on file size" in child.stdout
    assert path.read_bytes().endswith(b"}\n")
    assert [event["step"] for event in read_events(path)] == list(range(1, failed))
