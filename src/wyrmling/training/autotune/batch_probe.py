"""A process that takes a few real training steps with a number of rows, and says what they needed.

It is started as `python -m wyrmling.training.autotune.batch_probe`, reads one JSON object from standard input, and
writes one line of JSON. What it computes is a training step with everything that needs memory: weights, gradients,
moments, carried states, what continual backprop watches, and as many micro-batches as gradients have to be kept over.
The tokens are drawn at random, since memory does not depend on what they are.

On Linux a probe on the CPU gives itself a limit of address space somewhat above the target, and asks to be the first
to go where the machine runs out of memory: it ends instead of something else. Elsewhere its peak is all there is.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

import torch

from ...config import Config
from ...config.rules import resolve_gradient_accumulation
from ...data.batches import Batch
from ...errors import UserError
from ...model import Geometry
from ...optim.continual import Activity
from ...watch.device_memory import DeviceMemory
from ...watch.memory import current_memory
from ...watch.profile import StageProfile
from ..machine import Machine, choose_machine, keep_freed_memory
from ..session import build_learner
from ..step import StepRules, optimizer_step
from ..streams import Streams

# Address space that is reserved and never touched: arenas of malloc and stacks, more with every thread.
SLACK, SLACK_PER_THREAD = 1 << 30, 1 << 27
_OUT_OF_MEMORY = ("t allocate memory", "out of memory", "not enough memory", "bad_alloc")


class _Watched(StageProfile):
    """Stage times, and the largest readings of memory at the end of stages."""

    def __init__(self, memory: DeviceMemory) -> None:
        self.memory, self.in_use = memory, 0
        super().__init__()

    def _leave(self) -> None:
        self.memory.wait()
        super()._leave()
        self.in_use = max(self.in_use, self.memory.read().in_use)


def probe(request: dict[str, Any]) -> dict[str, Any]:
    """Take the steps.

    Args:
        request: `config` (a dictionary, with the number of rows in it), `vocab_size`, `stored` (choices that were
            made already), `tokens` and `total_steps` of the run, `target` (bytes), `steps` to be measured.
    Returns: `status`, and what was measured: `peak` and `in_use` in bytes, `tokens_per_second`, `activation_memory`.
    """
    config = Config.from_dict(request["config"])
    geometry = Geometry.of(config.effective_model, request["vocab_size"])
    machine = choose_machine(config, geometry, request["stored"], tokens=request["tokens"])
    if machine.device.type == "cpu":
        guard(request["target"], machine.threads)
    memory = DeviceMemory(machine.device)
    try:
        with machine.settings():
            measured = _measure(config, geometry, machine, memory, request)
    except (MemoryError, RuntimeError) as error:
        text = " ".join(str(error).split())
        if not isinstance(error, MemoryError) and not any(sign in text for sign in _OUT_OF_MEMORY):
            raise
        return {"status": "out_of_memory", "peak": memory.peak(), "detail": text[:200]}
    memory_choice = next(choice.value for choice in machine.choices if choice.name == "activation_memory")
    return {"status": "done", "peak": memory.peak(), "activation_memory": memory_choice, **measured}


def _measure(
    config: Config, geometry: Geometry, machine: Machine, memory: DeviceMemory, request: dict[str, Any]
) -> dict[str, Any]:
    training = config.training
    learner = build_learner(config, geometry, machine, total_steps=request["total_steps"])
    accumulation = resolve_gradient_accumulation(
        training.batch_size, training.gradient_accumulation_steps, training.target_effective_batch_size
    )
    carried = training.tbptt_persist_across_steps
    groups = accumulation if carried else min(accumulation, 2)
    batches = _batches(config, geometry.vocab_size, groups)
    streams = Streams(groups, training.batch_size) if carried else None
    watched = Activity(geometry.heads, geometry.neurons) if training.continual_backprop.enabled else None
    # what is frozen in the first steps gets its moments later: a probe counts them from the start
    profile, rules = _Watched(memory), StepRules.of(config, learner.scales.lasting())
    for step in range(1, request["steps"] + 2):
        optimizer_step(
            learner.model,
            learner.optimizer,
            batches,
            machine,
            step=step,
            rate=0.0,
            rules=rules,
            profile=profile,
            streams=streams,
            activity=watched,
        )
        if step == 1:  # moments are made and kernels prepared by the first one
            profile.restart()
    spent = profile.nanoseconds
    per_micro_batch = (spent["copy"] + spent["forward"] + spent["backward"]) / groups
    seconds = (per_micro_batch * accumulation + spent["optimizer"]) / request["steps"] / 1e9
    tokens = training.batch_size * accumulation * training.block_size
    return {"in_use": profile.in_use, "tokens_per_second": tokens / max(seconds, 1e-9)}


def _batches(config: Config, vocabulary: int, groups: int) -> list[Batch]:
    training, generator = config.training, torch.Generator().manual_seed(0)
    rows, length = training.batch_size, training.block_size
    made = []
    for group in range(groups):
        read = torch.randint(vocabulary, (rows, length + 1), generator=generator)
        numbers = torch.arange(group * rows, (group + 1) * rows)
        reset = torch.zeros(rows, dtype=torch.bool) if training.tbptt_persist_across_steps else None
        made.append(
            Batch(0, numbers, read[:, :-1].contiguous(), read[:, 1:].contiguous(), rows * length, reset)
        )
    return made


def guard(target: int, threads: int) -> None:
    """Let this process end, and no other, where memory runs out. Does nothing but on Linux.

    Args:
        target: bytes of resident memory that are allowed.
    """
    if not sys.platform.startswith("linux"):
        return
    try:
        Path("/proc/self/oom_score_adj").write_text("1000")
        mapped = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        import resource
    except (OSError, ImportError):
        return
    limit = mapped + max(target - current_memory(), 0) + SLACK + threads * SLACK_PER_THREAD
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    for bound in (soft, hard):
        if bound != resource.RLIM_INFINITY:
            limit = min(limit, bound)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))


def _end_with_the_parent() -> None:
    """Go when the process that asked is gone: it holds the other end of standard input."""

    def wait() -> None:
        sys.stdin.buffer.read()
        os._exit(0)

    threading.Thread(target=wait, daemon=True).start()


def main() -> None:
    """Answer one request."""
    request = json.loads(sys.stdin.buffer.readline())
    _end_with_the_parent()
    if request["keep_freed_memory"]:
        keep_freed_memory()
    try:
        answer = probe(request)
    except UserError as error:
        answer = {"status": "refused", "detail": str(error)}
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
