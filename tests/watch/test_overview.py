"""Listing runs: all of them, in order, none hidden by a damaged one."""

from __future__ import annotations

import json
from pathlib import Path

from wyrmling.watch import Control, RunEnded, RunStarted, StepReport
from wyrmling.watch.jsonl import EventLog
from wyrmling.watch.overview import list_runs

CONTROL = Control()


def make_run(root: Path, name: str, begun: float, *, loss: float = 1.5, end: bool = True) -> Path:
    path = root / name
    path.mkdir(parents=True)
    log = EventLog(path / "events.jsonl", clock=lambda: begun)
    log.on_start(RunStarted(name, path, 0, 4, 10, CONTROL))
    log.on_step(StepReport(4, 4, 1e-3, 8, 32, CONTROL, loss=loss))
    if end:
        log.on_end(RunEnded(4, "finished", 1.0, 32, path, loss))
    log.close()
    return path


def test_runs_come_in_the_order_they_began_with_the_latest_marked(tmp_path: Path) -> None:
    make_run(tmp_path, "a", 300.0)
    make_run(tmp_path, "b", 100.0)
    make_run(tmp_path, "c", 200.0, end=False)
    (tmp_path / "latest").write_text("c\n")
    found = list_runs(tmp_path)
    assert [(run.name, run.status, run.latest) for run in found] == [
        ("b", "finished", False),
        ("c", "unfinished", True),
        ("a", "finished", False),
    ]
    assert found[0].figures.loss == 1.5
    assert found[0].figures.tokens == 32


def test_what_is_not_a_run_is_not_listed(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "file").write_text("")
    assert list_runs(tmp_path) == []
    assert list_runs(tmp_path / "nowhere") == []


def test_a_run_without_events_and_a_damaged_one_are_listed_with_the_others(tmp_path: Path) -> None:
    make_run(tmp_path, "good", 100.0)
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "config.json").write_text("{}")
    bad = make_run(tmp_path, "bad", 100.0) / "events.jsonl"
    bad.write_bytes(b"nonsense\n" + bad.read_bytes())
    old = make_run(tmp_path, "strange", 100.0) / "events.jsonl"
    old.write_text('{"event":"started","step":0}\n')
    status = {run.name: run.status for run in list_runs(tmp_path)}
    assert status["good"] == "finished"
    assert status["new"] == "not started"
    assert status["bad"].startswith("unreadable: ")
    assert "line 1" in status["bad"]
    assert status["strange"].startswith("unreadable: ")


def test_an_overview_is_json(tmp_path: Path) -> None:
    make_run(tmp_path, "a", 100.0, loss=float("nan"))
    (run,) = list_runs(tmp_path)
    record = json.loads(json.dumps(run.as_dict(), allow_nan=False))
    assert record["name"] == "a"
    assert record["path"] == str(tmp_path / "a")
    assert record["loss"] is None
    assert record["tokens"] == 32
