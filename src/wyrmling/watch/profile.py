"""Where the time of a run goes, stage by stage.

Host time on a monotonic clock, no waiting for a device: on the CPU that is the work itself, on a GPU it is
the time to hand the work over (the wait shows up where a number is read, in `logging`). Cheap enough to be
always on: two clock readings per stage.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, ClassVar

from .events import Message

if TYPE_CHECKING:
    from ..data.batches import Batch

# the name of the message that carries a profile's summary
STAGE_PROFILE = "stage profile"
STAGES = ("data", "copy", "forward", "backward", "optimizer", "validation", "checkpoint", "logging")


class StageProfile:
    """Counts nanoseconds per stage and how often each stage was entered.

    Stages may nest; time inside an inner stage counts for the inner one only. So the stages and `other`
    always add up to the total. One thread uses a profile: work that a prefetch thread does meanwhile is not
    counted, and `data` is what the loop waits for.

        with profile.stage("forward"):
            ...

    A profile that measures more (`training.profiling`) is a subclass; the loop knows only this one.
    """

    stages: ClassVar[tuple[str, ...]] = STAGES

    def __init__(self, clock: Callable[[], int] = time.perf_counter_ns) -> None:
        self._clock = clock
        self._contexts = {name: _Stage(self, name) for name in self.stages}
        self._stack: list[str] = []
        self.restart()

    def restart(self) -> None:
        """Set every figure to zero and start the total from now. Not inside a stage."""
        self.nanoseconds = dict.fromkeys(self.stages, 0)
        self.entered = dict.fromkeys(self.stages, 0)
        self.train_steps = self.host_sync_points = 0
        self._started = self._last = self._clock()

    def stage(self, name: str) -> AbstractContextManager[None]:
        """The context manager that counts its block for one of `stages` (KeyError for another name)."""
        return self._contexts[name]

    def step_done(self) -> None:
        """Count one optimizer step."""
        self.train_steps += 1

    def waited(self) -> None:
        """Count one place where the program read a number from the device, and so waited for it."""
        self.host_sync_points += 1

    def after_step(self, batches: Sequence[Batch]) -> None:
        """A step is over and reported; validation and checkpoint come next."""

    def closing(self) -> Iterator[Message]:
        """What there is to say when the run ends."""
        yield Message("info", STAGE_PROFILE, self.summary())

    def figures(self) -> dict[str, int]:
        """What was counted: total_ns, <stage>_ns for each stage, other_ns (the rest), and three counts."""
        total = self._clock() - self._started
        figures = {"total_ns": total}
        figures.update({f"{name}_ns": self.nanoseconds[name] for name in self.stages})
        figures["other_ns"] = total - sum(self.nanoseconds.values())
        figures["train_steps"] = self.train_steps
        figures["validations"] = self.entered["validation"]
        figures["checkpoints"] = self.entered["checkpoint"]
        return figures

    def summary(self) -> str:
        """The counts: total_ns, <stage>_ns per stage, other_ns (the rest), and how often things happened."""
        pairs = " ".join(f"{key}={value}" for key, value in self.figures().items())
        return f"[stage-profile][training] {pairs}"

    def _enter(self, name: str) -> None:
        now = self._clock()
        if self._stack:
            self.nanoseconds[self._stack[-1]] += now - self._last
        self._stack.append(name)
        self.entered[name] += 1
        self._last = now

    def _leave(self) -> None:
        now = self._clock()
        self.nanoseconds[self._stack.pop()] += now - self._last
        self._last = now


class _Stage(AbstractContextManager[None]):
    """One per stage, made once and entered many times: no allocation in the loop."""

    def __init__(self, profile: StageProfile, name: str) -> None:
        self._profile = profile
        self._name = name

    def __enter__(self) -> None:
        self._profile._enter(self._name)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._profile._leave()
