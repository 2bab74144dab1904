"""The automatic choices of a run: device, dtype, threads, what is kept for the backward pass, kernels, the allocator.

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
from typing import Literal, cast

import torch

from ..config import Config
from ..errors import CheckpointError, ConfigError
from ..model.choice import ExecutorChoice, choose_executor, step_bytes
from ..model.geometry import Geometry
from ..numerics.settings import own_settings
from ..runs import Choice
from ..watch.device_memory import DeviceMemory
from ..watch.survey import find_compiler, physical_cores, usable_cores
from .compiling import choose_kernels
from .rates import operations_per_token, run_seconds

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}

# Beyond this share of the device's memory neurons are computed again instead of kept. Of all memory, not of what is
# free at the moment: the same command makes the same choice, whatever else runs.
KEPT_SHARE = 0.3
# From so many weights in a matrix on, bfloat16 products are at least 1.5 times as fast where a processor has them.
BFLOAT16_WEIGHTS = 1 << 13
# Threads that a machine bears: more than its cores gain nothing, thousands end the process.
THREADS_PER_CORE, LEAST_LIMIT = 8, 64


@dataclass(frozen=True)
class Machine:
    """What a run computes on, and how.

    Attributes:
        dtype: of the products. bfloat16 means autocast over float32 weights; float64 means float64 weights.
        recompute: whether the backward pass computes neurons again.
        choices: all of this as printed and recorded.
        kernels: whether the small elementwise kernels are compiled.
        executor: what computes the layers of a training step; None where nothing is trained.
        deterministic: refuse operations whose result may vary.
    """

    device: torch.device
    dtype: torch.dtype
    threads: int
    recompute: bool
    choices: tuple[Choice, ...]
    kernels: Literal["eager", "compiled"] = "eager"
    executor: ExecutorChoice | None = None
    deterministic: bool = False

    @property
    def chosen_executor(self) -> ExecutorChoice:
        """`executor` of a machine that trains."""
        assert self.executor is not None
        return self.executor

    @property
    def weight_dtype(self) -> torch.dtype:
        """float64 for float64 runs, else float32."""
        return torch.float64 if self.dtype == torch.float64 else torch.float32

    @contextlib.contextmanager
    def autocast(self) -> Iterator[None]:
        """The context of a forward pass."""
        try:
            with torch.autocast(self.device.type, self.dtype, enabled=self.dtype == torch.bfloat16):
                yield
        finally:  # PyTorch drops its casts of the weights with the outermost autocast, and that may be the caller's
            torch.clear_autocast_cache()

    def settings(self) -> contextlib.AbstractContextManager[None]:
        """The context of everything that is computed here: what the process has set is put back after it."""
        compiler = find_compiler() if self.kernels == "compiled" else None
        return own_settings(self.threads, deterministic=self.deterministic, compiler=compiler)


def choose_machine(
    config: Config,
    geometry: Geometry,
    stored: Mapping[str, str] | None = None,
    *,
    tokens: int,
) -> Machine:
    """Make the choices of a training run that the configuration leaves open, or take the stored ones.

    Measures nothing: the same command on the same machine makes the same choices, whatever else runs. For a run long
    enough to gain by it, the C++ compiler is tried (some seconds, once per machine and compiler).

    Args:
        stored: name -> value of the choices of the run that goes on; None for a new run.
        tokens: targets of the whole run, for the estimate of its length.
    Raises:
        ConfigError: a device that this machine lacks, a dtype that the device lacks, a compiler that is not there.
        CheckpointError: a stored choice that this machine cannot take.
    """
    old = stored or {}
    device = choose_device(config.runtime.device, old.get("device"))
    threads = _threads(config.runtime.threads, old.get("threads"))
    dtype = _dtype(config, torch.device(device.value), old.get("dtype"))
    training = config.training
    executor = choose_executor(
        config.effective_model,
        geometry,
        rows=training.batch_size,
        length=training.kernel_block,
        device=device.value,
        element_size=DTYPES[dtype.value].itemsize,
        overridden=training.sequence_kernel_override is not None,
        stored=old.get("executor"),
    )
    _refuse_another_executor(executor, old.get("executor"))

    memory = _activation_memory(
        config, geometry, executor, torch.device(device.value), dtype.value, old.get("activation_memory")
    )

    def seconds() -> float:
        operations = operations_per_token(geometry, training.kernel_block, executor.tile)
        return run_seconds(tokens, operations, DTYPES[dtype.value], int(threads.value))

    kernels = choose_kernels(
        config.runtime.compile,
        old.get("kernels"),
        impossible=_nothing_to_compile(executor, device.value),
        seconds=seconds,
    )
    return Machine(
        device=torch.device(device.value),
        dtype=DTYPES[dtype.value],
        threads=int(threads.value),
        recompute=memory.value == "recompute",
        choices=(
            device,
            dtype,
            threads,
            Choice("executor", executor.value, executor.reason),
            memory,
            kernels,
        ),
        executor=executor,
        kernels=cast(Literal["eager", "compiled"], kernels.value),
        deterministic=config.runtime.deterministic and device.value == "cuda",
    )


def _refuse_another_executor(executor: ExecutorChoice, stored: str | None) -> None:
    """Raises CheckpointError where a run that goes on would be computed in another way than before."""
    if stored is not None and stored != executor.value:
        raise CheckpointError(
            f"the run was computed as {stored}, and this version takes {executor.value} here, whose last bits differ; "
            "pass --allow-inexact to go on all the same"
        )


def machine_for_reading(config: Config, recorded: Mapping[str, str]) -> Machine:
    """What evaluation and generation run on: this machine's device and threads, and the run's own dtype.

    Nothing is measured, nothing compiled, and nothing is kept for a backward pass.

    Args:
        recorded: name -> value of the run's choices; empty for a run that was imported.
    Raises:
        ConfigError: a device that this machine lacks, or a dtype that the device lacks.
    """
    device = choose_device(config.runtime.device, None)
    dtype = _dtype(config, torch.device(device.value), None)
    known = recorded.get("dtype")
    able = known == "float32" or (known == "bfloat16" and fast_bfloat16())
    if config.runtime.dtype == "auto" and able and recorded.get("device") == device.value:
        dtype = Choice("dtype", str(known), "as the run was trained")
    threads = _threads(config.runtime.threads, None)
    return Machine(
        torch.device(device.value),
        DTYPES[dtype.value],
        int(threads.value),
        False,
        (device, dtype, threads),
        deterministic=config.runtime.deterministic and device.value == "cuda",
    )


def allocator() -> Choice:
    """What becomes of freed memory in this process."""
    return _allocator


def keep_freed_memory() -> Choice:
    """Ask glibc to keep freed blocks instead of giving them back to the system after every tensor.

    A step frees and takes the same large tensors again and again. By default each comes as fresh pages, and touching
    a fresh page costs more than the arithmetic on it. It cannot be taken back, so only a process that does nothing
    else asks for it: the command.
    """
    global _allocator
    _allocator = _keep_freed_memory()
    return _allocator


KEPT = "keep"
_allocator = Choice("allocator", "the caller's", "left as it is in a program that is not the command's own")


def _keep_freed_memory() -> Choice:
    name = "allocator"
    if not sys.platform.startswith("linux"):
        return Choice(name, "system", f"no setting known on {sys.platform}")
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return Choice(name, "system", "this C library has no mallopt")
    trim_threshold, mmap_threshold, never = -1, -3, -1
    if mallopt(mmap_threshold, 1 << 30) and mallopt(trim_threshold, never):
        return Choice(name, KEPT, "freed tensors are reused instead of paged in anew (glibc mallopt)")
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


def choose_device(asked: str, stored: str | None = None) -> Choice:
    """The device of a run.

    Args:
        asked: `runtime.device`.
        stored: that of the run that goes on.
    Raises:
        ConfigError, CheckpointError: this machine lacks it.
    """
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
    """Whether this processor multiplies bfloat16 matrices in hardware, and PyTorch uses that (not on macOS)."""
    if sys.platform == "darwin":
        return False
    checks = ("_is_avx512_bf16_supported", "_is_amx_tile_supported", "_is_arm_bf16_supported")
    return any(bool(getattr(torch.cpu, name)()) for name in checks if hasattr(torch.cpu, name))


def _dtype(config: Config, device: torch.device, stored: str | None) -> Choice:
    """By what the device can do and the sizes of the model: nothing is measured, so nothing can tip the scales."""
    asked, kept = config.runtime.dtype, "weights, states and sums stay float32"
    if stored is not None:
        return Choice("dtype", stored, "as when the run was created")
    if asked != "auto":
        if asked == "float64" and device.type == "mps":
            raise ConfigError("runtime.dtype: mps has no float64; use float32")
        return Choice("dtype", asked, "asked for by runtime.dtype")
    if device.type == "cuda" and torch.cuda.is_bf16_supported():
        return Choice("dtype", "bfloat16", f"this device multiplies bfloat16; {kept}")
    if device.type != "cpu":
        return Choice("dtype", "float32", f"the safe choice on {device.type}")
    if not fast_bfloat16():
        return Choice("dtype", "float32", "this processor has no bfloat16 products")
    weights = config.effective_model.n_embd * config.effective_model.total_neurons
    if weights < BFLOAT16_WEIGHTS:
        return Choice(
            "dtype", "float32", f"matrices of {weights:,} weights: bfloat16 pays from {BFLOAT16_WEIGHTS:,} on"
        )
    return Choice("dtype", "bfloat16", f"this processor multiplies bfloat16; {kept}")


def _nothing_to_compile(executor: ExecutorChoice, device: str) -> str | None:
    """Why compiled kernels have no place in this run; None where they have."""
    if device != "cpu":
        return f"kernels are compiled on the CPU only, not on {device}"
    if executor.name == "composed":
        return "the composed executor has no kernels of its own"
    return None


def _threads(asked: int | None, stored: str | None) -> Choice:
    """The threads of a run: of the machine, whatever the process that it runs in has set.

    Raises:
        ConfigError: more than this machine bears; thousands of threads end the process.
        CheckpointError: the run that goes on had more.
    """
    cores = usable_cores()
    most = max(LEAST_LIMIT, THREADS_PER_CORE * cores)
    if stored is not None:
        if int(stored) > most:
            raise CheckpointError(
                f"the run was trained with {stored} threads, and a machine of {cores} cores bears {most} at most: "
                "resume it where it was trained, or pass --allow-inexact with --set runtime.threads=N"
            )
        return Choice("threads", stored, "as when the run was created")
    if asked is not None:
        if asked > most:
            raise ConfigError(
                f"runtime.threads is {asked}, and a machine of {cores} cores bears {most} at most; leave it out for "
                "one per core"
            )
        return Choice("threads", str(asked), "asked for by runtime.threads")
    words = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if words.isdecimal() and int(words) > 0:
        bounded = "" if int(words) <= most else f", of which a machine of {cores} cores bears {most}"
        return Choice("threads", str(min(int(words), most)), f"OMP_NUM_THREADS asks for {words}{bounded}")
    return Choice("threads", str(physical_cores()), "one per core that this process may use")


def _activation_memory(
    config: Config,
    geometry: Geometry,
    executor: ExecutorChoice,
    device: torch.device,
    dtype: str,
    stored: str | None,
) -> Choice:
    name, asked = "activation_memory", config.runtime.activation_memory
    if stored is not None:
        return Choice(name, stored, "as when the run was created")
    if asked in ("keep", "recompute"):
        return Choice(name, asked, "asked for by runtime.activation_memory")
    needs = {
        value: step_bytes(
            executor,
            geometry,
            rows=config.training.batch_size,
            length=config.training.kernel_block,
            recompute=value == "recompute",
            element_size=DTYPES[dtype].itemsize,
            dropout=config.model.dropout > 0,
            spans=config.training.spans,
            carries=config.training.carries_states,
        )
        for value in ("keep", "recompute")
    }
    about = f"a step would keep about {needs['keep'] / 1e6:,.0f} MB"
    if asked != "auto":
        return _within_budget(name, int(asked), needs, about)
    total = DeviceMemory(device).total()
    if not total:
        return Choice(name, "keep", f"{about}; the size of the memory is not known here")
    fits = needs["keep"] <= KEPT_SHARE * total
    verdict = "fits in" if fits else "is more than"
    return Choice(
        name,
        "keep" if fits else "recompute",
        f"{about}, which {verdict} {KEPT_SHARE:.0%} of the {total / 1e6:,.0f} MB here",
    )


def _within_budget(name: str, budget: int, needs: Mapping[str, int], about: str) -> Choice:
    """What fits a number of bytes that somebody gave."""
    given = f"runtime.activation_memory ({budget:,} bytes)"
    for value, need in needs.items():
        if need <= budget:
            verdict = "which fits" if value == "keep" else "which does not fit"
            return Choice(name, value, f"{about}, {verdict} {given}")
    raise ConfigError(
        f"{given} is too small for a step, which needs about {needs['recompute']:,} bytes even when neurons are "
        "computed again: raise it, or lower training.batch_size, training.block_size or training.tbptt_chunk_size"
    )
