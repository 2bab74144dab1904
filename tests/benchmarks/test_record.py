"""What was measured is kept where it belongs, and what became slower is named."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.conditions import conditions, sentence
from benchmarks.record import Report, replaced, shortfalls

from benchmarks import command, record


def test_a_section_replaces_its_own_part_and_nothing_else() -> None:
    page = "# Results\n\nprose\n\n<!-- measured: a -->\nold\n<!-- end of a -->\n\nmore prose\n"
    assert replaced(page, "a", "new") == page.replace("old", "new")
    added = replaced(page, "b", "other")
    assert added.startswith(page.rstrip())
    assert "<!-- measured: b -->\nother\n<!-- end of b -->" in added
    with pytest.raises(ValueError, match="put the mark back"):
        replaced(page.replace("<!-- end of a -->", ""), "a", "new")


def test_only_what_fell_below_the_tolerated_share_is_named() -> None:
    known = {"kept": 2.0, "lost": 2.0, "gone": 1.0}
    assert shortfalls({"kept": 1.41, "lost": 1.39, "new": 0.1}, known) == ["lost: 1.39, recorded 2.00 (70%)"]


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, float]:
    """A section `fake` whose ratios are those of the dictionary, kept in a folder of the test's."""
    ratios = {"size: ours / plain": 3.0}
    section = command.Section(lambda options: Report("full", ratios), lambda options: Report("quick", ratios))
    monkeypatch.setattr(command, "SECTIONS", {"fake": section})
    monkeypatch.setattr(record, "PAGE", tmp_path / "results.md")
    monkeypatch.setattr(record, "RECORDED", tmp_path / "recorded.json")
    return ratios


def test_check_fails_on_what_became_slower_and_quick_runs_write_nothing(
    measured: dict[str, float], capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["--check"]) == 0
    assert "nothing was compared" in capsys.readouterr().out
    assert command.main(["--quick"]) == 0
    assert not record.RECORDED.exists()
    assert command.main([]) == 0
    here = record.machine(conditions())
    assert record.recorded()[here]["fake"]["ratios"] == {"size: ours / plain": 3.0}
    assert "full" in record.PAGE.read_text(encoding="utf-8")
    assert command.main(["--check"]) == 0
    measured["size: ours / plain"] = 2.0
    assert command.main(["--check"]) == 1
    assert "fake, size: ours / plain: 2.00, recorded 3.00 (67%)" in capsys.readouterr().out


def test_only_what_a_machine_like_this_one_recorded_is_compared(
    measured: dict[str, float], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """bfloat16 is worth 4 times float32 on one processor and twice that on another: no loss of speed."""
    assert command.main([]) == 0
    measured["size: ours / plain"] = 1.5
    own = conditions()
    monkeypatch.setattr(command, "conditions", lambda: own | {"processor": "another"})
    assert command.main(["--check"]) == 0
    assert "nothing recorded on a machine like this one (another" in capsys.readouterr().out
    assert command.main([]) == 0, "recorded beside the first one's"
    assert {ratios["fake"]["ratios"]["size: ours / plain"] for ratios in record.recorded().values()} == {
        3.0,
        1.5,
    }
    monkeypatch.setattr(command, "conditions", lambda: own)
    assert command.main(["--check"]) == 1


def test_conditions_are_told_in_one_line() -> None:
    told = sentence(conditions())
    assert "\n" not in told
    assert all(word in told for word in ("threads", "torch"))
