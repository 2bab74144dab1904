"""The automatic choices of a run: device, dtype, threads, what is kept for the backward pass, the allocator.

Every choice is a value with a reason (law 6). Choices are made once, when a run is created, and stored; a resumed run
takes the stored ones, so that it continues bit for bit, and says so where this machine cannot (law 4).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from ..config import Config
from ..errors import CheckpointError, ConfigError
from ..model.geometry import Geometry
from ..runs import Choice
from ..watch.memory import machine_memory

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}

# Beyond this share of the memory that is free when the run is created, neurons are computed again instead of kept.
KEPT_SHARE = 0.4


@dataclass(frozen=True)
class Machine:
    """What a run computes on, and how.

    Attributes:
        dtype: of the products. bfloat16 means autocast over float32 weights; float64 means float64 weights.
        recompute: whether the backward pass computes neurons again.
        choices: all of the above as printed and recorded.
    """

    device: torch.device
    dtype: torch.dtype
    threads: int
    recompute: bool
    choices: tuple[Choice, ...]

    @property
    def weight_dtype(self) -> torch.dtype:
        """float64 for float64 runs, else float32."""
        return torch.float64 if self.dtype == torch.float64 else torch.float32

    @contextlib.contextmanager
    def autocast(self) -> Iterator[None]:
        """The context of a forward pass."""
        with torch.autocast(self.device.type, self.dtype, enabled=self.dtype == torch.bfloat16):
            yield


def choose_machine(
    config: Config, geometry: Geometry, tile: int, stored: Mapping[str, str] | None = None
) -> Machine:
    """Make the choices that the configuration leaves open, or take the stored ones.

    Args:
        tile: tokens per tile of the executor, for the estimate of what a step keeps.
        stored: name -> value of the choices of the run that goes on; None for a new run.
    Raises:
        ConfigError: a device that this machine lacks, or a dtype that the device lacks.
        CheckpointError: a stored choice that this machine cannot take.
    """
    old = stored or {}
    device = _device(config.runtime.device, old.get("device"))
    dtype = _dtype(config.runtime.dtype, torch.device(device.value), old.get("dtype"))
    threads = _threads(config.runtime.threads, old.get("threads"))
    memory = _activation_memory(config, geometry, tile, dtype.value, old.get("activation_memory"))
    return Machine(
        device=torch.device(device.value),
        dtype=DTYPES[dtype.value],
        threads=int(threads.value),
        recompute=memory.value == "recompute",
        choices=(device, dtype, threads, memory),
    )


def apply_process_settings(machine: Machine, *, deterministic: bool) -> Choice:
    """Set what belongs to the process: threads, kernels, the allocator. Returns the allocator's choice."""
    torch.set_num_threads(machine.threads)
    if machine.device.type == "cuda":
        torch.use_deterministic_algorithms(deterministic)
        torch.backends.cudnn.benchmark = not deterministic
    # filling fresh memory with NaN finds bugs, and costs more than the work itself
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    return keep_freed_memory()


def keep_freed_memory() -> Choice:
    """Ask glibc to keep freed blocks instead of giving them back to the system after every tensor.

    A step frees and takes the same large tensors again and again. By default each comes as fresh pages, and touching
    a fresh page costs more than the arithmetic on it.
    """
    name = "allocator"
    if not sys.platform.startswith("linux"):
        return Choice(name, "system", f"no setting known on {sys.platform}")
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return Choice(name, "system", "this C library has no mallopt")
    trim_threshold, mmap_threshold, limit = -1, -3, 1 << 30
    if mallopt(mmap_threshold, limit) and mallopt(trim_threshold, limit):
        return Choice(name, "keep", "freed tensors are reused instead of paged in anew (glibc mallopt)")
    return Choice(name, "system", "mallopt refused")


def thread_waiting() -> Choice:
    """How threads wait for each other; decided by the command before torch is loaded, by the caller otherwise."""
    name = "thread_waiting"
    for variable in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
        if variable in os.environ:
            return Choice(
                name, f"{variable}={os.environ[variable]}", "threads that spin take time from other programs"
            )
    return Choice(name, "torch's own", "neither OMP_WAIT_POLICY nor GOMP_SPINCOUNT is set")


def _device(asked: str, stored: str | None) -> Choice:
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if stored is not None:
        if not available[stored]:
            raise CheckpointError(
                f"the run was trained on {stored}, which this machine lacks: resume it where it was trained, or "
                f"pass --allow-inexact with --set runtime.device=cpu"
            )
        return Choice("device", stored, "as when the run was created")
    if asked != "auto":
        if not available[asked]:
            raise ConfigError(f"runtime.device: {asked} is not available here; use auto or cpu")
        return Choice("device", asked, "asked for by runtime.device")
    found = next(name for name in ("cuda", "mps", "cpu") if available[name])
    missing = [name for name in ("cuda", "mps") if not available[name]]
    return Choice(
        "device",
        found,
        f"no {' and no '.join(missing)} here" if found == "cpu" else "the fastest that is here",
    )


def fast_bfloat16() -> bool:
    """Whether this processor multiplies bfloat16 matrices in hardware."""
    checks = ("_is_avx512_bf16_supported", "_is_amx_tile_supported", "_is_arm_bf16_supported")
    return any(bool(getattr(torch.cpu, name)()) for name in checks if hasattr(torch.cpu, name))


def _dtype(asked: str, device: torch.device, stored: str | None) -> Choice:
    if stored is not None:
        return Choice("dtype", stored, "as when the run was created")
    if asked != "auto":
        if asked == "float64" and device.type == "mps":
            raise ConfigError("runtime.dtype: mps has no float64; use float32")
        return Choice("dtype", asked, "asked for by runtime.dtype")
    if device.type == "cpu":
        if fast_bfloat16():
            return Choice(
                "dtype",
                "bfloat16",
                "this processor multiplies bfloat16; weights, states and sums stay float32",
            )
        return Choice("dtype", "float32", "this processor has no bfloat16 products")
    if device.type == "cuda" and torch.cuda.is_bf16_supported():
        return Choice(
            "dtype", "bfloat16", "this device multiplies bfloat16; weights, states and sums stay float32"
        )
    return Choice("dtype", "float32", f"the safe choice on {device.type}")


def _threads(asked: int | None, stored: str | None) -> Choice:
    if stored is not None:
        return Choice("threads", stored, "as when the run was created")
    if asked is not None:
        return Choice("threads", str(asked), "asked for by runtime.threads")
    return Choice("threads", str(torch.get_num_threads()), "one per core that PyTorch found")


def _activation_memory(
    config: Config, geometry: Geometry, tile: int, dtype: str, stored: str | None
) -> Choice:
    name, asked = "activation_memory", config.runtime.activation_memory
    if stored is not None:
        return Choice(name, stored, "as when the run was created")
    if asked != "auto":
        return Choice(name, asked, "asked for by runtime.activation_memory")
    kept = geometry.activation_bytes(
        config.training.batch_size,
        config.training.block_size,
        recompute=False,
        tile=tile,
        element_size=DTYPES[dtype].itemsize,
        dropout=config.model.dropout > 0,
    )
    free = machine_memory().available
    if not free:
        return Choice(name, "keep", f"a step keeps about {kept / 1e6:,.0f} MB; free memory is not known here")
    fits = kept <= KEPT_SHARE * free
    verdict = "fits in" if fits else "is more than"
    return Choice(
        name,
        "keep" if fits else "recompute",
        f"a step would keep about {kept / 1e6:,.0f} MB, which {verdict} {KEPT_SHARE:.0%} of "
        f"the {free / 1e6:,.0f} MB free",
    )
