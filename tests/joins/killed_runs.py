"""Runs that are killed and go on: child processes, moments drawn over their whole life, kills inside a save."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from wyrmling.checkpoint import checkpoint_path

STEPS = 48
SETTINGS = [
    "dataset.type=local_text",
    "dataset.split=ratio",
    f"training.max_iters={STEPS}",
    "training.checkpoint_interval_iters=4",
    "training.validation_interval_iters=8",
    "training.validation_batches=2",
    "training.log_frequency=4",
    "training.gradient_accumulation_steps=2",
    "model.dropout=0.1",
    "model.n_embd=64",
    "model.latent_total=1024",
    "generation.max_tokens=8",
    "runtime.threads=1",
]

# A child that ends itself by SIGKILL at the n-th durable write of its life; which call that is, the caller draws.
SELF_KILLING = """
import os, signal, sys
import wyrmling.files as files
from wyrmling.__main__ import main

left = int(sys.argv.pop(1))

def deadly(function):
    def call(*arguments, **options):
        global left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments, **options)
    return call

os.fsync = deadly(os.fsync)
os.replace = deadly(os.replace)
os.rename = deadly(os.rename)
sys.exit(main())
"""


class Victim:
    """One run that is started, killed and resumed until it is finished."""

    def __init__(self, folder: Path, text: Path, name: str, extra: Sequence[str] = ()) -> None:
        self.folder, self.text, self.name, self.extra = folder, text, name, extra
        self.environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "WYRMLING_RUN_ROOT": str(folder / "runs"),
            "WYRMLING_CACHE_DIR": str(folder / "cache"),
        }

    @property
    def path(self) -> Path:
        return self.folder / "runs" / self.name

    def arguments(self) -> list[str]:
        """The command: a fresh start until the run exists, then `--resume`."""
        if self.path.is_dir():
            return ["train", "--resume", self.name]
        settings = [*SETTINGS, f'dataset.path="{self.text.as_posix()}"', f"run_layout.name={self.name}"]
        settings += self.extra
        return ["train", "tiny", *(part for setting in settings for part in ("--set", setting))]

    def start(self, *, die_at_write: int | None = None) -> subprocess.Popen[str]:
        if die_at_write is None:
            command = [sys.executable, "-m", "wyrmling", *self.arguments()]
        else:
            command = [sys.executable, "-c", SELF_KILLING, str(die_at_write), *self.arguments()]
        return subprocess.Popen(
            command,
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def finish(self) -> float:
        """Let it run to its end; its life in seconds."""
        begun = time.monotonic()
        process = self.start()
        _, errors = process.communicate(timeout=240)
        assert process.returncode == 0, errors
        return time.monotonic() - begun

    def kill_after(self, seconds: float) -> bool:
        """Start it and kill it after `seconds`; False when it was finished by then."""
        process = self.start()
        try:
            _, errors = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.communicate()
            return True
        assert process.returncode == 0, errors
        return False

    def die_inside_a_write(self, number: int) -> bool:
        """Start it so that its `number`-th durable write kills it; False when it had fewer."""
        process = self.start(die_at_write=number)
        _, errors = process.communicate(timeout=240)
        assert process.returncode in (0, -signal.SIGKILL), errors
        return process.returncode != 0

    def leftovers(self) -> list[str]:
        """Names of half-made things that a killed save left."""
        return [entry.name for entry in self.path.rglob(".tmp-*")]

    def finished(self) -> bool:
        record = checkpoint_path(self.path / "checkpoint", STEPS) / "progress.json"
        return record.is_file() and json.loads(record.read_text())["finished"]

    def weights(self) -> dict[str, bytes]:
        folder = checkpoint_path(self.path / "checkpoint", STEPS)
        return {file.name: file.read_bytes() for file in sorted(folder.glob("*.safetensors"))}


def torment(
    folder: Path, text: Path, *, kills: int, inside: int, seed: int, extra: Sequence[str] = ()
) -> int:
    """Kill runs `kills` times at uniform moments and `inside` times inside a write; every run must end alike.

    `extra`: more `--set` texts for all of them.

    Returns: how many kills left a half-made file or directory behind, which proves that they fell inside a save.
    """
    straight = Victim(folder, text, "straight", extra)
    life = straight.finish()
    expected = straight.weights()
    assert len(expected) >= 2
    draw = random.Random(seed)
    plan = ["moment"] * kills + ["write"] * inside
    draw.shuffle(plan)
    caught_in_a_save = runs = 0
    victim = Victim(folder, text, "victim-0", extra)
    while plan:
        kind = plan.pop()
        if kind == "moment":
            died = victim.kill_after(draw.uniform(0, life))
        else:
            died = victim.die_inside_a_write(draw.randint(1, 60))
        caught_in_a_save += bool(victim.path.is_dir() and victim.leftovers())
        if not died:
            plan.insert(0, kind)
        if victim.finished():
            assert victim.weights() == expected, f"{victim.name} ended with other weights"
            runs += 1
            victim = Victim(folder, text, f"victim-{runs}", extra)
    if not victim.finished():
        victim.finish()
        assert victim.weights() == expected, f"{victim.name} ended with other weights"
    assert not victim.leftovers()
    return caught_in_a_save
