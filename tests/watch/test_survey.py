"""What is said about the machine agrees with what others say about it."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path

import pytest

from wyrmling.watch import survey as module
from wyrmling.watch.memory import MachineMemory
from wyrmling.watch.survey import Finding, product_rate, survey


@pytest.fixture(scope="module")
def findings() -> dict[str, Finding]:
    return {finding.key: finding for finding in survey(Path("runs"), seconds=0.0, size=32)}


def test_every_point_is_covered_with_a_line_of_advice(findings: dict[str, Finding]) -> None:
    assert list(findings) == [
        "versions",
        "cores",
        "float32_gflops",
        "bfloat16_gflops",
        "memory",
        "devices",
        "cpp_compiler",
        "allocator",
        "disk",
        "default_text",
    ]
    for finding in findings.values():
        for line in (finding.label, finding.text, finding.advice):
            assert line
            assert "\n" not in line


def test_the_survey_is_json(findings: dict[str, Finding]) -> None:
    record = json.loads(json.dumps([asdict(finding) for finding in findings.values()], allow_nan=False))
    assert record[2]["value"] > 0


def test_rates_follow_from_the_clock_and_the_arithmetic() -> None:
    """Five readings a quarter of a second apart: the products take 0.25 s each, the median is of those."""
    now = iter(x * 0.25 for x in range(1000))
    rate = product_rate("float32", seconds=2.0, size=40, clock=lambda: next(now))
    assert rate == pytest.approx(2 * 40**3 / 0.25 / 1e9)


def test_at_least_three_products_are_measured_and_an_outlier_does_not_decide() -> None:
    readings = iter([0.0, 0.0, 100.0, 100.0, 100.5, 100.5, 101.0, 101.0])
    rate = product_rate("float32", seconds=0.0, size=8, clock=lambda: next(readings))
    assert rate == pytest.approx(2 * 8**3 / 0.5 / 1e9)
    assert list(readings) == []


def test_usable_cores_respect_affinity() -> None:
    if hasattr(os, "sched_getaffinity"):
        assert 1 <= module.usable_cores() <= len(os.sched_getaffinity(0))
    assert module.usable_cores() <= (os.cpu_count() or 1)


@pytest.mark.parametrize(("ratio", "fast"), [(0.2, False), (1.0, False), (1.31, True), (8.0, True)])
def test_bfloat16_is_called_fast_only_with_a_clear_gain(ratio: float, fast: bool) -> None:
    finding = module._bfloat16(100.0, 100.0 * ratio)
    assert finding.value["fast"] is fast
    assert ('runtime.dtype = "bfloat16"' in finding.advice) is fast


def test_scarce_memory_and_disk_change_the_advice(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "machine_memory", lambda: MachineMemory(8 * 10**9, 10**9, "container"))
    assert "scarce" in module._memory().advice
    assert "limit of the container" in module._memory().text
    monkeypatch.setattr(module, "machine_memory", lambda: MachineMemory(8 * 10**9, None))
    assert "scarce" not in module._memory().advice
    monkeypatch.setattr(module.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 10**6})())
    assert "WYRMLING_RUN_ROOT" in module._disk(tmp_path / "not" / "yet").advice


def test_a_missing_compiler_is_no_alarm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.shutil, "which", lambda _: None)
    finding = module._compiler()
    assert (finding.value, finding.text) == (None, "none")
    assert "not needed" in finding.advice
