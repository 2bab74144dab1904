"""How things are measured here.

A machine drifts: absolute figures of two minutes ago mean little. So contestants take turns within one process, each
round runs every one of them once, and what is reported is the ratio of medians over the rounds. Peak memory is the
resident set of a child process that does one thing, above what the same process held before it.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wyrmling.errors import WyrmlingError

ROOT = Path(__file__).resolve().parents[1]
# A contestant that takes longer than this for all its rounds together runs in fewer, at least two.
PATIENCE_SECONDS = 60.0


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


def interleaved(
    contestants: Mapping[str, Callable[[], object]], rounds: int = 5, *, patience: float = PATIENCE_SECONDS
) -> dict[str, Timing]:
    """Time every contestant `rounds` times, in turns, after one unmeasured call of each.

    Args:
        patience: seconds for the rounds of one contestant; one that would need more runs in the first rounds only,
            at least two (one, where one was asked for).
    """
    turns = {}
    for name, call in contestants.items():
        affordable = math.floor(patience / max(_seconds(call), 1e-9))
        turns[name] = min(rounds, max(affordable, 2))
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(rounds):
        for name, call in contestants.items():
            if number < turns[name]:
                seconds[name].append(_seconds(call))
    return {name: Timing(tuple(times)) for name, times in seconds.items()}


def _seconds(call: Callable[[], object]) -> float:
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def child(arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> str:
    """The standard output of `python <arguments>` in a process of its own.

    Raises:
        WyrmlingError: it failed; its last line of complaint is in the message.
    """
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise WyrmlingError(f"python {' '.join(arguments[:3])} failed with code {done.returncode}: {said}")
    return done.stdout


def settings(texts: Iterable[str]) -> list[str]:
    """`--set` before every text, for the command line."""
    return [word for text in texts for word in ("--set", text)]


def measured_by(
    module: str, arguments: Mapping[str, Any], environment: Mapping[str, str] | None = None
) -> Any:
    """What `python -m <module> --measure <json>` prints as the last line of its output, read as JSON."""
    output = child(["-m", module, "--measure", json.dumps(dict(arguments))], environment)
    return json.loads(output.strip().splitlines()[-1])


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
