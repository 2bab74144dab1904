"""`wyrmling runs`: what runs there are."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..watch.streams import note, say, say_json

if TYPE_CHECKING:
    from ..watch.overview import Overview

_WIDE = 240
_NARROWEST = 24
"""Characters for the name and the status of a run, at least."""
_FIGURES = ("steps", "loss", "validation", "best", "tokens", "time")


def runs(
    root: Annotated[
        Path | None, typer.Option(help="The folder of the runs; WYRMLING_RUN_ROOT, or `runs`.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON: a list of objects.")] = False,
) -> None:
    """List the runs, the newest last, with how far each has got."""
    from ..watch.overview import list_runs

    folder = root if root is not None else _default_root()
    found = list_runs(folder)
    if as_json:
        say_json([run.as_dict() for run in found], indent=2)
    elif not found:
        note(f"no runs in {folder}; `wyrmling train` begins one")
    else:
        _show(found)


def _default_root() -> Path:
    from ..config import Config, run_root

    return run_root(Config())


def _show(found: list[Overview]) -> None:
    """A table; on a narrow screen names and statuses are broken over lines, figures never."""
    from rich.console import Console
    from rich.table import Table

    from ..watch import quantities

    rows = []
    for run in found:
        figures = run.figures
        of = "" if figures.total_steps is None else f"/{figures.total_steps}"
        rows.append(
            (
                quantities.one_line(run.place) + (" (latest)" if run.latest else ""),
                quantities.one_line(run.status),
                f"{figures.step}{of}",
                quantities.loss(figures.loss),
                quantities.loss(figures.validation_loss),
                quantities.loss(figures.best_loss),
                quantities.count(figures.tokens),
                quantities.duration(figures.seconds),
            )
        )
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("run", overflow="fold")
    table.add_column("status", max_width=40, overflow="fold")
    for name in _FIGURES:
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    console = Console(highlight=False, markup=False, emoji=False)
    columns = zip(*[(_FIGURES), *(row[2:] for row in rows)], strict=True)
    needed = _NARROWEST + sum(2 + max(map(len, column)) for column in columns)
    console.width = max(console.width, needed) if console.is_terminal else _WIDE
    with console.capture() as shown:
        console.print(table)
    say(shown.get(), end="")
