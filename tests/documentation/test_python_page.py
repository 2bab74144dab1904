"""The example of the Python interface runs from top to bottom, as it stands on the page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "python.md"


def test_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), flags=re.M | re.S)
    assert len(blocks) >= 7
    names: dict[str, object] = {}
    for number, block in enumerate(blocks, start=1):
        exec(compile(block, f"{PAGE.name}, block {number}", "exec"), names)
    printed = capsys.readouterr().out
    assert "40 --set" in printed
    assert "recipes/tiny.toml" in printed
    assert "60 steps in all" in printed
    assert float(re.search(r"gradients differ by (\S+)", printed).group(1)) > 1e-3
