"""Where a run starts from, as keys and as `--set` texts."""

from __future__ import annotations

from pathlib import Path

from .toml import toml_value

LAUNCH_KEYS = (
    "launch_mode",
    "resume_run_dir",
    "resume_checkpoint_step",
    "init_checkpoint_path",
    "init_checkpoint_step",
)
"""Of `[training]`: how a run was started, which is no part of what it is."""


def to_go_on(run: Path) -> list[str]:
    """What to set over the configuration of a run, so that it goes on from its newest checkpoint."""
    return _launch("resume_exact_run", run)


def to_fork(run: Path) -> list[str]:
    """What to set over the configuration of a run for a new run that goes on from its newest checkpoint."""
    return [*_launch("fork", run), "run_layout.name=none"]


def _launch(mode: str, run: Path) -> list[str]:
    launch = {"launch_mode": mode, "resume_run_dir": toml_value(run.as_posix())}
    return [f"training.{key}={launch.get(key, 'none')}" for key in LAUNCH_KEYS]
