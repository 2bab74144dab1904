"""Law 4: SIGKILL at any moment, start-up and saves included; then resume: the weights of the run never killed."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
from killed_runs import STEPS, Victim, torment

from small_texts import small_text
from wyrmling.checkpoint import list_checkpoints
from wyrmling.watch.jsonl import read_events

pytestmark = pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGKILL")


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(small_text(), encoding="utf-8", newline="")
    return path


def test_ten_kills_change_nothing(tmp_path: Path, text: Path) -> None:
    """Six at uniform moments, four inside a durable write; at least one is seen to have torn a save."""
    assert torment(tmp_path, text, kills=6, inside=4, seed=1) >= 1


CARRIED = ("training.tbptt_chunk_size=8", "training.tbptt_persist_across_steps=true")


def test_two_kills_change_nothing_with_states_carried(tmp_path: Path, text: Path) -> None:
    """Everything that a checkpoint can hold: a state of four parts, carried from step to step, and Muon's moments."""
    extra = (*CARRIED, "model.sequence_kernel=mamba3", "optimizer.name=muon")
    torment(tmp_path, text, kills=1, inside=1, seed=3, extra=extra)


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("memory", ["linear_attention", "mamba2", "mamba3", "rwkv8"])
def test_twenty_kills_change_nothing_whatever_the_memory(tmp_path: Path, text: Path, memory: str) -> None:
    extra = (*CARRIED, f"model.sequence_kernel={memory}", "optimizer.name=muon")
    torment(tmp_path, text, kills=12, inside=8, seed=4, extra=extra)


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_two_hundred_kills_change_nothing(tmp_path: Path, text: Path) -> None:
    assert torment(tmp_path, text, kills=140, inside=60, seed=2) >= 10


def wait_for_step(victim: Victim, process: subprocess.Popen[str]) -> None:
    """Return once the record shows a step of this process."""
    import time

    for _ in range(600):
        events = victim.path / "events.jsonl"
        if events.is_file() and any(event["event"] == "step" for event in read_events(events)):
            return
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.05)
    raise AssertionError("no step within 30 seconds")


OTHERS = [getattr(signal, name) for name in ("SIGINT", "SIGHUP") if hasattr(signal, name)]


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, *(pytest.param(number, marks=pytest.mark.slow) for number in OTHERS)]
)
def test_a_signal_finishes_the_step_and_saves(tmp_path: Path, text: Path, number: signal.Signals) -> None:
    """Exit code 128 + the signal's number, a checkpoint of the last step, and an exact continuation."""
    victim, straight = Victim(tmp_path, text, "polite"), Victim(tmp_path, text, "straight")
    process = victim.start()
    wait_for_step(victim, process)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + number, errors
    assert "Traceback" not in errors
    (ended,) = [event for event in read_events(victim.path / "events.jsonl") if event["event"] == "ended"]
    assert ended["reason"] == number.name
    assert list_checkpoints(victim.path / "checkpoint")[-1] == ended["step"] < STEPS
    victim.finish()
    straight.finish()
    assert victim.weights() == straight.weights()


def test_a_second_signal_ends_it_at_once(tmp_path: Path, text: Path) -> None:
    """Sent while the first one's save is under way or the step still runs; what is on the disk stays good."""
    victim = Victim(tmp_path, text, "impatient")
    process = victim.start()
    wait_for_step(victim, process)
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode in (128 + signal.SIGINT, 128 + signal.SIGTERM)
    victim.finish()
    assert victim.finished()
