"""The report of a run: every figure recounted by other means, nothing loaded, nothing unescaped."""

from __future__ import annotations

import json
import math
import random
import statistics
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from wyrmling.config import Config
from wyrmling.errors import CheckpointError, DataError
from wyrmling.watch import (
    CheckpointReport,
    Control,
    Message,
    RunEnded,
    RunStarted,
    SampleReport,
    StepReport,
    ValidationReport,
)
from wyrmling.watch.jsonl import EventLog
from wyrmling.watch.report import write_curves, write_report

CONTROL = Control()
EVIL = '<script>alert("x")</script>&amp; \x00\x1b[2J \ud800 é'


class FakeClock:
    now = 1_750_000_000.0

    def __call__(self) -> float:
        return self.now


class Page(HTMLParser):
    """What a reader of the page gets."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.figures: dict[str, str] = {}
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        entries = dict(attrs)
        self.tags.append((tag, entries))
        if "data-figure" in entries:
            self.figures[str(entries["data-figure"])] = str(entries["data-value"])

    def handle_data(self, data: str) -> None:
        self.text += data


def train(directory: Path, clock: FakeClock, first: int, last: int, *, resumed: bool, end: bool) -> None:
    """A piece of a run of 300 steps: logged every 5, validated every 40, saved every 50."""
    rng = random.Random(first)
    log = EventLog(directory / "events.jsonl", clock=clock)
    log.on_message(Message("info", "device", "cpu"))
    log.on_start(RunStarted("a-<run>", directory, first, 300, 12345, CONTROL, resumed=resumed))
    for step in range(first + 1, last + 1):
        clock.now += 0.5
        logged: dict[str, Any] = {}
        if step % 5 == 0:
            logged = {
                "loss": 5 * math.exp(-step / 60) + rng.random(),
                "gradient_norm": rng.random(),
                "tokens_per_second": 1000 * rng.random(),
                "memory_bytes": rng.randrange(10**9),
            }
        log.on_step(StepReport(step, 300, 1e-3, 16, 16 * step, CONTROL, **logged))
        if step % 40 == 0:
            loss = 5 * math.exp(-step / 60) + rng.random()
            log.on_validation(ValidationReport(step, loss, 99, 0.1, CONTROL, bits_per_byte=loss * 1.44))
        if step % 50 == 0:
            log.on_checkpoint(CheckpointReport(step, directory / "checkpoint" / str(step), 9, 0.1, CONTROL))
            log.on_sample(SampleReport(step, EVIL, f"{EVIL} sample {step}", CONTROL))
    log.on_message(Message("warning", "x", EVIL))
    if end:
        log.on_end(RunEnded(last, "finished", 1.0, 16 * last, directory))
    log.close()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Killed at step 130 (a line torn), gone on from 100, killed at 230, gone on from 200 to the end."""
    directory = tmp_path / "a-run"
    directory.mkdir()
    clock = FakeClock()
    train(directory, clock, 0, 130, resumed=False, end=False)
    with open(directory / "events.jsonl", "ab") as file:
        file.write(b'{"event":"step","step":131,"lo')
    clock.now += 5000
    train(directory, clock, 100, 230, resumed=True, end=False)
    clock.now += 7000
    train(directory, clock, 200, 300, resumed=True, end=True)
    return directory


def recount(directory: Path) -> dict[str, Any]:
    """The same figures, by another way: the last word on each step, found by walking the file backwards."""
    rows = [json.loads(line) for line in (directory / "events.jsonl").read_bytes().splitlines()]
    kept: list[dict[str, Any]] = []
    horizon = math.inf
    for row in reversed(rows):
        if row["step"] <= horizon:
            kept.append(row)
        if row["event"] == "resumed":
            horizon = min(horizon, row["step"])
    kept.reverse()

    def values(kind: str, field: str) -> list[Any]:
        return [row[field] for row in kept if row["event"] == kind]

    best = min(zip(values("validation", "loss"), values("validation", "step"), strict=True))
    return {
        "loss": values("step", "loss")[-1],
        "validation_loss": values("validation", "loss")[-1],
        "bits_per_byte": values("validation", "bits_per_byte")[-1],
        "best_loss": best[0],
        "step": 300,
        "tokens": 16 * 300,
        "seconds": 0.5 * 300,
        "tokens_per_second": statistics.median(values("step", "tokens_per_second")),
        "memory_bytes": max(values("step", "memory_bytes")),
        "parameters": 12345,
        "checkpoints": len(values("checkpoint", "step")),
        "resumed": 2,
        "warnings": len([row for row in kept if row.get("level") == "warning"]),
    }


def test_every_figure_equals_an_independent_count(run: Path) -> None:
    page = Page(write_report(run).read_text(encoding="utf-8"))
    expected = recount(run)
    assert page.figures.keys() == expected.keys()
    for key, value in expected.items():
        assert float(page.figures[key]) == pytest.approx(float(value), rel=1e-12), key
    assert expected["checkpoints"] == 6
    assert expected["warnings"] == 1, "warnings of work that was lost do not count"


