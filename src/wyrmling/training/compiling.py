"""Whether the small elementwise kernels of a layer are compiled, which needs a C++ compiler and a run that pays for it.

PyTorch's compiler (inductor) writes C++ and calls the compiler of the system. Whether that works cannot be seen from
outside: the compiler may be missing, old, without headers or OpenMP, or hang. So a small function is compiled in a
child process first, and a run never depends on the outcome. That a compiler works is remembered in the cache, and of
processes that begin side by side one tries while the others wait: a busy machine does not change what is chosen.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from filelock import FileLock, Timeout

from ..config import Config
from ..config.paths import cache_directory
from ..errors import CheckpointError, ConfigError, WyrmlingError
from ..files import write_atomically
from ..runs import Choice
from ..watch.quantities import duration
from ..watch.survey import find_compiler

NAME = "kernels"
# Seconds: trying the compiler (about 10) and compiling the kernels (5 to 15), once; later runs find them in the cache.
COST = 25.0
# The share of a run's time that compiled kernels save.
GAIN = 0.05
# Seconds after which a compiler is given up. The trial takes 4 to 15 on two idle cores.
PATIENCE = 120.0

_TRIAL = """
import sys, torch
try:
    compiled = torch.compile(lambda x, y: torch.relu(x) * y, dynamic=False)
    x = torch.linspace(-1, 1, 4096)
    assert torch.equal(compiled(x, x), torch.relu(x) * x), "the compiled function is wrong"
except BaseException as error:
    sys.exit(" ".join(str(error).split()) or type(error).__name__)
"""


@dataclass(frozen=True)
class Compiler:
    """What was found: the `path` of a C++ compiler that works, or None, the `reason`, and what would help."""

    path: str | None
    reason: str
    remedy: str = ""


def worth_compiling(seconds: float) -> bool:
    """Whether a run of about this many seconds gains more than compiling costs."""
    return GAIN * seconds > COST


def working_compiler(patience: float | None = None) -> Compiler:
    """Try the C++ compiler on a small function, in a child process; once per process and compiler.

    Args:
        patience: seconds after which it is given up.
    """
    path = find_compiler()
    if path is None:
        named = os.environ.get("CXX")
        if named:
            return Compiler(
                None, f"CXX names {named}, which is not there", "correct or unset the variable CXX"
            )
        return Compiler(
            None, "there is no C++ compiler", "install g++ or clang++, name one in the variable CXX"
        )
    return _tried(path, PATIENCE if patience is None else patience)


def choose_kernels(
    asked: Literal["auto", "on", "off"],
    stored: str | None,
    *,
    impossible: str | None,
    seconds: Callable[[], float],
) -> Choice:
    """Compile the kernels or run them one operation after another.

    Args:
        asked: `runtime.compile`.
        stored: what the run that goes on was created with.
        impossible: why nothing can be compiled here whatever the compiler; None where it can.
        seconds: gives an estimate of the run's length; only asked when it matters.
    Raises:
        ConfigError: compiling is asked for, and cannot be done.
        CheckpointError: the run that goes on has compiled kernels, and cannot have them here.
    """
    if stored is not None:
        return _stored(stored, impossible)
    if asked == "off":
        return Choice(NAME, "eager", "asked for by runtime.compile")
    if asked == "on":
        found = _needed_compiler(impossible)
        if found.path is None:
            raise ConfigError(
                f"runtime.compile is on, but {found.reason}: {found.remedy}{', or ' if found.remedy else ''}set "
                "runtime.compile = off"
            )
        return Choice(NAME, "compiled", f"asked for by runtime.compile; {found.reason}")
    if impossible:
        return Choice(NAME, "eager", impossible)
    length = seconds()
    if not worth_compiling(length):
        return Choice(
            NAME, "eager", f"a run of about {duration(length)} gains less than compiling costs ({COST:.0f} s)"
        )
    found = working_compiler()
    if found.path is None:
        return Choice(NAME, "eager", found.reason)
    return Choice(NAME, "compiled", f"{found.reason}; the run takes about {duration(length)}")


def _needed_compiler(impossible: str | None) -> Compiler:
    """The compiler that somebody counts on; none where nothing can be compiled anyway."""
    return Compiler(None, impossible) if impossible else working_compiler()


def _stored(stored: str, impossible: str | None) -> Choice:
    if stored == "compiled":
        found = _needed_compiler(impossible)
        if found.path is None:
            raise CheckpointError(
                f"the run was trained with compiled kernels, but {found.reason}: {found.remedy}"
                f"{', or ' if found.remedy else ''}pass --allow-inexact with --set runtime.compile=off"
            )
    return Choice(NAME, stored, "as when the run was created")


@functools.cache
def _tried(path: str, patience: float) -> Compiler:
    """The outcome of the trial with this compiler: remembered from an earlier one that succeeded, or made now."""
    mark = _mark(path)
    if not mark.exists():
        with contextlib.ExitStack() as held:
            with contextlib.suppress(OSError, Timeout):  # without a cache every process tries for itself
                mark.parent.mkdir(parents=True, exist_ok=True)
                held.enter_context(FileLock(f"{mark}.lock").acquire(timeout=2 * patience))
            failed = None if mark.exists() else _trial(path, patience)
            if failed is not None:
                return failed
            with contextlib.suppress(WyrmlingError):
                write_atomically(mark, "")
    return Compiler(path, f"the C++ compiler {path} works")


def _mark(path: str) -> Path:
    """The empty file whose being there says that this very compiler works with this version of PyTorch."""
    real = os.path.realpath(path)
    found = os.stat(real)
    what = f"{real} {found.st_size} {found.st_mtime_ns} torch {metadata.version('torch')}"
    return cache_directory(Config()) / "compilers" / hashlib.sha256(what.encode()).hexdigest()[:16]


def _trial(path: str, patience: float) -> Compiler | None:
    """Compile a small function; None when it works."""
    commands = [[sys.executable, "-c", _TRIAL]]
    if sys.platform != "win32":
        commands.insert(0, [path, "--version"])  # what PyTorch asks first; tells most failures at once
    for command in commands:
        failure = _run(command, {**os.environ, "CXX": path, "TORCHINDUCTOR_COMPILE_THREADS": "1"}, patience)
        if failure is not None:
            return Compiler(
                None, f"the C++ compiler {path} does not work ({failure})", "name another in the variable CXX"
            )
    return None


def _run(command: list[str], environment: dict[str, str], patience: float) -> str | None:
    """Run a command to its end; None when it succeeded, else a few words on what happened."""
    try:
        child = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,  # what the child starts must end with it
        )
    except OSError as error:
        return error.strerror or type(error).__name__
    with child:
        try:
            _, said = child.communicate(timeout=patience)
        except BaseException as error:
            _end(child)
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            return f"not done after {patience:g} s"
    if child.returncode == 0:
        return None
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return lines[-1][:160] if lines else f"exit code {child.returncode}"


def _end(child: subprocess.Popen[str]) -> None:
    """End a child and what it started."""
    with contextlib.suppress(OSError):
        if sys.platform == "win32":
            child.kill()
        else:
            os.killpg(child.pid, signal.SIGKILL)
