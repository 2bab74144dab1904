"""Memory figures follow what a process really touches, and what a container really allows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from wyrmling.watch import memory

MIB = 1 << 20

_CHILD = """
from wyrmling.watch.memory import current_memory, peak_memory
base, base_peak = current_memory(), peak_memory()
block = bytearray(b"x") * (200 << 20)
held, held_peak = current_memory(), peak_memory()
del block
print(base, base_peak, held, held_peak, current_memory(), peak_memory())
"""


def test_current_memory_rises_and_falls_and_the_peak_stays() -> None:
    output = subprocess.run([sys.executable, "-c", _CHILD], capture_output=True, text=True, check=True).stdout
    base, base_peak, held, held_peak, freed, freed_peak = map(int, output.split())
    assert base_peak < 150 * MIB, "the peak of the process that started this one must not show"
    assert held_peak - base_peak > 180 * MIB
    assert freed_peak > held_peak - MIB, "a peak does not fall (the kernel counts in batches of pages)"
    if sys.platform in ("linux", "win32"):
        assert held - base > 180 * MIB
        assert held - freed > 180 * MIB


def test_the_machine_has_at_least_what_this_process_holds() -> None:
    machine = memory.machine_memory()
    assert machine.total is not None
    assert machine.total > memory.current_memory()
    assert machine.available is None or 0 <= machine.available <= machine.total


@pytest.mark.skipif(sys.platform != "linux", reason="control groups are a Linux matter")
@pytest.mark.parametrize(
    ("limit", "used", "total", "available"),
    [(256 * MIB, 100 * MIB, 256 * MIB, 156 * MIB), (256 * MIB, 300 * MIB, 256 * MIB, 0)],
)
def test_a_containers_limit_is_the_total(
    limit: int, used: int, total: int, available: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "memory.max").write_text(f"{limit}\n")
    (tmp_path / "memory.current").write_text(f"{used}\n")
    monkeypatch.setattr(memory, "_CGROUP", tmp_path)
    assert memory.machine_memory() == memory.MachineMemory(total, available, "container")


@pytest.mark.skipif(sys.platform != "linux", reason="control groups are a Linux matter")
@pytest.mark.parametrize("limit", ["max", str(1 << 60)])
def test_a_limit_above_the_machines_memory_is_none(
    limit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "memory.max").write_text(limit)
    monkeypatch.setattr(memory, "_CGROUP", tmp_path)
    assert memory.machine_memory().limited_by is None
