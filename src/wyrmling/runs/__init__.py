"""Runs on the disk: where they lie, what they are called, what they record about themselves."""

from __future__ import annotations

from ..config.paths import run_root
from .choices import Choice
from .directory import RunDirectory, create_run, refuse_taken
from .finding import find_run, latest_run, newest_in, run_names
from .records import build_run_record, state_layout

__all__ = [
    "Choice",
    "RunDirectory",
    "build_run_record",
    "create_run",
    "find_run",
    "latest_run",
    "newest_in",
    "refuse_taken",
    "run_names",
    "run_root",
    "state_layout",
]
