"""The live panel of a run: what the screen shows, made anew from a few numbers each time."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from rich import box
from rich.console import RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from . import quantities
from .events import StepReport, ValidationReport

MAX_WIDTH = 100
_HISTORY = 2048
_LABEL_WIDTH = 10


@dataclass
class Progress:
    """What is known of a run while it goes; both the panel and the plain lines are written from it."""

    name: str = ""
    total_steps: int | None = None
    step: int = 0
    last: StepReport | None = None
    validation: ValidationReport | None = None
    best: ValidationReport | None = None
    losses: list[float] = field(default_factory=list)
    notes: deque[str] = field(default_factory=lambda: deque(maxlen=3))
    started: float = 0.0
    marks: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=32))

    def record(self, report: StepReport, now: float) -> None:
        """Take in a step; only logged ones carry figures."""
        self.step = report.step
        if report.loss is None:
            return
        self.last = report
        self.marks.append((now, report.step))
        self.losses.append(report.loss)
        if len(self.losses) > _HISTORY:
            halves = zip(self.losses[::2], self.losses[1::2], strict=False)
            self.losses = [(first + second) / 2 for first, second in halves]

    def validated(self, report: ValidationReport) -> None:
        self.validation = report
        if report.best:
            self.best = report

    def seconds_left(self) -> float | None:
        """From the pace of the last logged steps, validation and checkpoints between them included."""
        if self.total_steps is None or len(self.marks) < 2:
            return None
        (since, first), (now, last) = self.marks[0], self.marks[-1]
        if last <= first:
            return None
        return (now - since) / (last - first) * max(0, self.total_steps - last)


def render(progress: Progress, now: float, width: int, *, ascii_only: bool = False) -> RenderableType:
    """The panel, `min(width, MAX_WIDTH)` columns wide; one line per row, cut where it does not fit."""
    width = min(width, MAX_WIDTH)
    inner = max(width - 4, 10)
    rows = Table.grid(padding=(0, 1, 0, 0))
    rows.add_column(style="dim", min_width=_LABEL_WIDTH, no_wrap=True)
    rows.add_column(no_wrap=True, overflow="crop" if ascii_only else "ellipsis")
    for label, value in _rows(progress, inner - _LABEL_WIDTH - 1, ascii_only):
        rows.add_row(label, value)
    body = Table.grid()
    body.add_column(no_wrap=True, overflow="crop" if ascii_only else "ellipsis")
    body.add_row(_bar(progress, now, inner, ascii_only))
    body.add_row(rows)
    for note in progress.notes:
        body.add_row(Text(note, style="dim", no_wrap=True))
    total = "" if progress.total_steps is None else f"/{progress.total_steps}"
    return Panel(
        body,
        title=Text(progress.name, style="bold"),
        title_align="left",
        subtitle=Text(f"step {progress.step}{total}"),
        subtitle_align="right",
        border_style="blue",
        box=box.ASCII if ascii_only else box.ROUNDED,
        width=width,
    )


def _bar(progress: Progress, now: float, width: int, ascii_only: bool) -> Text:
    times = f"{quantities.duration(now - progress.started)} gone"
    left = progress.seconds_left()
    if left is not None:
        times += f", {quantities.duration(left)} left"
    if not progress.total_steps:
        return Text(times)
    share = min(1.0, progress.step / progress.total_steps)
    tail = f" {share:4.0%}  {times}"
    room = max(width - len(tail), 5)
    full = int(share * room)
    done, rest = ("#", "-") if ascii_only else ("━", "─")
    return Text.assemble((done * full, "green"), (rest * (room - full), "dim"), tail)


def _rows(progress: Progress, width: int, ascii_only: bool) -> list[tuple[str, Text]]:
    rows: list[tuple[str, Text]] = []
    last = progress.last
    if last is not None:
        blocks = quantities.ASCII_BLOCKS if ascii_only else quantities.BLOCKS
        curve = quantities.sparkline(progress.losses, max(min(width - 9, 40), 0), blocks)
        rows.append(("loss", Text.assemble((quantities.loss(last.loss), "bold cyan"), "  ", (curve, "cyan"))))
    if progress.validation is not None:
        rows.append(("validation", _validation(progress.validation, progress.best)))
    if last is not None:
        rows.append(("speed", Text("   ".join(_speed(last)))))
        rate = [quantities.learning_rate(last.learning_rate)]
        if last.gradient_norm is not None:
            rate.append(f"gradient {last.gradient_norm:.3g}")
        rate.append(f"{quantities.count(last.tokens_seen)} tokens")
        rows.append(("rate", Text("   ".join(rate))))
    return rows


def _speed(last: StepReport) -> list[str]:
    parts = [f"{quantities.count(last.tokens_per_second)} tokens/s"]
    if last.step_seconds is not None:
        parts.append(f"{quantities.duration(last.step_seconds)}/step")
    if last.memory_bytes is not None:
        parts.append(quantities.size(last.memory_bytes))
    return parts


def _validation(report: ValidationReport, best: ValidationReport | None) -> Text:
    text = Text(quantities.loss(report.loss), style="bold magenta")
    if report.best:
        text.append(" best so far", style="not bold green")
    elif best is not None:
        text.append(f" (best {quantities.loss(best.loss)} at {best.step})", style="not bold green")
    if report.bits_per_byte is not None:
        text.append(f"  {report.bits_per_byte:.3f} bits/byte", style="not bold default")
    return text
