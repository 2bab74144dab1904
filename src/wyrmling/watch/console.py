"""The screen: a live panel in a terminal, one line per event in a pipe or a file.

All of it goes to standard error: standard output belongs to results. A terminal gets the panel unless TERM
is `dumb`; NO_COLOR is respected; where the encoding cannot hold the drawn characters, plain ASCII stands
in. A reader that goes away (a closed pipe, a lost terminal) silences the screen and never ends the run.

The plain lines are made to be searched:

    step 120/400  loss 2.314  lr 1.9e-03  tokens/s 31.2k  memory 512 MB  eta 1m12s
    validation step 100  loss 2.401  bits/byte 3.464  best
    checkpoint step 100  12.3 MB  0.4s  runs/brave-otter/checkpoint/step-000000100
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TextIO, cast

from . import quantities
from .events import (
    Callback,
    CheckpointReport,
    EpochReport,
    Message,
    RunEnded,
    RunStarted,
    SampleReport,
    StepReport,
    ValidationReport,
)
from .panel import Progress, render
from .profile import STAGE_PROFILE
from .streams import PatientStream

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live

_REFRESH_SECONDS = 0.25
_PREPARING_SECONDS = 5.0
_DRAWN = quantities.BLOCKS + "━─╭╮╰╯│…"


class ConsoleReporter(Callback):
    """Shows a run on `stream` (standard error unless given).

    `live` forces the panel (True) or the plain lines (False); None looks at the stream. The panel is
    redrawn when something happens, at most four times a second, by the thread that trains: there is no
    other.
    """

    def __init__(
        self,
        stream: TextIO | None = None,
        *,
        live: bool | None = None,
        width: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.stream = PatientStream(stream if stream is not None else sys.stderr)
        self.live = _is_live_terminal(self.stream) if live is None else live
        self.progress = Progress()
        self._width = width
        self._clock = clock
        self._console: Console | None = None
        self._live: Live | None = None
        self._drawn = 0.0

    def on_start(self, report: RunStarted) -> None:
        now = self._clock()
        self.progress = Progress(report.name, report.total_steps, report.step, started=now)
        self.progress.marks.append((now, report.step))
        self._print(_start_line(report))
        for name, text in report.fingerprint:
            self._print(f"{name}: {text}", "dim")
        if self.live:
            self._open_panel()

    def on_step(self, report: StepReport) -> None:
        now = self._clock()
        self.progress.record(report, now)
        if self.live:
            self._redraw(now)
        elif report.loss is not None:
            self._print(_step_line(report, self.progress.seconds_left()))

    def on_validation(self, report: ValidationReport) -> None:
        self.progress.validated(report)
        if not self.live:
            self._print(_validation_line(report))
        self._redraw()

    def on_checkpoint(self, report: CheckpointReport) -> None:
        facts = (
            f"checkpoint step {report.step}  {quantities.size(report.bytes)}  "
            f"{quantities.duration(report.seconds)}"
        )
        self._note(facts, f"{facts}  {report.path}")

    def on_epoch(self, report: EpochReport) -> None:
        self._note(
            f"epoch {report.epoch} done at step {report.step}  {quantities.count(report.tokens_seen)} tokens"
        )

    def on_sample(self, report: SampleReport) -> None:
        lines = (report.prompt + report.text).split("\n")
        self._print("\n".join([f"sample step {report.step}", *(f"| {line}" for line in lines)]))

    def on_message(self, report: Message) -> None:
        text = quantities.one_line(report.text)
        if report.level == "warning":
            self._print(f"warning: {text}", style="yellow")
        elif report.name.startswith(STAGE_PROFILE):
            if not self.live:
                self._print(text)
        else:
            self._note(f"{report.name.removeprefix('choice.')}: {text}")

    def on_end(self, report: RunEnded) -> None:
        self._redraw()
        self.close()
        self._print(_end_line(report))

    def close(self) -> None:
        """Give the terminal back (the last panel stays on it). Harmless when nothing is open."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    @contextlib.contextmanager
    def preparing(self, title: str) -> Iterator[Callable[[int, int | None], None]]:
        """Yield `progress(done, total)`, in bytes, for work that precedes the run.

        A terminal shows a bar that goes away; elsewhere a line appears every few seconds, none for short
        work.
        """
        if self.live:
            with self._preparing_bar(title) as advance:
                yield advance
        else:
            yield self._preparing_lines(title)

    def _preparing_lines(self, title: str) -> Callable[[int, int | None], None]:
        last = self._clock()

        def advance(done: int, total: int | None) -> None:
            nonlocal last
            if self._clock() - last >= _PREPARING_SECONDS:
                last = self._clock()
                of = "" if total is None else f" of {quantities.size(total)}"
                self._print(f"{title}  {quantities.size(done)}{of}")

        return advance

    @contextlib.contextmanager
    def _preparing_bar(self, title: str) -> Iterator[Callable[[int, int | None], None]]:
        from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
        with Bar(*columns, console=self._screen(), transient=True, auto_refresh=False) as bar:
            task = bar.add_task(title, total=None)

            def advance(done: int, total: int | None) -> None:
                bar.update(task, completed=done, total=total)
                now = self._clock()
                if now - self._drawn >= _REFRESH_SECONDS:
                    self._drawn = now
                    bar.refresh()

            yield advance

    def _screen(self) -> Console:
        if self._console is None:
            from rich.console import Console

            self._console = Console(
                file=cast(TextIO, self.stream),
                force_terminal=True if self.live else None,
                width=self._width,
                highlight=False,
                markup=False,
                emoji=False,
            )
        return self._console

    def _open_panel(self) -> None:
        from rich.live import Live

        self._live = Live(
            console=self._screen(),
            auto_refresh=False,
            redirect_stdout=sys.stdout.isatty(),
            vertical_overflow="crop",
        )
        self._live.start()
        self._redraw()

    def _redraw(self, now: float | None = None) -> None:
        """Draw the panel; with a time given, only if the last drawing is old enough."""
        if self._live is None:
            return
        moment = self._clock() if now is None else now
        if now is not None and moment - self._drawn < _REFRESH_SECONDS:
            return
        self._drawn = moment
        screen = self._screen()
        ascii_only = not quantities.can_print(_DRAWN, self.stream.encoding)
        self._live.update(render(self.progress, moment, screen.width, ascii_only=ascii_only), refresh=True)

    def _note(self, short: str, long: str | None = None) -> None:
        """A thing of passing interest: a row of the panel, or a line."""
        if self._live is None:
            self._print(long or short)
        else:
            self.progress.notes.append(quantities.one_line(short))
            self._redraw()

    def _print(self, text: str, style: str | None = None) -> None:
        safe = quantities.printable(text, self.stream.encoding)
        if self.live:
            from rich.text import Text

            self._screen().print(Text(safe, style=style or ""), soft_wrap=True)
        else:
            self.stream.write(safe + "\n")
            self.stream.flush()


