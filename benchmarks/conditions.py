"""Under what conditions something was measured: without them a figure says nothing."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
from pathlib import Path

import torch

from wyrmling.training.machine import fast_bfloat16, keep_freed_memory, thread_waiting
from wyrmling.watch.memory import machine_memory

from .harness import ROOT


def conditions() -> dict[str, str]:
    """Processor, threads, torch, allocator and the like, as plain texts. Sets the allocator, as a run does."""
    total = machine_memory().total
    return {
        "processor": processor(),
        "cores": str(os.cpu_count()),
        "memory": "unknown" if total is None else f"{total / 1e9:.0f} GB",
        "bfloat16": "multiplied in hardware" if fast_bfloat16() else "emulated",
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": str(torch.get_num_threads()),
        "waiting": thread_waiting().value,
        "allocator": keep_freed_memory().value,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "commit": commit(),
    }


def sentence(found: dict[str, str]) -> str:
    """The conditions as a line of text."""
    return (
        f"Measured {found['date']} at commit {found['commit']}: {found['processor']}, {found['cores']} logical cores, "
        f"{found['memory']}, bfloat16 {found['bfloat16']}; {found['system']}, Python {found['python']}, torch "
        f"{found['torch']}, {found['threads']} threads (waiting: {found['waiting']}), allocator {found['allocator']}."
    )


def processor() -> str:
    """The processor's name, and its family and model where the system tells no better."""
    fields: dict[str, str] = {}
    try:
        for line in Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines():
            key, _, value = line.partition(":")
            fields[key.strip()] = value.strip()
    except OSError:
        pass
    name = fields.get("model name", "")
    if not name or name.lower() in ("unknown", "cpu"):
        name = platform.processor() or platform.machine()
    numbers = [
        f"{key.removeprefix('cpu ')} {fields[key]}" for key in ("cpu family", "model") if key in fields
    ]
    return f"{name} ({', '.join(numbers)})" if numbers else name


def commit() -> str:
    """The commit of the working tree, marked where the tree holds changes to code; "unknown" outside a repository."""

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    try:
        changed = git("status", "--porcelain", "--", "src", "benchmarks")
        return git("rev-parse", "--short", "HEAD") + (" with changes" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
