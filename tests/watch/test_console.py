"""What a run shows: stable lines in a pipe, a panel that fits in a terminal, silence when nobody reads."""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

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
from wyrmling.watch.console import ConsoleReporter
from wyrmling.watch.panel import Progress

CONTROL = Control()
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class FakeClock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Screen(io.TextIOWrapper):
    """A stream with an encoding, that may say it is a terminal."""

    def __init__(self, encoding: str = "utf-8", *, terminal: bool = False) -> None:
        super().__init__(io.BytesIO(), encoding=encoding, newline="\n")
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal

    def text(self) -> str:
        self.flush()
        return self.buffer.getvalue().decode(self.encoding)


def step(number: int, total: int | None = 400, *, logged: bool = True, loss: float = 2.3141) -> StepReport:
    if not logged:
        return StepReport(number, total, 1.9e-3, 2048, 2048 * number, CONTROL)
    return StepReport(
        number,
        total,
        1.9e-3,
        2048,
        2048 * number,
        CONTROL,
        loss=loss,
        gradient_norm=0.823,
        tokens_per_second=31234.0,
        step_seconds=0.25,
        memory_bytes=512_000_000,
    )


def drive(reporter: ConsoleReporter, clock: FakeClock, steps: int = 120) -> None:
    """A whole run, 0.25 s per step."""
    reporter.on_message(Message("info", "choice.device", "cpu (no GPU was found)"))
    reporter.on_start(
        RunStarted(
            "brave-otter",
            Path("runs/brave-otter"),
            0,
            400,
            3_280_000,
            CONTROL,
            fingerprint=(("parallel runtime", "mode=single"), ("training batching", "micro_batch_size=8")),
        )
    )
    for number in range(1, steps + 1):
        clock.now += 0.25
        reporter.on_step(step(number, logged=number % 10 == 0))
    reporter.on_validation(ValidationReport(100, 2.401, 99, 1.0, CONTROL, bits_per_byte=3.4641, best=True))
    reporter.on_validation(ValidationReport(120, 2.5, 99, 1.0, CONTROL))
    reporter.on_checkpoint(CheckpointReport(100, Path("runs/c"), 12_300_000, 0.41, CONTROL))
    reporter.on_epoch(EpochReport(1, 100, 204_800, CONTROL))
    reporter.on_sample(SampleReport(100, "To be", " or\x1b[2J\nnot ☃", CONTROL))
    reporter.on_message(Message("warning", "gradient", "large\ngradient"))
    reporter.on_end(RunEnded(120, "SIGINT", 65.2, 245_760, Path("runs/brave-otter"), 2.1, 2.4))


def test_lines_in_a_pipe_are_stable() -> None:
    screen, clock = Screen(), FakeClock()
    drive(ConsoleReporter(screen, clock=clock), clock, steps=20)
    assert screen.text().splitlines() == [
        "device: cpu (no GPU was found)",
        "run brave-otter  3.28M parameters  400 steps  runs/brave-otter",
        "parallel runtime: mode=single",
        "training batching: micro_batch_size=8",
        "step 10/400  loss 2.314  lr 1.9e-03  tokens/s 31.2k  memory 512 MB  eta 1m38s",
        "step 20/400  loss 2.314  lr 1.9e-03  tokens/s 31.2k  memory 512 MB  eta 1m35s",
        "validation step 100  loss 2.401  bits/byte 3.464  best",
        "validation step 120  loss 2.500",
        "checkpoint step 100  12.3 MB  0.4s  runs/c",
        "epoch 1 done at step 100  205k tokens",
        "sample step 100",
        "| To be or\\x1b[2J",
        "| not ☃",
        "warning: large\\ngradient",
        "stopped (SIGINT) at step 120  loss 2.100  validation 2.400  246k tokens  1m05s  runs/brave-otter",
    ]


def test_a_resumed_run_says_so_and_an_endless_one_has_no_total() -> None:
    screen, clock = Screen(), FakeClock()
    reporter = ConsoleReporter(screen, clock=clock)
    reporter.on_start(RunStarted("r", Path("r"), 50, None, 10, CONTROL, resumed=True))
    reporter.on_step(step(51, None))
    reporter.on_end(RunEnded(51, "finished", 1.0, 8, Path("r")))
    first, second, last = screen.text().splitlines()
    assert first == "run r  10 parameters  resumed after step 50  r"
    assert second.startswith("step 51  loss 2.314")
    assert second.endswith("eta -")
    assert last.startswith("finished at step 51  loss -  8 tokens")


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "utf-8"])
@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_no_line_of_the_panel_is_wider_than_the_terminal(width: int, encoding: str) -> None:
    screen, clock = Screen(encoding), FakeClock()
    reporter = ConsoleReporter(screen, live=True, width=width, clock=clock)
    drive(reporter, clock)
    text = ESCAPE.sub("", screen.text())
    frames = [line for line in re.split(r"[\r\n]", text) if line[:1] in ("╭", "│", "╰", "+", "|")]
    panel = [line for line in frames if not line.startswith("| ") or line.endswith("|")]
    assert len(panel) > 20
    assert {len(line) for line in panel} == {min(width, 100)}


