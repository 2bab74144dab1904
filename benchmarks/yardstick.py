"""The recipe `shakespeare-cpu` against the small GPT: the same characters, the same threads, each in its own process.

They train in turn, seed by seed, and every seed is shown. Both are scored on the whole validation part (the last tenth
of the text) with the weights of the last step: windows of the training length that do not overlap, each from nothing,
so that every character but the first is predicted exactly once. Ours is also scored in windows of the GPT's length,
and with its state carried through windows of its own.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from wyrmling.training import evaluate, load_run

from . import harness
from .record import Report
from .small_gpt import Setting
from .startup import stage_figures

RECIPE = "shakespeare-cpu"
EVALUATION_ROWS = 32


@dataclass(frozen=True)
class Outcome:
    """One trained model.

    Attributes:
        seconds: of the training steps alone (batches, logging and all, but no validation and no checkpoint).
        process: seconds of the whole process, from nothing to trained; None where it also evaluates.
        losses: nats per character by the way of scoring.
        memory_bytes: resident in training; None where it was not asked for.
    """

    who: str
    seed: int
    parameters: int
    tokens: int
    seconds: float
    process: float | None
    losses: dict[str, float]
    memory_bytes: int | None = None


@dataclass(frozen=True)
class Trained:
    """One of our runs, and where it lies."""

    outcome: Outcome
    path: Path


def yardstick(text: str | None, seeds: int, extra: list[str]) -> Report:
    """Train all of them and compare.

    Args:
        text: the file of tiny Shakespeare; None lets the recipe fetch it.
        extra: more `--set` texts for our recipe.
    """
    data = text_settings(text)
    outcomes = []
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(1, seeds + 1):
            for outcome in (
                small_gpt(data, seed, low=False),
                small_gpt(data, seed, low=True),
                trained(RECIPE, Path(folder), [*data, *extra], seed).outcome,
            ):
                outcomes.append(outcome)
                print(" | ".join(row(outcome)), flush=True)
    return _report(outcomes)


def text_settings(text: str | None) -> list[str]:
    """`--set` texts for a file of tiny Shakespeare; None lets the recipe fetch it."""
    if text is None:
        return []
    return ["dataset.type=local_text", f'dataset.path="{Path(text).resolve().as_posix()}"']


def small_gpt(data: list[str], seed: int, *, low: bool) -> Outcome:
    threads = torch.get_num_threads()
    arguments = {
        "recipe": RECIPE,
        "overrides": data,
        "seed": seed,
        "low": low,
        "threads": threads,
        "steps": None,
    }
    found = harness.measured_by("benchmarks.small_gpt", arguments)
    return Outcome(
        who="small GPT, bf16" if low else "small GPT, float32",
        seed=seed,
        parameters=found["parameters"],
        tokens=found["tokens"],
        seconds=found["seconds"],
        process=None,
        losses={f"windows of {Setting.length}": found["loss"]},
        memory_bytes=found["memory_bytes"],
    )


def trained(recipe: str, folder: Path, extra: list[str], seed: int, who: str | None = None) -> Trained:
    """Train one of our recipes in a process of its own, and score it; `who` is what a table calls it."""
    name = f"{recipe}-{seed}"
    settings = [*extra, f"training.seed={seed}", f"run_layout.name={name}"]
    settings += [f"runtime.threads={torch.get_num_threads()}", "training.sample_tokens=1"]
    begun = time.perf_counter()
    harness.child(
        ["-m", "wyrmling", "train", recipe, *harness.settings(settings)], {"WYRMLING_RUN_ROOT": str(folder)}
    )
    process = time.perf_counter() - begun
    figures = stage_figures(folder / name / "events.jsonl")
    apart = figures["validation_ns"] + figures["checkpoint_ns"]
    loaded = load_run(name, root=folder)
    training = loaded.config.training
    outcome = Outcome(
        who=who or f"`{recipe}`",
        seed=seed,
        parameters=loaded.model.parameter_count(),
        tokens=loaded.step * training.batch_size * training.block_size * training.gradient_accumulation_steps,
        seconds=(figures["total_ns"] - apart) / 1e9,
        process=process,
        losses=_scored(loaded, training.block_size),
    )
    return Trained(outcome, folder / name)


def _scored(loaded: Any, length: int) -> dict[str, float]:
    """Losses over the whole validation part."""

    def loss(block: int, carried: bool) -> float:
        return evaluate(loaded, block_size=block, carry_state=carried, rows=EVALUATION_ROWS).loss

    return {
        f"windows of {length}": loss(length, False),
        f"windows of {Setting.length}": loss(Setting.length, False),
        "state carried": loss(length, True),
    }


HEADER = [
    "model",
    "seed",
    "weights",
    "characters read",
    "training, s",
    "whole command, s",
    "nats per character",
]


def row(outcome: Outcome) -> list[str]:
    process = "" if outcome.process is None else f"{outcome.process:.1f}"
    losses = "; ".join(f"{loss:.3f} ({how})" for how, loss in outcome.losses.items())
    numbers = [f"{outcome.parameters / 1e6:.2f} M", f"{outcome.tokens / 1e6:.2f} M"]
    return [outcome.who, str(outcome.seed), *numbers, f"{outcome.seconds:.1f}", process, losses]


def _report(outcomes: list[Outcome]) -> Report:
    mean: dict[str, tuple[float, float]] = {}
    for who in dict.fromkeys(outcome.who for outcome in outcomes):
        own = [outcome for outcome in outcomes if outcome.who == who]
        loss = statistics.mean(next(iter(outcome.losses.values())) for outcome in own)
        mean[who] = statistics.mean(outcome.seconds for outcome in own), loss
    lines = [
        f"{who}: {loss:.3f} nats per character in {seconds:.1f} s" for who, (seconds, loss) in mean.items()
    ]
    ours = mean[f"`{RECIPE}`"]
    others = {who: times for who, times in mean.items() if "GPT" in who}
    ratios = {f"time, {who} / ours": seconds / ours[0] for who, (seconds, _) in others.items()}
    ratios |= {f"loss, {who} / ours": loss / ours[1] for who, (_, loss) in others.items()}
    text = (
        "The last tenth of tiny Shakespeare, every character once, weights of the last step; means over the seeds: "
        f"{'; '.join(lines)}.\n\n{harness.table(HEADER, [row(outcome) for outcome in outcomes])}"
    )
    return Report(text, ratios)
