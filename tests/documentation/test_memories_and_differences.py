"""The pages on memories and on differences say what is so: figures are counted, and every test that is named exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_the_sizes_of_states_on_the_page_are_those_of_real_states(
    capsys: pytest.CaptureFixture[str],
) -> None:
    page = (ROOT / "docs" / "memories.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```python\n(.*?)^```", page, flags=re.M | re.S)
    exec(compile(block, "memories.md", "exec"), {})
    printed = capsys.readouterr().out.split()
    assert printed == ["201,326,600", "4,194,312"]
    assert all(f"{figure} " in page or f"{figure}." in page for figure in printed)


def test_every_test_that_a_page_names_exists() -> None:
    page = (ROOT / "docs" / "differences.md").read_text(encoding="utf-8")
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", page)
    assert len(named) > 30
    for path, name in set(named):
        tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
        assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, (
            f"{path}::{name}"
        )
