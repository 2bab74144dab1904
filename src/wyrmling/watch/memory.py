"""How much memory this process holds, and how much the machine has. All figures in bytes.

Resident memory is what counts on a CPU: pages that were touched, whoever allocated them. Nothing here
imports torch.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc/self")
_CGROUP = Path("/sys/fs/cgroup")


def current_memory() -> int:
    """Resident memory of this process now.

    Exact on Linux and Windows. Elsewhere the system offers no cheap reading, and the peak stands in for it.
    """
    if sys.platform == "win32":
        return _windows_working_set()[0]
    try:
        pages = (_PROC / "statm").read_text().split()[1]
    except OSError:
        return peak_memory()
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def peak_memory() -> int:
    """The largest resident memory of this process since it started.

    On Linux this is VmHWM and not `ru_maxrss`, which a child inherits from the process that started it.
    """
    if sys.platform == "win32":
        return _windows_working_set()[1]
    try:
        return _kilobytes(_PROC / "status", "VmHWM")
    except (OSError, KeyError):
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


@dataclass(frozen=True)
class MachineMemory:
    """`total` and `available` bytes; None where the system does not say. `limited_by`: "container"."""

    total: int | None
    available: int | None
    limited_by: str | None = None


def machine_memory() -> MachineMemory:
    """The memory this process may use: the machine's, or less where a container (cgroup) sets a limit."""
    if sys.platform == "win32":
        return MachineMemory(*_windows_memory())
    try:
        total = _kilobytes(Path("/proc/meminfo"), "MemTotal")
        available = _kilobytes(Path("/proc/meminfo"), "MemAvailable")
    except (OSError, KeyError):
        return MachineMemory(_physical_pages(), None)
    limit = _cgroup_number("memory.max")
    if limit is None or limit >= total:
        return MachineMemory(total, available)
    used = _cgroup_number("memory.current") or 0
    return MachineMemory(limit, min(available, max(limit - used, 0)), "container")


def _physical_pages() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return None


def _kilobytes(path: Path, key: str) -> int:
    for line in path.read_text().splitlines():
        name, _, rest = line.partition(":")
        if name == key:
            return int(rest.split()[0]) * 1024
    raise KeyError(key)


def _cgroup_number(name: str) -> int | None:
    try:
        text = (_CGROUP / name).read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _windows_working_set() -> tuple[int, int]:
    """Current and peak working set, from GetProcessMemoryInfo."""
    if sys.platform != "win32":
        raise OSError("not Windows")
    import ctypes
    from ctypes import wintypes

    class Counters(ctypes.Structure):
        _fields_ = [("cb", wintypes.DWORD), ("PageFaultCount", wintypes.DWORD)] + [
            (name, ctypes.c_size_t)
            for name in (
                "PeakWorkingSetSize",
                "WorkingSetSize",
                "QuotaPeakPagedPoolUsage",
                "QuotaPagedPoolUsage",
                "QuotaPeakNonPagedPoolUsage",
                "QuotaNonPagedPoolUsage",
                "PagefileUsage",
                "PeakPagefileUsage",
            )
        ]

    counters = Counters(cb=ctypes.sizeof(Counters))
    kernel = ctypes.WinDLL("kernel32")
    kernel.GetCurrentProcess.restype = wintypes.HANDLE
    ask = kernel.K32GetProcessMemoryInfo
    ask.argtypes = [wintypes.HANDLE, ctypes.POINTER(Counters), wintypes.DWORD]
    if not ask(kernel.GetCurrentProcess(), ctypes.byref(counters), counters.cb):
        raise ctypes.WinError()
    return counters.WorkingSetSize, counters.PeakWorkingSetSize


def _windows_memory() -> tuple[int, int]:
    """Total and available physical memory, from GlobalMemoryStatusEx."""
    if sys.platform != "win32":
        raise OSError("not Windows")
    import ctypes
    from ctypes import wintypes

    class Status(ctypes.Structure):
        _fields_ = [("length", wintypes.DWORD), ("load", wintypes.DWORD)] + [
            (name, ctypes.c_uint64)
            for name in (
                "total",
                "available",
                "total_page",
                "available_page",
                "total_virtual",
                "available_virtual",
                "extended",
            )
        ]

    status = Status(length=ctypes.sizeof(Status))
    if not ctypes.WinDLL("kernel32").GlobalMemoryStatusEx(ctypes.byref(status)):
        raise ctypes.WinError()
    return status.total, status.available
