"""The page on rewards: its block of Python runs, and so does the example, which learns something."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_the_block_on_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs" / "gdpo.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```python\n(.*?)^```", page, flags=re.M | re.S)
    exec(compile(block, "gdpo.md", "exec"), {})
    assert re.match(r"\(2, 6\) -?0\.0 True\n", capsys.readouterr().out)


@pytest.mark.slow
def test_the_example_raises_its_reward(capsys: pytest.CaptureFixture[str]) -> None:
    example = runpy.run_path(str(ROOT / "examples" / "gdpo_brackets.py"))
    before, after = example["main"]()
    assert after > before + 0.4
    assert f"after: {after:.0%} right" in capsys.readouterr().out
