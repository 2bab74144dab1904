"""One more token: the plain BDH reads its prefix again, ours goes on from a state or a history."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from wyrmling.generation.decoding import Decoder, drift
from wyrmling.model import Model

from . import harness
from .harness import Timing
from .plain_bdh import PlainBDH
from .record import Report
from .sizes import LEGEND, VOCABULARY, Size, pair

LENGTHS = [100, 300, 1000, 3000]
DRIFT_AT = [100, 1000, 10000]
TOKENS = 8  # that ours reads per measured call: one is over too soon to be timed
WEIGHTS = {"float32": "float32", "bf16": "bfloat16"}

Reader = Callable[[], object]


def decoding(size: Size, lengths: list[int], rounds: int, *, streams: int = 1) -> Report:
    """Tokens per second and stream after prompts of these lengths, by weights."""
    plain, ours = pair(size)
    report, rows = Report(""), []
    for length in lengths:
        times = _measured(plain, ours, length, streams, rounds)
        row = [f"{size.name}, length {length:,}"]
        for weights in WEIGHTS:
            before, now = times[f"plain {weights}"].median, times[f"ours {weights}"].median / TOKENS
            report.ratios[f"{size.name}, {streams} streams, length {length}, {weights}: ours / plain"] = (
                before / now
            )
            row += [f"{streams / before:,.2f}", f"{streams / now:,.1f}", f"{before / now:,.1f}"]
        rows.append(row)
        print(" | ".join(row), flush=True)
    what = "one stream" if streams == 1 else f"{streams} streams together"
    report.text = f"Decoding, {what}. {LEGEND}\n\n" + harness.table(
        [
            "tokens/s",
            "plain float32",
            "ours float32",
            "ratio",
            "plain bf16",
            "ours bf16 weights",
            "ratio",
        ],
        rows,
    )
    return report


def drifting(size: Size) -> Report:
    """How far rounded weights and states lead away from float32 over many tokens; no ratios."""
    _, ours = pair(size)
    tokens = torch.randint(0, VOCABULARY, (max(DRIFT_AT),), generator=torch.Generator().manual_seed(3))
    rows = []
    for weights, state in (("bfloat16", "float32"), ("float32", "bfloat16")):
        for found in drift(ours, tokens, weights=weights, state=state, at=DRIFT_AT):
            errors = (f"{error:.1e}" for error in (found.reads, found.logits, found.state))
            rows.append([weights, state, f"{found.tokens:,}", *errors, f"{found.agreement:.1%}"])
            print(" | ".join(rows[-1]), flush=True)
    header = ["weights", "state", "tokens", "reads, worst layer", "scores", "state", "same likeliest token"]
    text = f"What rounding costs: relative errors against float32, {size.name}, first weights, random tokens.\n\n"
    return Report(text + harness.table(header, rows))


@torch.inference_mode()
def _measured(plain: PlainBDH, ours: Model, length: int, streams: int, rounds: int) -> dict[str, Timing]:
    generator = torch.Generator().manual_seed(2)
    tokens = torch.randint(0, VOCABULARY, (streams, length), generator=generator)
    contestants: dict[str, Reader] = {}
    for name, weights in WEIGHTS.items():
        contestants[f"plain {name}"] = _plain_reader(plain, tokens, weights == "bfloat16")
        contestants[f"ours {name}"] = our_reader(ours, tokens, weights)
    return harness.interleaved(contestants, rounds)


def _plain_reader(plain: PlainBDH, tokens: Tensor, low: bool) -> Reader:
    def read() -> None:
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=low):
            plain(tokens)

    return read


def our_reader(model: Model, tokens: Tensor, weights: str) -> Reader:
    """Reads `TOKENS` more tokens per call after the prompt, scores included; each call goes on where the last ended."""
    decoder = Decoder(model, weights=weights)
    _, state = model(tokens)
    decoder.load(state)
    token = tokens[:, -1]

    def read() -> None:
        for _ in range(TOKENS):
            decoder.logits(decoder.step(token))

    return read