def _is_live_terminal(stream: PatientStream) -> bool:
    return stream.isatty() and os.environ.get("TERM", "") != "dumb"


def _start_line(report: RunStarted) -> str:
    total = "" if report.total_steps is None else f"  {report.total_steps} steps"
    resumed = f"  resumed after step {report.step}" if report.resumed else ""
    state = "" if report.state_bytes is None else f"  state {quantities.size(report.state_bytes)}"
    memory = "" if report.step_bytes is None else f"  about {quantities.size(report.step_bytes)} per step"
    parameters = f"{quantities.count(report.parameters)} parameters"
    return f"run {report.name}  {parameters}{total}{resumed}{state}{memory}  {report.path}"


def _step_line(report: StepReport, seconds_left: float | None) -> str:
    total = "" if report.total_steps is None else f"/{report.total_steps}"
    replaced = f"  new neurons {report.neurons_replaced}" if report.neurons_replaced else ""
    return (
        f"step {report.step}{total}  loss {quantities.loss(report.loss)}  "
        f"lr {quantities.learning_rate(report.learning_rate)}  "
        f"tokens/s {quantities.count(report.tokens_per_second)}  "
        f"memory {quantities.size(report.memory_bytes)}  eta {quantities.duration(seconds_left)}{replaced}"
    )


def _validation_line(report: ValidationReport) -> str:
    bits = "" if report.bits_per_byte is None else f"  bits/byte {report.bits_per_byte:.3f}"
    best = "  best" if report.best else ""
    return f"validation step {report.step}  loss {quantities.loss(report.loss)}{bits}{best}"


def _end_line(report: RunEnded) -> str:
    if report.diverged:
        why = "diverged"
    elif report.reason == "finished":
        why = "finished"
    else:
        why = f"stopped ({quantities.one_line(report.reason)})"
    losses = f"  loss {quantities.loss(report.loss)}"
    if report.validation_loss is not None:
        losses += f"  validation {quantities.loss(report.validation_loss)}"
    return (
        f"{why} at step {report.step}{losses}  {quantities.count(report.tokens)} tokens  "
        f"{quantities.duration(report.seconds)}  {report.path}"
    )
