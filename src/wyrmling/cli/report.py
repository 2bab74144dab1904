"""`wyrmling report`: a run as a page to read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..watch.streams import say


def report(
    run: Annotated[
        str, typer.Argument(help="A run's name or folder, or `latest`.", metavar="RUN")
    ] = "latest",
    output: Annotated[
        Path | None, typer.Option(help="Where the page goes; report.html in the run's folder.")
    ] = None,
    png: Annotated[
        bool, typer.Option("--png", help="Also write the curves as a PNG beside the page.")
    ] = False,
    show: Annotated[
        bool, typer.Option("--open/--no-open", help="Show the page in the browser afterwards.")
    ] = False,
) -> None:
    """Write curves, figures, samples and settings of a run as one HTML page; print its path."""
    from ..runs import find_run
    from ..watch.report import write_curves, write_report

    directory = find_run(run).path
    page = write_report(directory, output)
    say(str(page))
    if png:
        say(str(write_curves(directory, page.with_suffix(".png"))))
    if show:
        typer.launch(page.absolute().as_uri())
