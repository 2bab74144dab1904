"""The pages on memories and on differences say what is so: figures are counted, what is named exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from wyrmling.config.rules import RULES

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


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.stem)
def test_every_test_that_a_page_names_exists(page: Path) -> None:
    named = set(re.findall(r"`(tests/[\w/]+(?:\.py)?)(?:::(\w+))?`", page.read_text(encoding="utf-8")))
    assert len(named) > (100 if page.stem == "differences" else -1)
    for path, name in named:
        assert (ROOT / path).exists(), path
        if name:
            tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
            assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, (
                f"{path}::{name}"
            )


def test_every_rule_that_the_page_names_exists() -> None:
    page = (ROOT / "docs" / "differences.md").read_text(encoding="utf-8")
    section = page.partition("\n## Its validations\n")[2].partition("\n## ")[0]
    named = set(re.findall(r"`([a-z]+(?:-[a-z]+)+)`", section))
    assert len(named) > 40
    assert named <= {rule.name for rule in RULES}
