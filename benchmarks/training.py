"""Training steps against the plain BDH: forward and backward, no optimizer, and what share of the machine they use."""

from __future__ import annotations

from collections.abc import Callable

import torch

from wyrmling.model import Model
from wyrmling.model.fused import Fused
from wyrmling.model.fused.kernels import KernelKind

from . import harness, operations
from .harness import Timing
from .record import Report
from .sizes import LEGEND, Size, batch, kinds_of_kernels, our_step, pair, plain_step

PRECISIONS = {"float32": False, "bf16": True}
DTYPES = {"float32": torch.float32, "bf16": torch.bfloat16}
RATE = 0.1


def training(sizes: list[Size], rounds: int, *, dropout: bool = True) -> Report:
    """Three tables: steps without dropout, steps with it, and operations per second of ours."""
    kinds, notes = kinds_of_kernels()
    for note in notes:
        print(note, flush=True)
    report = Report("")
    without, dropped, shares = [], [], []
    for size in sizes:
        times = _without_dropout(size, kinds, rounds)
        without += _rows(size, times, report)
        shares += _shares(size, times)
        if dropout:
            dropped += _rows(size, _with_dropout(size, kinds[-1], rounds), report, ", dropout 0.1")
        print("\n".join(" | ".join(row) for row in without[-2 * len(kinds) :]), flush=True)
    report.text = "\n\n".join(
        [
            f"Training step (forward and backward), no dropout. {LEGEND}",
            _table(without),
            *(
                ["The same with dropout 0.1 (plain draws its own masks, ours are keyed):", _table(dropped)]
                * bool(dropped)
            ),
            "Products of a step per second, and the rate of this machine's products measured beside it:",
            harness.table(
                ["products", "GFLOP per step", "ours, GFLOP/s", "matrix rate, GFLOP/s", "share"], shares
            ),
            *notes,
        ]
    )
    return report


def _plain(size: Size, dropout: float) -> dict[str, Callable[[], object]]:
    plain, _ = pair(size, dropout=dropout)
    tokens, targets = batch(size)

    def step(low: bool) -> Callable[[], object]:
        return lambda: plain_step(plain, tokens, targets, low)

    return {f"plain {name}": step(low) for name, low in PRECISIONS.items()}


def _ours(
    model: Model, size: Size, kinds: list[KernelKind], dropout: float
) -> dict[str, Callable[[], object]]:
    tokens, targets = batch(size)

    def step(low: bool, kernels: KernelKind) -> Callable[[], object]:
        return lambda: our_step(model, tokens, targets, low, kernels=kernels, dropout=dropout)

    return {
        f"ours {precision}, {kernels} kernels": step(low, kernels)
        for precision, low in PRECISIONS.items()
        for kernels in kinds
    }


def _without_dropout(size: Size, kinds: list[KernelKind], rounds: int) -> dict[str, Timing]:
    _, ours = pair(size)
    contestants = _plain(size, 0.0) | _ours(ours, size, kinds, 0.0)
    for dtype in DTYPES.values():
        contestants |= operations.products(dtype)
    return harness.interleaved(contestants, rounds)


def _with_dropout(size: Size, kernels: KernelKind, rounds: int) -> dict[str, Timing]:
    _, ours = pair(size, dropout=RATE)
    return harness.interleaved(_plain(size, RATE) | _ours(ours, size, [kernels], RATE), rounds)


def _rows(size: Size, times: dict[str, Timing], report: Report, suffix: str = "") -> list[list[str]]:
    """A line per variant of ours; its ratios go into the report."""
    count = size.rows * size.length
    rows = []
    for name, timing in times.items():
        if not name.startswith("ours"):
            continue
        against = {plain: times[f"plain {plain}"] for plain in PRECISIONS}
        ratios = {plain: other.median / timing.median for plain, other in against.items()}
        for plain, ratio in ratios.items():
            report.ratios[f"{size.label}{suffix}: {name} / plain {plain}"] = ratio
        rows.append(
            [
                size.label,
                *(f"{count / other.median:,.0f}" for other in against.values()),
                name,
                f"{count / timing.median:,.0f}",
                *(f"{ratio:.2f}" for ratio in ratios.values()),
                f"{timing.spread:.0%}",
            ]
        )
    return rows


def _table(rows: list[list[str]]) -> str:
    return harness.table(
        [
            "size",
            "plain float32, tokens/s",
            "plain bf16, tokens/s",
            "ours",
            "tokens/s",
            "/ plain float32",
            "/ plain bf16",
            "spread",
        ],
        rows,
    )


def _shares(size: Size, times: dict[str, Timing]) -> list[list[str]]:
    _, model = pair(size)
    assert isinstance(model.layer_step, Fused)
    rows = []
    for name, timing in times.items():
        if not name.startswith("ours"):
            continue
        precision = name.split()[1].rstrip(",")
        chunk = model.layer_step.plan(size.rows, size.length, DTYPES[precision]).chunk
        flops = operations.step_operations(size, chunk)
        possible = operations.rate(DTYPES[precision], times)
        reached = flops / timing.median
        rows.append(
            [
                f"{size.label}, {name}",
                f"{flops / 1e9:,.1f}",
                f"{reached / 1e9:,.0f}",
                f"{possible / 1e9:,.0f}",
                f"{reached / possible:.0%}",
            ]
        )
    return rows
