"""A bundle that is killed while its second stage runs, and run again, ends with the weights of one that never was."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from killed_runs import SELF_KILLING

from small_texts import small_text
from wyrmling.__main__ import main
from wyrmling.checkpoint import checkpoint_path
from wyrmling.watch.jsonl import read_events

pytestmark = pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGKILL")

STEPS = 16
BUNDLE = f"""
config = "tiny"
set = [
    "dataset.type=local_text", 'dataset.path="text.txt"', "dataset.split=ratio",
    "training.checkpoint_interval_iters=4", "training.validation_interval_iters=8", "training.validation_batches=2",
    "training.log_frequency=4", "model.dropout=0.1", "optimizer.name=muon", "generation.max_tokens=4",
    "runtime.dtype=float32", "runtime.threads=1",
]
[[stages]]
name = "short"
set = ["training.block_size=16", "training.max_iters=8"]
[[stages]]
name = "long"
init_from = "short"
init_checkpoint = "best"
set = [
    "training.block_size=64", "training.max_iters={STEPS}", "training.tbptt_chunk_size=16",
    "training.tbptt_persist_across_steps=true",
]
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "text.txt").write_text(small_text(), encoding="utf-8", newline="")
    (tmp_path / "plays.toml").write_text(BUNDLE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def stage(name: str) -> Path:
    return Path("runs") / "bundles" / name / "stages" / "long" / f"{name}-long"


def weights(name: str) -> dict[str, bytes]:
    last = checkpoint_path(stage(name) / "checkpoint", STEPS)
    return {file.name: file.read_bytes() for file in sorted(last.glob("*.safetensors"))}


def start(*command: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, *command],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def killed_in_the_second_stage(name: str, seconds: float) -> bool:
    """Start the bundle and kill it so long after its second stage has a run; False when it was finished by then."""
    process = start("-m", "wyrmling", "bundle", "plays.toml", "--name", name)
    while not stage(name).is_dir() and process.poll() is None:
        time.sleep(0.005)
    time.sleep(seconds)
    process.send_signal(signal.SIGKILL)
    _, errors = process.communicate(timeout=60)
    assert process.returncode in (0, -signal.SIGKILL), errors
    return process.returncode != 0


def test_killed_at_random_moments_of_the_second_stage(folder: Path) -> None:
    """Lives that end by SIGKILL at a moment, or inside a durable write, drawn at random, and one that does not."""
    assert main(["bundle", "plays.toml", "--name", "straight"]) == 0
    life = read_events(stage("straight") / "events.jsonl")[-1]["seconds"]
    expected = weights("straight")
    assert len(expected) == 3
    draw = random.Random(5)
    for attempt in range(10):
        name = f"victim-{attempt}"
        died = killed_in_the_second_stage(name, draw.uniform(0, life))
        assert main(["bundle", "plays.toml", "--name", name]) == 0
        assert weights(name) == expected
        if died:
            break
    else:
        raise AssertionError("no kill fell into the second stage")
    process = start("-c", SELF_KILLING, str(draw.randint(70, 150)), "bundle", "plays.toml", "--name", "torn")
    process.communicate(timeout=60)
    assert main(["bundle", "plays.toml", "--name", "torn"]) == 0
    assert weights("torn") == expected
