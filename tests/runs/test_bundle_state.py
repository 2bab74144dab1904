"""The state of a bundle is written whole, read back as it was, and never loses a stage."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from wyrmling.errors import CheckpointError
from wyrmling.runs.bundle_state import FILE, BundleState, read_bundle_state


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    state = BundleState("plays")
    state.arrange(["short", "long"])
    state.stage("short").begin("stages/short/plays-short", {"training": {"seed": 1}}, None)
    state.stage("short").end("completed", 12)
    state.stage("long").begin(
        "stages/long/plays-long", {}, {"stage": "short", "checkpoint": "best", "step": 8}
    )
    state.stage("long").end("failed", error="no space left")
    state.write(tmp_path)
    assert read_bundle_state(tmp_path) == state
    assert [path.name for path in tmp_path.iterdir()] == [FILE]
    document = json.loads((tmp_path / FILE).read_text(encoding="utf-8"))
    assert document["latest_completed_stage"] == "short"
    assert [stage["status"] for stage in document["stages"]] == ["completed", "failed"]


def test_a_stage_that_begins_again_forgets_how_it_failed_and_keeps_when_it_began(tmp_path: Path) -> None:
    record = BundleState("plays").stage("short")
    record.begin("a", {}, None)
    began = record.began
    record.end("failed", 3, "torn")
    record.begin("a", {}, None)
    assert (record.status, record.error, record.ended, record.began) == ("running", None, None, began)
    record.end("interrupted")
    assert record.step == 3


def test_stages_follow_the_file_and_lost_ones_stay(tmp_path: Path) -> None:
    state = BundleState("plays")
    state.arrange(["a", "b", "c"])
    state.stage("b").end("completed", 5)
    state.arrange(["c", "new", "a"])
    assert [(record.name, record.status) for record in state.stages] == [
        ("c", "pending"),
        ("new", "pending"),
        ("a", "pending"),
        ("b", "completed"),
    ]


def test_no_state_is_none(tmp_path: Path) -> None:
    assert read_bundle_state(tmp_path) is None


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "{}",
        '{"version": 1, "bundle_name": "x", "stages": 5}',
        '{"version": 1, "bundle_name": "x", "stages": [{}]}',
        '{"version": 1, "bundle_name": "x", "stages": [{"name": "a", "status": "happy"}]}',
        '{"version": 99, "bundle_name": "x", "stages": []}',
    ],
)
def test_a_damaged_state_is_one_line_that_names_the_file(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text, encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"bundle_state\.json") as caught:
        read_bundle_state(tmp_path)
    assert "\n" not in str(caught.value)
