"""`wyrmling doctor`: what this machine offers."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from ..watch.streams import say, say_json


def doctor(
    as_json: Annotated[
        bool, typer.Option("--json", help="Write JSON: an object per finding, by key.")
    ] = False,
    seconds: Annotated[
        float, typer.Option(help="How long to measure matrix products.", min=0.0, max=60.0)
    ] = 1.0,
) -> None:
    """Measure what this machine offers for training, with a line of advice on each point."""
    from ..config import Config, run_root
    from ..watch.survey import survey

    findings = survey(run_root(Config()), seconds=seconds)
    if as_json:
        say_json({finding.key: asdict(finding) for finding in findings}, indent=2)
        return
    width = max(len(finding.label) for finding in findings)
    for finding in findings:
        say(f"{finding.label:<{width}}  {finding.text}")
        say(f"{'':<{width}}  {finding.advice}")
