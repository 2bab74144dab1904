"""`wyrmling train --profile`: where the time and the memory of a run go, written with the run.

profile.json    stages, speed, operations and their share of this machine's products, memory; probes of parts (`detail`)
trace.json      a few steps in Chrome's trace format, for chrome://tracing or ui.perfetto.dev

Nothing here decides a weight: a profiled run computes what the same run computes without. Its stages wait for the
device where they end, so that a GPU's time is counted where it is spent.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Literal

from ...data.batches import Batch
from ...files import write_json_atomically
from ...watch.device_memory import DeviceMemory, Reading
from ...watch.events import Message
from ...watch.matrix_rate import matrix_rate
from ...watch.profile import STAGE_PROFILE, STAGES, StageProfile
from ...watch.profile_table import headline
from ..session import Session
from .operations import step_operations
from .stage_probes import PROBES, StageProbes
from .tracing import Tracer

Mode = Literal["summary", "detail"]
PROFILE, TRACE = "profile.json", "trace.json"
PROBED_STEPS = 3
RATE_SECONDS = 0.5
WORK = ("data", "copy", "forward", "backward", "optimizer")
_ON_THE_DEVICE = ("copy", "forward", "backward", "optimizer")
_NAMES = {"validation": "evaluation", "other": "idle"}


@dataclass
class MemoryMaxima:
    """The largest readings over micro-batches, in bytes: before one, after its forward pass, after its backward pass.

    Taken before tracing begins, which holds memory of its own to the end of the run. Their order is that of the
    profile line.
    """

    max_step_reserved_before_bytes: int = 0
    max_step_in_use_before_bytes: int = 0
    max_step_reserved_after_forward_bytes: int = 0
    max_step_in_use_after_forward_bytes: int = 0
    max_step_reserved_after_backward_bytes: int = 0
    max_step_in_use_after_backward_bytes: int = 0

    def note(self, moment: Literal["before", "after_forward", "after_backward"], reading: Reading) -> None:
        """Take in one reading."""
        for kind, value in (("reserved", reading.reserved), ("in_use", reading.in_use)):
            name = f"max_step_{kind}_{moment}_bytes"
            setattr(self, name, max(getattr(self, name), value))


@dataclass(frozen=True)
class _Step:
    """One optimizer step: nanoseconds of `WORK`, its targets, and whether the tracer slowed it down."""

    nanoseconds: int
    targets: int
    traced: bool


@dataclass
class _Probed:
    """Sums over the steps that were probed, in nanoseconds."""

    steps: int = 0
    nanoseconds: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PROBES, 0))


class RunProfile(StageProfile):
    """A stage profile that reads memory, counts copies, traces a few steps, and probes parts.

    Args:
        session: the run.
        first_step: the first optimizer step that is to come (from 1).
        mode: "detail" adds the probes and the line with every field.
    """

    stages: ClassVar[tuple[str, ...]] = (*STAGES, "profiling")

    def __init__(
        self,
        session: Session,
        first_step: int,
        mode: Mode,
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self._session, self._mode, self._first_step = session, mode, first_step
        self._step = first_step - 1
        self._memory = DeviceMemory(session.machine.device)
        self._tracer = Tracer(session.machine.device, first_step, session.total_steps - self._step)
        self._ranges: list[Any] = []
        self._probes = StageProbes(session.model, session.machine, clock)
        self.maxima, self.probed = MemoryMaxima(), _Probed()
        self.steps: list[_Step] = []
        self.copied_bytes = self.peak_bytes = self._worked = self._memory_steps = 0
        super().__init__(clock)
        self._tracer.before(first_step)

    def after_step(self, batches: Sequence[Batch]) -> None:
        self._step += 1
        worked = sum(self.nanoseconds[name] for name in WORK)
        targets = sum(batch.target_count for batch in batches)
        self.steps.append(_Step(worked - self._worked, targets, self._tracer.running))
        self._worked = worked
        self.copied_bytes += copied_bytes(batches, self._session.machine.device.type)
        with self.stage("profiling"):
            if self._tracer.apart:
                self.peak_bytes, self._memory_steps = self._memory.peak(), len(self.steps)
            self._tracer.after(self._step)
            self._tracer.before(self._step + 1)
            if self._mode == "detail" and self._due():
                self._probe(batches[0])

    def closing(self) -> Iterator[Message]:
        yield from super().closing()
        figures = self.figures()
        run = self._session.run.path
        traced = self._tracer.write(run / TRACE)
        record = self.record(figures, traced)
        write_json_atomically(run / PROFILE, record)
        files = f"{run / PROFILE}" + (f", {TRACE}" if traced else "")
        yield Message("info", "profile", f"{headline(record)}; {files}")
        if self._mode == "detail":
            pairs = " ".join(f"{key}={value}" for key, value in self.detail(figures).items())
            yield Message("info", f"{STAGE_PROFILE} detail", f"[stage-profile][detail] {pairs}")

    def record(self, figures: dict[str, int], traced: bool) -> dict[str, Any]:
        """The content of `profile.json`. Measures products for half a second."""
        machine = self._session.machine
        record: dict[str, Any] = {
            "format": 1,
            "mode": self._mode,
            "first_step": self._first_step,
            "last_step": self._step,
            "device": machine.device.type,
            "dtype": str(machine.dtype).removeprefix("torch."),
            "threads": machine.threads,
            "total_seconds": figures["total_ns"] / 1e9,
            "stages": self._stages(figures),
            "speed": self._speed(),
        }
        record["operations"] = self._operations(record["speed"]["step_seconds"])
        record["memory"] = {
            "steps": self._memory_steps,
            "with_tracer": self._tracer.warm_up == 0,
            "peak_bytes": self.peak_bytes or self._memory.peak(),
            **asdict(self.maxima),
        }
        record["host_to_device_copy_bytes"] = self.copied_bytes
        record["host_sync_points"] = self.host_sync_points
        if self._mode == "detail":
            record["detail"] = self.detail(figures)
        steps = self._tracer.traced
        record["trace"] = {"file": TRACE, "first_step": steps[0], "last_step": steps[-1]} if traced else None
        return record

    def detail(self, figures: dict[str, int]) -> dict[str, int]:
        """Every field of the detailed line, in its order. Times are host times in nanoseconds, summed."""
        probes = self.probed
        return {
            "total_ns": figures["total_ns"],
            "dataloader_cpu_ns": figures["data_ns"],
            "dataloader_tensor_copy_ns": figures["copy_ns"],
            "dataloader_host_to_device_copy_bytes": self.copied_bytes,
            "host_sync_points": self.host_sync_points,
            "forward_ns": figures["forward_ns"],
            "loss_backward_ns": figures["backward_ns"],
            **{f"{name}_ns": probes.nanoseconds[name] for name in PROBES},
            "detail_probe_steps": probes.steps,
            "train_steps": figures["train_steps"],
            **asdict(self.maxima),
        }

    def _enter(self, name: str) -> None:
        if name == "copy" and self._tracer.apart:
            self.maxima.note("before", self._memory.read())
        super()._enter(name)
        if self._tracer.running:
            self._ranges.append(self._tracer.range(name).__enter__())

    def _leave(self) -> None:
        name = self._stack[-1]
        if self._ranges:
            self._ranges.pop().__exit__(None, None, None)
        if name in _ON_THE_DEVICE:
            self._memory.wait()
        super()._leave()
        if not self._tracer.apart:
            return
        if name == "forward":
            self.maxima.note("after_forward", self._memory.read())
        elif name == "backward":
            self.maxima.note("after_backward", self._memory.read())

    def _due(self) -> bool:
        """Whether parts are to be probed after this step: once tracing is over, or when no other step comes."""
        last = self._step == self._session.total_steps and not self.probed.steps
        return (self._tracer.finished and self.probed.steps < PROBED_STEPS) or last

    def _probe(self, batch: Batch) -> None:
        length = self._session.config.training.kernel_block
        found = self._probes.run(batch.tokens[:, :length], batch.targets[:, :length])
        self.probed.steps += 1
        for name, taken in found.items():
            self.probed.nanoseconds[name] += taken

    def _stages(self, figures: dict[str, int]) -> dict[str, dict[str, float]]:
        total = max(figures["total_ns"], 1)
        entered = {**self.entered, "other": 0}
        return {
            _NAMES.get(name, name): {
                "seconds": figures[f"{name}_ns"] / 1e9,
                "share": figures[f"{name}_ns"] / total,
                "entered": times,
            }
            for name, times in entered.items()
        }

    def _speed(self) -> dict[str, Any]:
        """Means over the steps that nothing slowed down: neither the first, nor a traced one, where others are left."""
        free = [step for step in self.steps if not step.traced] or self.steps
        steady = free[1:] or free
        seconds = sum(step.nanoseconds for step in steady) / 1e9
        targets = sum(step.targets for step in steady)
        return {
            "steps": len(self.steps),
            "tokens": sum(step.targets for step in self.steps),
            "measured_steps": len(steady),
            "step_seconds": seconds / len(steady) if steady else None,
            "tokens_per_second": targets / seconds if seconds else None,
        }

    def _operations(self, seconds: float | None) -> dict[str, Any]:
        session, training = self._session, self._session.config.training
        per_step = session.plan.accumulation * step_operations(
            session.model,
            rows=training.batch_size,
            length=training.block_size,
            tile=min(session.machine.chosen_executor.tile, training.kernel_block),
            chunk=training.tbptt_chunk_size,
            window=training.tbptt_window,
            carries=training.tbptt_persist_across_steps,
        )
        machine = session.machine
        rate = matrix_rate(machine.dtype, machine.device, seconds=RATE_SECONDS, wait=self._memory.wait)
        reached = per_step / seconds if seconds else None
        return {
            "per_step": per_step,
            "per_second": reached,
            "matrix_rate": rate,
            "share": None if reached is None else reached / rate,
        }


def copied_bytes(batches: Sequence[Batch], device: str) -> int:
    """Bytes of tokens and targets that had to be copied to a device: none on the CPU, which reads them in place."""
    if device == "cpu":
        return 0
    return sum(batch.tokens.nbytes + batch.targets.nbytes for batch in batches)
