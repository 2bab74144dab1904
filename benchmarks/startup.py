"""How long it takes until the first step is done, and how much of a step is not computing.

A child process does what `wyrmling train` does, with a clock between the stages; the command itself is timed beside
it. The text is the one of the recipe `tiny`, once with an empty cache and once with its tokens in the cache.
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from . import harness
from .record import Report

STAGES = {
    "imported": "import",
    "prepared": "text and tokens",
    "begun": "model, optimizer, run directory",
    "stepped": "first step",
}
COMPUTING = ("forward", "backward", "optimizer")
BETWEEN = ("data", "logging", "other")
STEPS = 100
ONE_STEP = [
    "training.max_iters=1",
    "optimizer.lr_schedule.warmup_steps=0",
    "training.sanity_validation=false",
]


def startup(rounds: int) -> Report:
    """Seconds per stage, and the parts of a step of the default recipe."""
    return Report(f"{_stages(rounds)}\n\n{_parts()}")


def _stages(rounds: int) -> str:
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        environment = _places(Path(folder))
        for title, count in (("empty cache", 1), ("tokens in the cache", rounds)):
            marks = [_marks(environment) for _ in range(count)]
            best = min(marks, key=lambda mark: mark["stepped"])
            rows.append([title, *_differences(best)])
            print(" | ".join(rows[-1]), flush=True)
        command = min(_command_seconds(environment) for _ in range(rounds))
    header = ["seconds from the start of the process", *STAGES.values(), "together"]
    return (
        f"Start-up of the recipe `tiny` (the quickest of {rounds}):\n\n{harness.table(header, rows)}\n\n"
        f"The whole command, `wyrmling train tiny` for one step, with its checkpoint, validation and "
        f"sample: {command:.2f} s."
    )


def _places(folder: Path) -> dict[str, str]:
    return {"WYRMLING_RUN_ROOT": str(folder / "runs"), "WYRMLING_CACHE_DIR": str(folder / "cache")}


def _differences(marks: dict[str, float]) -> list[str]:
    """Seconds of every stage, and their sum."""
    times = [0.0, *(marks[name] for name in STAGES)]
    parts = [after - before for before, after in itertools.pairwise(times)]
    return [f"{seconds:.2f}" for seconds in (*parts, times[-1])]


def _marks(environment: dict[str, str]) -> dict[str, float]:
    return dict(harness.measured_by("benchmarks.startup", {"started": time.time()}, environment))


def one_step(started: float) -> dict[str, float]:
    """In a child process: what the command does up to the first step; seconds since `started` by stage."""
    marks: dict[str, float] = {}

    def mark(name: str) -> None:
        marks.setdefault(name, time.time() - started)

    from wyrmling import load_config, prepare_dataset, train
    from wyrmling.watch.console import ConsoleReporter
    from wyrmling.watch.events import Callback

    class Clock(Callback):
        def on_start(self, report: Any) -> None:
            mark("begun")

        def on_step(self, report: Any) -> None:
            mark("stepped")

    mark("imported")
    config = load_config("tiny", ONE_STEP)
    dataset = prepare_dataset(config)
    mark("prepared")
    train(config, dataset=dataset, callbacks=[ConsoleReporter(), Clock()])
    return marks


def _command_seconds(environment: dict[str, str]) -> float:
    begun = time.perf_counter()
    harness.child(["-m", "wyrmling", "train", "tiny", *harness.settings(ONE_STEP)], environment)
    return time.perf_counter() - begun


def _parts() -> str:
    with tempfile.TemporaryDirectory() as folder:
        environment = _places(Path(folder))
        settings = [
            f"training.max_iters={STEPS}",
            "training.sample_tokens=1",
            "training.sample_interval_iters=none",
        ]
        harness.child(["-m", "wyrmling", "train", "shakespeare", *harness.settings(settings)], environment)
        (events,) = Path(folder).glob("runs/*/events.jsonl")
        figures = stage_figures(events)
    steps = sum(figures[f"{name}_ns"] for name in (*COMPUTING, *BETWEEN))
    rows = [
        [name, f"{figures[f'{name}_ns'] / STEPS / 1e6:,.2f} ms", f"{figures[f'{name}_ns'] / steps:.2%}"]
        for name in (*COMPUTING, *BETWEEN)
    ]
    between = sum(figures[f"{name}_ns"] for name in BETWEEN) / steps
    return (
        f"Where a step of the default recipe goes ({STEPS} steps, validation and checkpoints apart); outside forward, "
        f"backward and optimizer: {between:.2%}.\n\n{harness.table(['stage', 'per step', 'share'], rows)}"
    )


def stage_figures(events: Path) -> dict[str, int]:
    """The stage profile that a run's record ends with: nanoseconds and counts by name."""
    from wyrmling.watch.jsonl import read_events
    from wyrmling.watch.profile import STAGE_PROFILE

    texts = [e["text"] for e in read_events(events) if e["event"] == "message" and e["name"] == STAGE_PROFILE]
    pairs = (word.split("=") for word in texts[-1].split() if "=" in word)
    return {key: int(value) for key, value in pairs}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--measure", required=True)
    print(json.dumps(one_step(**json.loads(parser.parse_args().measure))))
