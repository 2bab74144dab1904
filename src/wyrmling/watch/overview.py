"""What runs there are, and how far each has got."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..errors import WyrmlingError
from ..runs import RunDirectory, latest_run, run_names
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
    return sorted(runs, key=lambda run: (run.figures.started or run.path.stat().st_mtime, run.name))


def _overview(path: Path, place: str, latest: RunDirectory | None) -> Overview:
    figures, trouble = Figures(), None
    events = RunDirectory(path, path.name).events_path
    if events.is_file():
        try:
            figures = count_figures(read_events(events))
        except (WyrmlingError, OSError, KeyError, TypeError) as error:
            trouble = f"unreadable: {error}"
    return Overview(path.name, place, path, latest is not None and path == latest.path, figures, trouble)
