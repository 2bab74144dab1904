"""Peak memory of one training step, in a child process each, and how it grows with the length."""

from __future__ import annotations

import argparse
import json
from typing import Any

from wyrmling.training.machine import keep_freed_memory
from wyrmling.watch.memory import current_memory, peak_memory

from . import harness
from .record import Report
from .sizes import VOCABULARY, Size, batch, our_step, pair, plain_step

WHO = ("plain", "keep", "recompute")
FLAT_LENGTHS = [1024, 4096, 16384, 65536]


def flat_size(length: int) -> Size:
    """A narrow model, so that long sequences take seconds."""
    return Size("2 layers, D=64, H=2, N=256", 2, 64, 2, 8, 1, length)


def memory(sizes: list[Size]) -> Report:
    """Peaks above the base, plain and ours, with multiples of the plain one."""
    report = Report("")
    rows = []
    for size in sizes:
        for precision in ("float32", "bf16"):
            used = {who: measured(who, size, precision == "bf16") for who in WHO}
            row = [f"{size.label}, {precision}", *(f"{used[who] / 1e6:,.0f} MB" for who in WHO)]
            for who in WHO[1:]:
                ratio = used["plain"] / used[who]
                report.ratios[f"{size.label}, {precision}: plain / {who}"] = ratio
                row.append(f"{ratio:.1f}")
            rows.append(row)
            print(" | ".join(row), flush=True)
    header = [
        "peak memory of a step",
        "plain",
        "ours, keep",
        "ours, recompute",
        "plain / keep",
        "plain / recompute",
    ]
    report.text = (
        "Peak resident memory of one training step above what the process held before it. `keep` holds neurons for "
        "the backward pass, `recompute` computes them again. Ours with the allocator setting of its runs, plain with "
        "the system's own, with which it needs less.\n\n" + harness.table(header, rows)
    )
    return report


def flatness(lengths: list[int]) -> Report:
    """Ours with recompute over lengths, beside what must grow: the stream of every layer, and the head's scores."""
    rows = []
    for length in lengths:
        size = flat_size(length)
        used = measured("recompute", size, False)
        stream = 4 * length * size.n_embd * (size.n_layer + 1)
        scores = 4 * length * VOCABULARY
        row = [f"{length:,}", f"{used / 1e6:,.1f} MB", f"{stream / 1e6:,.1f} MB", f"{scores / 1e6:,.1f} MB"]
        row.append(f"{used / length / 1e3:,.2f} kB")
        rows.append(row)
        print(" | ".join(row), flush=True)
    header = ["T", "peak", "stream, L + 1 times", "scores of the tokens, once", "peak per token"]
    text = f"Growth with the length, float32, recompute, one row; {flat_size(1).name}:\n\n"
    return Report(text + harness.table(header, rows))


def measured(who: str, size: Size, low: bool) -> int:
    """Bytes that a child process needed for one step above its base."""
    arguments: dict[str, Any] = {"who": who, "size": size.to_json(), "low": low}
    return int(harness.measured_by("benchmarks.memory", arguments))


def one_step(who: str, size: dict[str, Any], low: bool) -> int:
    """In a child process: the peak of one step above the base. Eager kernels: a compiler's memory is not the step's."""
    chosen = Size(**size)
    plain, ours = pair(chosen)
    tokens, targets = batch(chosen)
    if who == "plain":
        del ours
        base = current_memory()
        plain_step(plain, tokens, targets, low)
    else:
        del plain
        keep_freed_memory()  # as every run of ours does; the plain code needs more with it, so it goes without
        ours.layer_step.recompute = who == "recompute"
        base = current_memory()
        our_step(ours, tokens, targets, low)
    return peak_memory() - base


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--measure", required=True)
    print(one_step(**json.loads(parser.parse_args().measure)))