def test_the_loss_curve_has_a_point_for_each_logged_step_that_counts(run: Path) -> None:
    page = Page(write_report(run).read_text(encoding="utf-8"))
    lines = [attrs for tag, attrs in page.tags if tag == "polyline" and attrs["class"] == "train raw"]
    assert [len(str(line["points"]).split()) for line in lines] == [300 // 5]
    assert sum(tag == "circle" for tag, _ in page.tags) == 300 // 40
    resumed = [attrs for tag, attrs in page.tags if tag == "line" and attrs.get("class") == "resumed"]
    charts = [attrs for tag, attrs in page.tags if tag == "svg"]
    assert len(charts) == 5
    assert len(resumed) == 2 * len(charts)


def test_the_page_stands_alone(run: Path) -> None:
    html = write_report(run).read_text(encoding="utf-8")
    page = Page(html)
    names = {tag for tag, _ in page.tags}
    assert not names & {"script", "link", "img", "iframe", "object", "base", "form"}
    for _, attrs in page.tags:
        assert not attrs.keys() & {"src", "href", "srcset", "action"}
        assert not [name for name in attrs if name.startswith("on")]
    for forbidden in ("http://", "https://", "url(", "@import"):
        assert forbidden not in html
    assert "prefers-color-scheme: dark" in html


def test_text_from_outside_is_escaped_and_kept(run: Path) -> None:
    (run / "config.json").write_text(json.dumps({"versions": {"host": EVIL}}))
    (run / "training_config.json").write_text(json.dumps({"generation": {"prompt": EVIL}}))
    html = write_report(run).read_text(encoding="utf-8")
    assert "<script" not in html
    assert "\x00" not in html
    assert "\x1b" not in html
    shown = '<script>alert("x")</script>&amp; \\x00\\x1b[2J \\ud800 é'
    text = Page(html).text
    assert f"{shown} sample 300" in text
    assert text.count(shown) >= 2 * 6 + 3
    assert "a-<run>" in text


def test_settings_choices_and_environment_are_shown(run: Path) -> None:
    (run / "config.json").write_text(
        json.dumps(
            {
                "choices": [{"name": "device", "value": "cpu", "reason": "no GPU was found"}],
                "origins": {"training.max_iters": "--set", "model": "small.toml:3"},
                "versions": {"torch": "9.9.9"},
            }
        )
    )
    settings = {"training": {"max_iters": 300, "epochs": None}, "model": {"n_layer": 2}, "seed": 3}
    (run / "training_config.json").write_text(json.dumps(settings))
    html = write_report(run).read_text(encoding="utf-8")
    text = Page(html).text
    for part in ("no GPU was found", "9.9.9", "all 3 settings", "training.max_iters", "small.toml:3"):
        assert part in text
    assert "training.epochs" not in text
    assert html.count('class="changed"') == 2 + 1, "two settings that somebody wrote, one warning"


def test_without_origins_what_differs_from_the_defaults_stands_out(run: Path) -> None:
    settings = {"training": {"max_iters": 300, "block_size": Config().training.block_size}}
    (run / "training_config.json").write_text(json.dumps(settings))
    text = Page(write_report(run).read_text(encoding="utf-8")).text
    assert "training.max_iters300chosen" in text
    assert f"training.block_size{Config().training.block_size}default" in text


def test_choices_that_were_only_told_are_shown_too(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    for reason in ("first", "second"):
        log.on_message(Message("info", "choice.dtype", f"float32 ({reason})"))
        log.on_start(RunStarted("r", tmp_path, 0, 10, 5, CONTROL, resumed=reason == "second"))
    log.close()
    text = Page(write_report(tmp_path).read_text(encoding="utf-8")).text
    section = text[text.index("Automatic choices") : text.index("Messages")]
    assert "dtypefloat32 (second)" in section
    assert "first" not in section


def test_a_run_that_just_began_has_a_report(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    log.on_start(RunStarted("r", tmp_path, 0, 10, 5, CONTROL))
    log.close()
    page = Page(write_report(tmp_path, tmp_path / "deep" / "page.html").read_text(encoding="utf-8"))
    assert page.figures["validation_loss"] == "None"
    assert "unfinished" in page.text
    assert (tmp_path / "deep" / "page.html").exists()


def test_no_events_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no events recorded"):
        write_report(tmp_path)


def test_a_damaged_record_is_named(run: Path) -> None:
    (run / "config.json").write_text("{oops")
    with pytest.raises(CheckpointError, match=r"config.json is damaged: it is not JSON"):
        write_report(run)


def test_curves_as_a_picture(run: Path) -> None:
    path = write_curves(run)
    assert path == run / "report.png"
    assert path.read_bytes().startswith(b"\x89PNG\r\n")
    assert sorted(entry.name for entry in run.iterdir()) == ["events.jsonl", "report.png"]