def test_the_panel_shows_the_figures_and_leaves_the_terminal_as_it_was() -> None:
    screen, clock = Screen(), FakeClock()
    drive(ConsoleReporter(screen, live=True, width=60, clock=clock), clock)
    raw = screen.text()
    last_frame = ESCAPE.sub("", raw[raw.rindex("╭") :])
    for part in (
        "brave-otter",
        "step 120/400",
        "30%",
        "30s gone, 1m10s left",
        "2.314",
        "2.500 (best 2.401 at 100)",
        "31.2k tokens/s   0.2s/step   512 MB",
        "1.9e-03   gradient 0.823   246k tokens",
        "checkpoint step 100  12.3 MB  0.4s",
        "epoch 1 done at step 100",
    ):
        assert part in last_frame, part
    assert raw.count("\x1b[?25l") == raw.count("\x1b[?25h") == 1, "the cursor is hidden once and shown again"
    assert "\x1b[2J" not in raw, "the screen is never cleared, by us or by a sample"
    assert "stopped (SIGINT)" in last_frame


def test_the_panel_is_drawn_at_most_four_times_a_second() -> None:
    screen, clock = Screen(), FakeClock()
    reporter = ConsoleReporter(screen, live=True, width=60, clock=clock)
    reporter.on_start(RunStarted("r", Path("r"), 0, 1000, 10, CONTROL))
    before = screen.text().count("╭")
    for number in range(1, 1001):
        clock.now += 0.001
        reporter.on_step(step(number, 1000))
    assert 3 <= screen.text().count("╭") - before <= 4
    reporter.close()


def test_no_colour_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    screen, clock = Screen(), FakeClock()
    drive(ConsoleReporter(screen, live=True, width=60, clock=clock), clock)
    codes = set(re.findall(r"\x1b\[([0-9;]*)m", screen.text()))
    assert not [code for code in codes if re.search(r"(^|;)(3|4|9|10)[0-7]", code)]


@pytest.mark.parametrize(("term", "live"), [("xterm-256color", True), ("dumb", False)])
def test_a_dumb_terminal_gets_lines(term: str, live: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", term)
    assert ConsoleReporter(Screen(terminal=True)).live is live
    assert ConsoleReporter(Screen(terminal=False)).live is False


def test_time_left_follows_the_pace_with_pauses_included() -> None:
    progress = Progress(total_steps=100)
    assert progress.seconds_left() is None
    progress.record(step(10, 100), 10.0)
    progress.record(step(20, 100), 40.0)
    assert progress.seconds_left() == pytest.approx(240.0)


def test_memory_of_the_curve_is_bounded() -> None:
    progress = Progress(total_steps=None)
    for number in range(1, 10_000):
        progress.record(step(number, None, loss=10_000.0 - number), float(number))
    assert len(progress.losses) <= 2048
    assert progress.losses == sorted(progress.losses, reverse=True)


def test_preparation_is_silent_when_short_and_reports_when_long() -> None:
    screen, clock = Screen(), FakeClock()
    reporter = ConsoleReporter(screen, clock=clock)
    with reporter.preparing("tokenising") as advance:
        for second in range(12):
            clock.now = float(second)
            advance(second * 1_000_000, 20_000_000)
    assert screen.text().splitlines() == [
        "tokenising  5.00 MB of 20.0 MB",
        "tokenising  10.0 MB of 20.0 MB",
    ]


def test_preparation_in_a_terminal_leaves_nothing_behind() -> None:
    screen, clock = Screen(), FakeClock()
    reporter = ConsoleReporter(screen, live=True, width=60, clock=clock)
    with reporter.preparing("tokenising") as advance:
        for second in range(3):
            clock.now = float(second)
            advance(second * 1_000_000, None if second == 0 else 2_000_000)
    text = screen.text()
    assert "tokenising" in text
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h")


def test_a_reader_that_leaves_ends_nothing_and_the_exit_code_stays() -> None:
    program = textwrap.dedent(
        """
        import sys, time
        from pathlib import Path
        from wyrmling.watch import Control, RunStarted, StepReport, RunEnded
        from wyrmling.watch.console import ConsoleReporter
        reporter = ConsoleReporter(live=LIVE, width=60)
        reporter.on_start(RunStarted("r", Path("r"), 0, 10, 10, Control()))
        sys.stdin.readline()
        for step in range(1, 2000):
            reporter.on_step(StepReport(step, 10, 1e-3, 8, 8, Control(), loss=1.0))
        reporter.on_end(RunEnded(2000, "finished", 1.0, 8, Path("r")))
        print("trained to the end")
        """
    )
    for live in (False, True):
        child = subprocess.Popen(
            [sys.executable, "-c", program.replace("LIVE", str(live))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert child.stderr is not None
        assert child.stdout is not None
        child.stderr.readline()
        child.stderr.close()
        assert _finish(child) == "trained to the end\n"
        assert child.returncode == 0


def _finish(child: subprocess.Popen[str]) -> str:
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write("\n")
    child.stdin.close()
    output = child.stdout.read()
    child.stdout.close()
    child.wait()
    return output


def test_a_closed_stream_is_silence() -> None:
    screen = Screen()
    reporter = ConsoleReporter(screen)
    screen.close()
    reporter.on_step(step(1))
    assert reporter.stream.gone


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_log_on_a_full_disk_is_silence() -> None:
    with contextlib.suppress(OSError), open("/dev/full", "w") as full:
        reporter = ConsoleReporter(full)
        reporter.on_step(step(1))
        assert reporter.stream.gone
