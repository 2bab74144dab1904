"""What a process sets for all of PyTorch and NumPy: held for the length of a call, and put back after it.

Whoever calls this package has settings of their own: a default dtype, a number of threads, gradients switched off.
Inside `own_settings` none of them reaches what is computed, and afterwards each is what it was, also after an
exception. What differs is set, and nothing else, so that entering costs some microseconds: a
generation enters once per token.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

_PAUSE_SOFT = 1
_Setting = tuple[Callable[[], Any], Callable[[Any], object]]


def _flushes_denormals() -> bool:
    """Whether the processor takes numbers below the smallest normal one for zero; PyTorch can set it, not tell."""
    half = sys.float_info.min
    half /= 2
    return half == 0.0


def _deterministic() -> tuple[bool, bool]:
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


def _of(holder: Any, name: str) -> _Setting:
    return (lambda: getattr(holder, name)), (lambda value: setattr(holder, name, value))


def _product_backends() -> list[Any]:
    return [torch.backends.mkldnn.matmul, torch.backends.cuda.matmul]  # type: ignore[attr-defined]


def _products() -> Any:
    """How float32 numbers are multiplied.

    PyTorch has two ways to say so, and refuses to read one where the other was used: the older one where it can be
    read (a name), else the one of each backend (a tuple).
    """
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return tuple(backend.fp32_precision for backend in _product_backends())


def _set_products(value: Any) -> None:
    now = _products()
    if isinstance(value, str) and isinstance(now, str):
        torch.set_float32_matmul_precision(value)
        return
    if isinstance(value, str):  # exact products, asked for where each backend has its own word
        value = tuple(each if each in ("none", "ieee") else "ieee" for each in now)
    for backend, precision in zip(_product_backends(), value, strict=True):
        backend.fp32_precision = precision


# name -> (read, write), of the whole process
_SETTINGS: dict[str, _Setting] = {
    "dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "products": (_products, _set_products),
    "oneDNN": _of(torch.backends.mkldnn, "enabled"),
    "deterministic": (
        _deterministic,
        lambda value: torch.use_deterministic_algorithms(value[0], warn_only=value[1]),
    ),
    "fill": _of(torch.utils.deterministic, "fill_uninitialized_memory"),
    "cudnn": _of(torch.backends.cudnn, "enabled"),
    "cudnn.benchmark": _of(torch.backends.cudnn, "benchmark"),
}
_ALWAYS = {"dtype": torch.float32, "products": "highest", "oneDNN": True}

# Calls may overlap in several threads, and end in any order: the newest one in progress rules, and the host's own
# values come back when the last has ended.
_lock = threading.RLock()
_calls: list[dict[str, Any]] = []
_host: dict[str, Any] = {}


@contextlib.contextmanager
def own_settings(
    threads: int | None = None, *, deterministic: bool | None = None, compiler: str | None = None
) -> Iterator[None]:
    """Compute as this package does, whatever the caller has set for PyTorch and NumPy.

    Numbers are made in float32 on the CPU unless another type or place is named; gradients are built; autocast is off;
    products of float32 numbers are exact; NumPy warns as it does by default.

    Args:
        threads: of PyTorch on the CPU; None: as many as are set.
        deterministic: refuse operations whose result may vary, and leave fresh memory as it comes; None: as it is set.
        compiler: the C++ compiler that PyTorch calls; None: as it is set.
    """
    wanted: dict[str, Any] = dict(_ALWAYS)
    if deterministic is not None:
        # filling fresh memory with NaN finds bugs, and costs more than the work itself
        wanted |= {"deterministic": (deterministic, False), "fill": False}
        if torch.cuda.is_available():
            wanted |= {"cudnn": True, "cudnn.benchmark": not deterministic}
    with contextlib.ExitStack() as held:
        held.enter_context(_held(wanted))
        if _flushes_denormals():  # of this thread alone
            held.callback(torch.set_flush_denormal, True)
            torch.set_flush_denormal(False)
        if threads is not None and threads != torch.get_num_threads():
            held.callback(torch.set_num_threads, torch.get_num_threads())
            torch.set_num_threads(threads)
        if compiler is not None:
            from torch._inductor import config  # loads PyTorch's compiler, which few runs use

            held.enter_context(config.patch({"cpp.cxx": (None, compiler)}))
        if torch.is_inference_mode_enabled():
            held.enter_context(torch.inference_mode(False))
        if not torch.is_grad_enabled():
            held.enter_context(torch.enable_grad())
        for kind in ("cpu", "cuda", "mps"):
            if torch.is_autocast_enabled(kind):
                held.enter_context(torch.autocast(kind, enabled=False))
        if torch.get_default_device().type != "cpu":
            held.enter_context(torch.device("cpu"))
        held.enter_context(np.errstate(divide="warn", over="warn", under="ignore", invalid="warn"))
        yield


@contextlib.contextmanager
def _held(wanted: dict[str, Any]) -> Iterator[None]:
    try:  # from the first change on: an interrupt may come between two
        with _lock:
            for name in wanted:
                _host.setdefault(name, _SETTINGS[name][0]())
            _calls.append(wanted)
            _apply()
        yield
    finally:
        with _lock:
            _calls[:] = [call for call in _calls if call is not wanted]
            _apply()
            if not _calls:
                _host.clear()


def _apply() -> None:
    """Set what the newest call wants, and what the host had where no call wants anything."""
    for name, own in _host.items():
        value = next((call[name] for call in reversed(_calls) if name in call), own)
        read, write = _SETTINGS[name]
        if read() != value:
            write(value)


def _release_threads() -> None:
    """Let the threads of GNU's OpenMP go; they are made anew when they are needed.

    A process that is forked has none of them, but remembers them, and its first parallel product would wait for them
    for ever. Other runtimes see to this themselves.
    """
    with contextlib.suppress(OSError, AttributeError):
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            loaded = {line.split()[-1] for line in maps if "libgomp" in line}
        for path in loaded:
            ctypes.CDLL(path).omp_pause_resource_all(_PAUSE_SOFT)


def _forget_calls() -> None:
    """In a child: the calls of other threads end in the parent alone, and what they set is put back here."""
    global _lock
    _lock = threading.RLock()
    _calls.clear()
    _apply()
    _host.clear()


if sys.platform.startswith("linux"):
    os.register_at_fork(before=_release_threads, after_in_child=_forget_calls)
