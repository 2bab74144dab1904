"""What runs there are, and how far each has got."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..errors import WyrmlingError
from .figures import Figures, count_figures
from .jsonl import read_events

EVENTS, LATEST = "events.jsonl", "latest"


@dataclass(frozen=True)
class Overview:
    """One run: its figures, or why there are none (`trouble`)."""

    name: str
    path: Path
    latest: bool
    figures: Figures
    trouble: str | None = None

    @property
    def status(self) -> str:
        return self.figures.status if self.trouble is None else self.trouble

    def as_dict(self) -> dict[str, Any]:
        """JSON-able."""
        record = {"name": self.name, "path": str(self.path), "latest": self.latest, "status": self.status}
        figures = asdict(self.figures)
        return record | {key: value for key, value in figures.items() if key not in record}


def list_runs(root: Path) -> list[Overview]:
    """The runs under `root`, the one begun last at the end; empty when there is no such folder.

    A folder is a run when it holds `config.json` or `events.jsonl`. One that cannot be read is listed with
    the reason, and does not hide the others.
    """
    if not root.is_dir():
        return []
    latest = _latest(root)
    folders = [path for path in root.iterdir() if path.is_dir() and not path.name.startswith(".")]
    runs = [_overview(path, latest) for path in folders if _is_run(path)]
    return sorted(runs, key=lambda run: (run.figures.started or _modified(run.path), run.name))


def _is_run(path: Path) -> bool:
    return any((path / name).is_file() for name in ("config.json", EVENTS))


def _overview(path: Path, latest: str | None) -> Overview:
    figures, trouble = Figures(), None
    if (path / EVENTS).is_file():
        try:
            figures = count_figures(read_events(path / EVENTS))
        except (WyrmlingError, OSError, KeyError, TypeError) as error:
            trouble = f"unreadable: {error}"
    return Overview(path.name, path, path.name == latest, figures, trouble)


def _latest(root: Path) -> str | None:
    try:
        return (root / LATEST).read_text(encoding="utf-8").strip() or None
    except (OSError, UnicodeDecodeError):
        return None


def _modified(path: Path) -> float:
    return path.stat().st_mtime
