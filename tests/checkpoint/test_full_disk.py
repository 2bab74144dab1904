"""A disk that is full in the middle of a save: one line, exit code 4, and everything as it was."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from wyrmling.checkpoint import newest_good, read_pointer, save_checkpoint, write_pointer

pytest.importorskip("resource", reason="limits on file size are a Unix facility")

WRITER = Path(__file__).with_name("full_disk_writer.py")


@pytest.mark.parametrize("limit", [0, 50, 1_000, 200_000, 399_999])
def test_no_room_leaves_the_previous_checkpoint_and_no_temporary(tmp_path: Path, limit: int) -> None:
    save_checkpoint(tmp_path, 10, {"model": {"x": torch.ones(5)}}, {"step": 10})
    write_pointer(tmp_path, "latest", 10)
    before = {path: path.read_bytes() for path in sorted(tmp_path.rglob("*")) if path.is_file()}
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    result = subprocess.run(
        [sys.executable, str(WRITER), str(tmp_path), str(limit)],
        capture_output=True,
        text=True,
        env=environment,
    )
    assert result.returncode == 4, result.stderr
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1
    assert "the file would be larger than the limit on file size" in lines[0]
    assert "step-000000020" in lines[0]
    assert "earlier checkpoints are untouched" in lines[0]
    after = {path: path.read_bytes() for path in sorted(tmp_path.rglob("*")) if path.is_file()}
    assert after == before
    assert list(tmp_path.glob(".*")) == []
    good = newest_good(tmp_path)
    assert good is not None
    assert (good.step, read_pointer(tmp_path, "latest")) == (10, 10)


def test_with_room_the_same_program_saves(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, str(WRITER), str(tmp_path), "500000"], capture_output=True, text=True
    )
    assert (result.returncode, result.stderr) == (0, "")
    good = newest_good(tmp_path)
    assert good is not None
    assert good.step == 20
