"""A run killed at any instant leaves a whole checkpoint: the last one it reported as done, or a newer one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from wyrmling.checkpoint import newest_good

HARNESS = Path(__file__).with_name("kill_harness.py")

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the victims are forked")


def run_harness(root: Path, mode: str, kills: int, seed: int) -> dict[str, int]:
    command = [sys.executable, str(HARNESS), str(root), mode, str(kills), str(seed)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    result = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=280)
    assert result.returncode == 0, result.stderr
    report: dict[str, int] = json.loads(result.stdout.splitlines()[-1])
    return report


@pytest.mark.parametrize("mode", ["new", "same"])
def test_kills_during_saves_lose_nothing(tmp_path: Path, mode: str) -> None:
    report = run_harness(tmp_path / "checkpoint", mode, kills=25, seed=11)
    assert report["unfinished"] > 0, "no kill fell into a save: the test proved nothing"
    assert report["saves"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["new", "same"])
@pytest.mark.parametrize("seed", range(4))
def test_hundreds_of_kills_during_saves_lose_nothing(tmp_path: Path, mode: str, seed: int) -> None:
    report = run_harness(tmp_path / "checkpoint", mode, kills=300, seed=seed)
    assert report["unfinished"] > 10


@pytest.mark.slow
@pytest.mark.parametrize("attempt", range(10))
def test_a_kill_anywhere_in_the_life_of_a_process_start_up_included(tmp_path: Path, attempt: int) -> None:
    root = tmp_path / "checkpoint"
    command = [sys.executable, str(HARNESS), str(root), "new", "1000000", str(attempt)]
    process = subprocess.Popen(command, start_new_session=True, stderr=subprocess.DEVNULL)
    time.sleep(0.4 * attempt)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    damaged: list[str] = []
    checkpoint = newest_good(root, on_damaged=lambda path, reason: damaged.append(reason))
    assert damaged == []
    assert checkpoint is None or checkpoint.step == checkpoint.progress["number"]
