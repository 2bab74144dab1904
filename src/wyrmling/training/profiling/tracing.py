"""A Chrome trace of a few training steps, made by PyTorch's profiler."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import torch

from ...errors import StorageError
from ...files import write_atomically

WARM_UP_STEPS = 3
TRACED_STEPS = 3


class Tracer:
    """Traces the steps after the first few of a process; shorter runs warm up for less.

    Args:
        first_step: the first optimizer step that is to come (from 1).
        steps: how many are to come.

    Attributes:
        traced: the steps that were traced.
        warm_up: steps before the first traced one.
    """

    def __init__(self, device: torch.device, first_step: int, steps: int) -> None:
        self._device = device
        self.warm_up = min(WARM_UP_STEPS, max(steps - 1, 0))
        self._first = first_step + self.warm_up
        self._last = min(self._first + TRACED_STEPS, first_step + steps) - 1
        self._profiler: torch.profiler.profile | None = None
        self.traced: list[int] = []
        self.finished = self._last < self._first

    @property
    def apart(self) -> bool:
        """Whether what is read now is the run's own: the tracer holds memory from its first step to the end.

        Where it begins with the first step, nothing can be read without it.
        """
        return self._profiler is None or self.warm_up == 0

    @property
    def running(self) -> bool:
        """Whether steps are traced now."""
        return self._profiler is not None and not self.finished

    def before(self, step: int) -> None:
        """Step `step` comes next."""
        if not self.finished and self._profiler is None and step >= self._first:
            activities = [torch.profiler.ProfilerActivity.CPU]
            if self._device.type == "cuda":
                activities.append(torch.profiler.ProfilerActivity.CUDA)
            # its library announces beginning and end on standard error otherwise
            told = "KINETO_LOG_LEVEL" in os.environ
            os.environ.setdefault("KINETO_LOG_LEVEL", "99")
            try:
                self._profiler = torch.profiler.profile(activities=activities)
                self._profiler.start()
            finally:
                if not told:
                    del os.environ["KINETO_LOG_LEVEL"]

    def after(self, step: int) -> None:
        """Step `step` is done."""
        if self.running:
            self.traced.append(step)
            if step >= self._last:
                self.stop()

    def stop(self) -> None:
        """End the trace where it stands."""
        if self._profiler is not None and not self.finished:
            self._profiler.stop()
        self.finished = True

    def range(self, name: str) -> contextlib.AbstractContextManager[Any]:
        """A named stretch in the trace."""
        return torch.profiler.record_function(name)

    def write(self, path: Path) -> bool:
        """Write the trace, whole or not at all; False when no step was traced.

        Raises:
            StorageError: the file system refused.
        """
        self.stop()
        if self._profiler is None or not self.traced:
            return False
        with tempfile.TemporaryDirectory(prefix="wyrmling-") as folder:
            exported = Path(folder) / "trace.json"
            self._profiler.export_chrome_trace(str(exported))
            content = exported.read_bytes() if exported.exists() else b""
        try:
            json.loads(content)
        except ValueError as error:
            raise StorageError(
                f"cannot write {path}: the trace did not fit into {tempfile.gettempdir()}"
            ) from error
        write_atomically(path, content)
        return True
