"""One more token after prompts of growing length, memory by memory: the time must not grow."""

from __future__ import annotations

from collections.abc import Callable

import torch

from wyrmling import load_config
from wyrmling.generation.mode import evaluating
from wyrmling.generation.reading import Group, Reader
from wyrmling.generation.settings import GenerationSettings
from wyrmling.model import Model

from . import harness
from .memories import RECIPES
from .record import Report

LENGTHS = [100, 1000, 10000]
VOCABULARY = 65
TOKENS = 16  # read per measured call


def single_tokens(rounds: int) -> Report:
    """Milliseconds per token at the lengths, of the recipes' models with their first weights, one stream."""
    report, rows = Report(""), []
    for who, recipe in RECIPES.items():
        model = Model(load_config(recipe).effective_model, VOCABULARY, seed=1)
        contestants = {str(length): _more(model, length) for length in LENGTHS}
        times = harness.interleaved(contestants, rounds)
        taken = [times[str(length)].median / TOKENS for length in LENGTHS]
        report.ratios[f"{who}: length {LENGTHS[0]} / length {LENGTHS[-1]:,}"] = taken[0] / taken[-1]
        rows.append([who, *(f"{1e3 * seconds:.2f}" for seconds in taken)])
        print(" | ".join(rows[-1]), flush=True)
    header = ["ms per token", *(f"length {length:,}" for length in LENGTHS)]
    what = "The recipes' models, first weights, float32, one stream, after prompts of random tokens."
    report.text = f"{what}\n\n{harness.table(header, rows)}"
    return report


def _more(model: Model, length: int) -> Callable[[], object]:
    """Reads `TOKENS` more tokens per call; each call goes on where the last ended."""
    prompt = torch.randint(0, VOCABULARY, (1, length), generator=torch.Generator().manual_seed(2))
    reader = Reader(model, None, GenerationSettings())
    with evaluating(model):
        reader.read([Group(True, [0], prompt)])

    def read() -> None:
        with evaluating(model):
            for _ in range(TOKENS):
                reader.read([Group(False, [0], prompt[:, :1])])

    return read
