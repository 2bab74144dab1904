"""The page on stages shows the bundle that ships, and a plan that is the program's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from wyrmling.config import load_bundle
from wyrmling.training.bundles import Planned, described

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "curriculum.toml"
PAGE = (ROOT / "docs" / "stages.md").read_text(encoding="utf-8")


def test_the_page_shows_the_example_as_it_is() -> None:
    text = EXAMPLE.read_text(encoding="utf-8").partition("\n\n")[2]
    shown = "".join(f"    {line}" if line.strip() else line for line in text.splitlines(keepends=True))
    assert shown in PAGE


def test_the_page_shows_the_plan_that_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WYRMLING_RUN_ROOT")
    bundle = load_bundle(EXAMPLE)
    assert f"bundle {bundle.name} in {bundle.folder}" in PAGE
    for number, stage in enumerate(bundle.stages, start=1):
        line = described(Planned(stage, "begin", stage.run))
        assert f"{number} of {len(bundle.stages)}: {line}  {stage.run}" in PAGE
