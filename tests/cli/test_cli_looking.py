"""The commands that look at runs and at the machine: results on standard output, notes on standard error."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from wyrmling.__main__ import main
from wyrmling.watch import Control, RunEnded, RunStarted, StepReport, ValidationReport
from wyrmling.watch.jsonl import EventLog

CONTROL = Control()


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one finished run, which is where the command looks."""
    path = tmp_path / "brave-otter"
    path.mkdir()
    log = EventLog(path / "events.jsonl", clock=lambda: 1000.0)
    log.on_start(RunStarted("brave-otter", path, 0, 20, 10, CONTROL))
    for step in (10, 20):
        log.on_step(StepReport(step, 20, 1e-3, 8, 8 * step, CONTROL, loss=40.0 / step))
    log.on_validation(ValidationReport(20, 2.25, 8, 0.1, CONTROL, best=True))
    log.on_end(RunEnded(20, "finished", 1.0, 160, path, 2.0, 2.25))
    (tmp_path / "latest").write_text("brave-otter")
    monkeypatch.setenv("WYRMLING_RUN_ROOT", str(tmp_path))
    return tmp_path


def test_runs_are_listed_as_a_table(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs"]) == 0
    head, row = capsys.readouterr().out.splitlines()
    assert head.split() == ["run", "status", "steps", "loss", "validation", "best", "tokens", "time"]
    assert row.split() == [
        "brave-otter",
        "(latest)",
        "finished",
        "20/20",
        "2.000",
        "2.250",
        "2.250",
        "160",
        "0ms",
    ]


@pytest.mark.parametrize("columns", ["40", "80"])
def test_a_narrow_screen_breaks_names_never_figures(
    root: Path, columns: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setenv("FORCE_COLOR", "1")  # taken for a terminal
    assert main(["runs"]) == 0
    shown = capsys.readouterr().out.split()
    assert {"20/20", "2.000", "2.250", "160"} <= set(shown)


def test_runs_are_listed_as_json(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "--json"]) == 0
    (record,) = json.loads(capsys.readouterr().out)
    assert record["name"] == "brave-otter"
    assert record["latest"] is True
    assert record["best_loss"] == 2.25


def test_no_runs_is_an_empty_list(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "--root", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []
    assert main(["runs", "--root", str(tmp_path)]) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "wyrmling train" in captured.err


def test_a_report_goes_where_it_is_asked_for(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "pages" / "otter.html"
    assert main(["report", "brave-otter", "--output", str(page), "--png"]) == 0
    assert capsys.readouterr().out.splitlines() == [str(page), str(page.with_suffix(".png"))]
    assert "brave-otter" in page.read_text(encoding="utf-8")
    assert page.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


def test_a_report_of_the_latest_run_lies_in_its_folder(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report"]) == 0
    assert capsys.readouterr().out == f"{root / 'brave-otter' / 'report.html'}\n"


def test_the_browser_opens_only_when_asked(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened: list[str] = []
    monkeypatch.setattr("typer.launch", opened.append)
    assert main(["report", "--no-open"]) == 0
    assert opened == []
    assert main(["report", "--open"]) == 0
    assert opened == [(root / "brave-otter" / "report.html").as_uri()]


def test_an_unknown_run_is_one_line(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "shy-stoat"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: there is no run 'shy-stoat'")


def test_the_doctor_speaks_to_people_and_to_programs(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--seconds", "0", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["disk"]["value"]["path"] == str(root)
    assert record["float32_gflops"]["value"] > 0
    assert main(["doctor", "--seconds", "0"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 * len(record)
    assert all(line.strip() for line in lines)
