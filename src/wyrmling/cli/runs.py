"""`wyrmling runs`: what runs there are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ..watch.overview import Overview

_WIDE = 240


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
        typer.echo(json.dumps([run.as_dict() for run in found], indent=2))
    elif not found:
        typer.echo(f"no runs in {folder}; `wyrmling train` begins one", err=True)
    else:
        _show(found)


def _default_root() -> Path:
    from ..config import Config, run_root

    return run_root(Config())


def _show(found: list[Overview]) -> None:
    from rich.console import Console
    from rich.table import Table

    from ..watch import quantities

    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = _WIDE
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("run", no_wrap=True)
    table.add_column("status", max_width=40)
    for name in ("steps", "loss", "validation", "best", "tokens", "time"):
        table.add_column(name, justify="right", no_wrap=True)
    for run in found:
        figures = run.figures
        of = "" if figures.total_steps is None else f"/{figures.total_steps}"
        table.add_row(
            quantities.one_line(run.place) + (" (latest)" if run.latest else ""),
            quantities.one_line(run.status),
            f"{figures.step}{of}",
            quantities.loss(figures.loss),
            quantities.loss(figures.validation_loss),
            quantities.loss(figures.best_loss),
            quantities.count(figures.tokens),
            quantities.duration(figures.seconds),
        )
    console.print(table)
