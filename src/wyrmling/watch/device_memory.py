"""How much memory the work itself takes, on whatever it runs: a reading now, and the largest so far.

    device    reserved                              in use                                peak
    cpu       resident memory of the process        what malloc has given out (glibc),    largest resident memory
                                                    else the resident memory              of the process
    cuda      what PyTorch's allocator holds        what tensors occupy of it             largest that was held
    mps       what the driver has given             what tensors occupy of it             largest reading taken

All in bytes.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .memory import current_memory, machine_memory, peak_memory

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Reading:
    """Memory at one moment: what is held for the work, and what of it is in use."""

    reserved: int
    in_use: int


class DeviceMemory:
    """Reads the memory of one device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._largest = 0
        self._allocated = _mallinfo() if device.type == "cpu" else None

    def wait(self) -> None:
        """Let the device finish what it was given."""
        import torch

        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        elif self.device.type == "mps":
            torch.mps.synchronize()

    def read(self) -> Reading:
        """The memory now."""
        import torch

        if self.device.type == "cuda":
            reading = Reading(
                torch.cuda.memory_reserved(self.device), torch.cuda.memory_allocated(self.device)
            )
        elif self.device.type == "mps":
            reading = Reading(torch.mps.driver_allocated_memory(), torch.mps.current_allocated_memory())
        else:
            resident = current_memory()
            reading = Reading(resident, resident if self._allocated is None else self._allocated())
        self._largest = max(self._largest, reading.reserved, reading.in_use)
        return reading

    def peak(self) -> int:
        """The largest that was reserved so far."""
        import torch

        if self.device.type == "cuda":
            return int(torch.cuda.max_memory_reserved(self.device))
        if self.device.type == "mps":
            self.read()
            return self._largest
        return peak_memory()

    def total(self) -> int | None:
        """All there is for this process; None where the system does not say."""
        import torch

        if self.device.type == "cuda":
            return int(torch.cuda.get_device_properties(self.device).total_memory)
        if self.device.type == "mps":
            return int(torch.mps.recommended_max_memory())
        return machine_memory().total

    def available(self) -> int | None:
        """What is free now; None where the system does not say."""
        import torch

        if self.device.type == "cuda":
            return int(torch.cuda.mem_get_info(self.device)[0])
        if self.device.type == "mps":
            return int(torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory())
        return machine_memory().available


class _MallocInfo(ctypes.Structure):
    """`struct mallinfo2` of glibc 2.33 and later."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        )
    ]


def _mallinfo() -> Callable[[], int] | None:
    """What tells the bytes that malloc has given out, where the C library has it."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        function = ctypes.CDLL(None).mallinfo2
    except (AttributeError, OSError):
        return None
    function.restype = _MallocInfo

    def allocated() -> int:
        info = function()
        return int(info.uordblks + info.hblkhd)

    return allocated
