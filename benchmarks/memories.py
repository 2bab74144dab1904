"""The four memories on tiny Shakespeare, at equal weights and equal characters, beside the small GPT.

Each recipe trains in a process of its own, in turn, seed by seed; every seed is shown. All are scored on the whole
validation part with the weights of the last step.
"""

from __future__ import annotations

import json
import math
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path

from wyrmling.watch.jsonl import read_events

from . import harness
from .record import Report
from .yardstick import Outcome, small_gpt, text_settings, trained

RECIPES = {
    "linear attention": "shakespeare-cpu",
    "Mamba-2": "shakespeare-mamba2",
    "Mamba-3": "shakespeare-mamba3",
    "RWKV-8": "shakespeare-rwkv8",
}


@dataclass(frozen=True)
class Entry:
    """One trained model.

    Attributes:
        memory_bytes: resident in training, the largest that was reported.
        state_bytes: of one row; None where there is no state.
    """

    who: str
    outcome: Outcome
    memory_bytes: int | None
    state_bytes: int | None

    @property
    def loss(self) -> float:
        """Nats per character, in windows of the training length."""
        return next(iter(self.outcome.losses.values()))


def memories(text: str | None, seeds: int, extra: list[str]) -> Report:
    """Train all of them and compare.

    Args:
        text: the file of tiny Shakespeare; None lets the recipe fetch it.
        extra: more `--set` texts for our recipes.
    """
    data = text_settings(text)
    entries = []
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(1, seeds + 1):
            for who, recipe in RECIPES.items():
                entries.append(_ours(who, recipe, Path(folder), [*data, *extra], seed))
                print(" | ".join(_row(entries[-1])), flush=True)
            outcome = small_gpt(data, seed, low=True)
            entries.append(Entry("small GPT", outcome, outcome.memory_bytes, None))
            print(" | ".join(_row(entries[-1])), flush=True)
    return _report(entries)


def _ours(who: str, recipe: str, folder: Path, settings: list[str], seed: int) -> Entry:
    run = trained(recipe, folder, settings, seed)
    record = json.loads((run.path / "config.json").read_text(encoding="utf-8"))
    events = read_events(run.path / "events.jsonl")
    used = [event["memory_bytes"] for event in events if event.get("memory_bytes")]
    rows = record["training_batch_size"]
    return Entry(who, run.outcome, max(used, default=None), record["model_spec"]["state_bytes"] // rows)


def _row(entry: Entry) -> list[str]:
    outcome = entry.outcome
    return [
        entry.who,
        str(outcome.seed),
        f"{outcome.parameters / 1e6:.3f} M",
        f"{outcome.tokens / 1e6:.2f} M",
        f"{entry.loss:.3f}",
        # the text is ASCII: a character is a byte
        f"{entry.loss / math.log(2):.3f}",
        f"{outcome.tokens / outcome.seconds:,.0f}",
        "" if entry.memory_bytes is None else f"{entry.memory_bytes / 1e6:,.0f} MB",
        "" if entry.state_bytes is None else f"{entry.state_bytes / 1e3:,.1f} kB",
    ]


def _report(entries: list[Entry]) -> Report:
    header = [
        "memory",
        "seed",
        "weights",
        "characters read",
        "nats per character",
        "bits per byte",
        "tokens/s",
        "memory of the process",
        "state of a row",
    ]
    rates: dict[str, float] = {}
    lines = []
    for who in dict.fromkeys(entry.who for entry in entries):
        own = [entry for entry in entries if entry.who == who]
        losses = [entry.loss for entry in own]
        rates[who] = statistics.median(entry.outcome.tokens / entry.outcome.seconds for entry in own)
        lines.append(f"{who} {statistics.mean(losses):.3f} ({min(losses):.3f} to {max(losses):.3f})")
    linear = rates["linear attention"]
    ratios = {
        f"tokens/s, {who} / linear attention": rate / linear for who, rate in rates.items() if who in RECIPES
    }
    text = (
        "Tiny Shakespeare, validation on its last tenth; nats per character, mean and range over the seeds: "
        f"{'; '.join(lines)}.\n\n{harness.table(header, [_row(entry) for entry in entries])}"
    )
    return Report(text, ratios)
