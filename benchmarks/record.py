"""Where results are kept: a marked part of docs/results.md per section, and the ratios in recorded.json, per machine.

Prose outside the marks is written by hand and stays. A section that is measured again replaces its own part only, so
every part carries its own conditions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from wyrmling.files import write_atomically, write_json_atomically

from .conditions import sentence
from .harness import ROOT

PAGE = ROOT / "docs" / "results.md"
RECORDED = ROOT / "benchmarks" / "recorded.json"
# What --check lets pass: machines are never quite alike, nor quiet.
TOLERATED = 0.7


@dataclass
class Report:
    """What a section found.

    Attributes:
        text: Markdown.
        ratios: our figure against the other, larger is better; what later measurements are compared with.
    """

    text: str
    ratios: dict[str, float] = field(default_factory=dict)


def keep(section: str, report: Report, conditions: Mapping[str, str]) -> None:
    """Write a section's report into the page and its ratios into the record."""
    body = f"{report.text}\n\n{sentence(dict(conditions))}"
    page = PAGE.read_text(encoding="utf-8") if PAGE.exists() else "# Results\n"
    write_atomically(PAGE, replaced(page, section, body))
    record = recorded()
    rounded = {key: round(value, 3) for key, value in report.ratios.items()}
    found = {"conditions": dict(conditions), "ratios": rounded}
    record.setdefault(machine(conditions), {})[section] = found
    write_json_atomically(RECORDED, record)


def recorded() -> dict[str, dict[str, Any]]:
    """Machine -> section -> conditions and ratios; empty where nothing was recorded."""
    return json.loads(RECORDED.read_text(encoding="utf-8")) if RECORDED.exists() else {}


def machine(conditions: Mapping[str, str]) -> str:
    """What ratios depend on besides the code: what bfloat16 is worth, say, differs between processors."""
    return (
        f"{conditions['processor']}, bfloat16 {conditions['bfloat16']}, {conditions['system']}, "
        f"{conditions['threads']} threads"
    )


def replaced(page: str, section: str, body: str) -> str:
    """`page` with the marked part of a section exchanged, or added at its end.

    Raises:
        ValueError: the part begins but does not end.
    """
    begin, end = f"<!-- measured: {section} -->", f"<!-- end of {section} -->"
    part = f"{begin}\n{body}\n{end}"
    before, found, rest = page.partition(begin)
    if not found:
        return f"{page.rstrip()}\n\n## {section.capitalize()}\n\n{part}\n"
    _, closed, after = rest.partition(end)
    if not closed:
        raise ValueError(f"{begin} has no {end} after it; put the mark back where the measured part ends")
    return before + part + after


def shortfalls(ratios: Mapping[str, float], known: Mapping[str, float]) -> list[str]:
    """A line for every ratio that lies below `TOLERATED` of the recorded one; what is not recorded passes."""
    return [
        f"{key}: {value:.2f}, recorded {known[key]:.2f} ({value / known[key]:.0%})"
        for key, value in ratios.items()
        if key in known and value < TOLERATED * known[key]
    ]
