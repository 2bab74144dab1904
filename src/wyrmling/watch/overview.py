"""What runs there are, and how far each has got."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..checkpoint import list_checkpoints
from ..errors import WyrmlingError
from ..files import refusal
from ..runs import RunDirectory, latest_run, run_names
from ..runs.finding import changed
from .figures import Figures, count_figures
from .jsonl import read_events


@dataclass(frozen=True)
class Overview:
    """One run: its figures, or why there are none (`trouble`).

    `place` is its path below the folder of the runs: the name, where it lies in no folder of its own.
    """

    name: str
    place: str
    path: Path
    latest: bool
    figures: Figures
    trouble: str | None = None

    @property
    def status(self) -> str:
        return self.figures.status if self.trouble is None else self.trouble

    def as_dict(self) -> dict[str, Any]:
        """JSON-able."""
        record: dict[str, Any] = {"name": self.name, "place": self.place, "path": str(self.path)}
        record |= {"latest": self.latest, "status": self.status}
        figures = asdict(self.figures)
        return record | {key: value for key, value in figures.items() if key not in record}


def list_runs(root: Path) -> list[Overview]:
    """The runs under `root`, the one begun last at the end; empty when there is no such folder.

    A run that cannot be read is listed with the reason, and does not hide the others.
    """
    latest = latest_run(root)
    runs = [_overview(root / place, place, latest) for place in run_names(root)]
    return sorted(runs, key=lambda run: (run.figures.started or changed(run.path), run.name))


def cut_short(figures: Figures, newest: int) -> str | None:
    """The status of a run whose events end before its newest checkpoint, as they do when some are lost; else None."""
    if figures.step >= newest:
        return None
    return f"{figures.status}, but its events end before its checkpoint of step {newest}"


def _overview(path: Path, place: str, latest: RunDirectory | None) -> Overview:
    figures, trouble = Figures(), None
    run = RunDirectory(path, path.name)
    saved: list[int] = []
    try:
        # before the events are read: a run that is under way saves first, then records it
        saved = list_checkpoints(run.checkpoints)
        if os.path.lexists(run.events_path):
            figures = count_figures(read_events(run.events_path))
    except (WyrmlingError, OSError) as error:
        trouble = f"unreadable: {refusal(error) if isinstance(error, OSError) else error}"
    if trouble is None and saved:
        trouble = cut_short(figures, saved[-1])
    return Overview(path.name, place, path, latest is not None and path == latest.path, figures, trouble)
