"""What `profile.json` says, for people: one line, and a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import quantities

_MOMENTS = {"before": "before", "after_forward": "after forward", "after_backward": "after backward"}


def headline(record: Mapping[str, Any]) -> str:
    """Speed, operations and memory in one line."""
    speed, operations = record["speed"], record["operations"]
    parts = []
    if speed["tokens_per_second"]:
        parts.append(f"{quantities.count(speed['tokens_per_second'])} tokens/s")
    if operations["per_second"]:
        parts.append(
            f"{operations['per_second'] / 1e9:,.0f} GFLOP/s in products, {operations['share']:.0%} of the "
            f"{operations['matrix_rate'] / 1e9:,.0f} that products alone reach here"
        )
    parts.append(f"peak memory {quantities.size(record['memory']['peak_bytes'])}")
    return ", ".join(parts)


def table(record: Mapping[str, Any]) -> str:
    """The stages, longest first, with speed, memory and probes below them."""
    rows = sorted(record["stages"].items(), key=lambda item: -item[1]["seconds"])
    lines = [f"{'stage':<12}{'time':>10}{'share':>9}{'times':>9}"]
    lines += [
        f"{name:<12}{quantities.duration(stage['seconds']):>10}{stage['share']:>9.1%}{_times(stage):>9}"
        for name, stage in rows
    ]
    lines += ["", headline(record), _memory(record["memory"])]
    if record["speed"]["measured_steps"]:
        lines.append(
            f"speed over {record['speed']['measured_steps']} of {record['speed']['steps']} steps: "
            "the first and the traced ones left out"
        )
    lines += _probes(record.get("detail"))
    return "\n".join(lines)


def _times(stage: Mapping[str, Any]) -> str:
    return str(stage["entered"] or "")


def _memory(memory: Mapping[str, Any]) -> str:
    parts = []
    for moment, label in _MOMENTS.items():
        held, used = (memory[f"max_step_{kind}_{moment}_bytes"] for kind in ("reserved", "in_use"))
        parts.append(f"{label} {quantities.size(held)} ({quantities.size(used)} in use)")
    steps = (
        f"the first {memory['steps']} steps, before tracing"
        if not memory["with_tracer"]
        else "with the tracer's"
    )
    return f"memory {', '.join(parts)}; {steps}"


def _probes(detail: Mapping[str, int] | None) -> list[str]:
    steps = 0 if detail is None else detail["detail_probe_steps"]
    if detail is None or not steps:
        return []
    found = {key: value for key, value in detail.items() if key.endswith("_probe_ns")}
    lines = ["", f"probes of parts, one micro-batch or chunk, mean of {steps}:"]
    for key, total in found.items():
        name = key.removesuffix("_probe_ns").replace("_", " ")
        lines.append(f"{name:<24}{total / steps / 1e6:>10.2f} ms")
    return lines
