"""How things are measured here.

A machine drifts: absolute figures of two minutes ago mean little. So contestants take turns within one process, each
round runs every one of them once, and what is reported is the ratio of medians over the rounds. Peak memory is the
resident set of a child process that does one thing, above what the same process held before it.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Timing:
    """Seconds per call of one contestant, one number per round."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def spread(self) -> float:
        """(max - min) / median."""
        return (max(self.seconds) - min(self.seconds)) / self.median


def interleaved(contestants: Mapping[str, Callable[[], object]], rounds: int = 5) -> dict[str, Timing]:
    """Time every contestant `rounds` times, in turns, after one unmeasured call of each."""
    for call in contestants.values():
        call()
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, call in contestants.items():
            begun = time.perf_counter()
            call()
            seconds[name].append(time.perf_counter() - begun)
    return {name: Timing(tuple(times)) for name, times in seconds.items()}


def peak_memory(module: str, arguments: Mapping[str, object]) -> int:
    """Bytes that `python -m <module> --measure <json>` needed above its base, as it reports them itself."""
    command = [sys.executable, "-m", module, "--measure", json.dumps(dict(arguments))]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return int(done.stdout.strip().splitlines()[-1])


def table(header: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
