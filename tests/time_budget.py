"""What each folder of tests may cost, and a table of what it did cost at the end of a run.

Seconds on two cores. A machine that is busy or slow is no failure: only where WYRMLING_ENFORCE_BUDGET is set (in
continuous integration) does a folder that took more than three times its budget fail the run.
"""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path

import pytest

SECONDS = {
    "checkpoint": 40,
    "cli": 60,
    "config": 20,
    "data": 30,
    "documentation": 10,
    "generation": 20,
    "joins": 110,
    "memory": 20,
    "model": 15,
    "numerics": 20,
    "optim": 10,
    "runs": 15,
    "text": 15,
    "training": 25,
    "watch": 30,
    "benchmarks": 20,
    ".": 15,
}
PATIENCE = 3.0
ROOT = Path(__file__).parent


class TimeBudget:
    """A plugin that adds up durations per folder."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if "slow" in report.keywords:
            return
        path = Path(report.nodeid.split("::")[0])
        parts = path.relative_to("tests").parts if path.parts[:1] == ("tests",) else path.parts
        self.spent[parts[0] if len(parts) > 1 else "."] += report.duration

    def over(self) -> list[str]:
        """Folders that took more than their budget allows."""
        return [name for name, seconds in self.spent.items() if seconds > PATIENCE * SECONDS.get(name, 0)]

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section("seconds per folder (budget)")
        for name in sorted(self.spent):
            budget = SECONDS.get(name, 0)
            mark = "  over" if self.spent[name] > budget else ""
            terminalreporter.line(f"{name:<14} {self.spent[name]:6.1f} ({budget}){mark}")

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if os.environ.get("WYRMLING_ENFORCE_BUDGET") and self.over() and session.exitstatus == 0:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
