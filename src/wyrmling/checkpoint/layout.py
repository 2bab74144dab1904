"""Where checkpoints lie: names, numeric order, pointers, and what a killed writer left behind.

    checkpoint/
      step-000000500/     a whole checkpoint (see `store`)
      step-000001000/
      latest  best        tiny text files, each the name of one of the directories
      .tmp-...            unfinished or being removed; nobody reads it, the next writer removes it
      .old-step-...       a whole checkpoint that was being replaced by another of the same step
      superseded/         whole checkpoints that a resume from an earlier step left behind

This module needs no torch, so that listing runs stays quick.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Literal

from ..files import (
    move_folder,
    read_name,
    remove_leftovers,
    storage_errors,
    temporary_sibling,
    write_name,
)
from .manifest import MANIFEST

ASIDE_PREFIX = ".old-"
SUPERSEDED = "superseded"

Pointer = Literal["latest", "best"]

_STEP_NAME = re.compile(r"step-(\d{9,})")


def step_name(step: int) -> str:
    """The directory name of a step, padded to 9 digits (more when the number needs more)."""
    if step < 0:
        raise ValueError(f"a step is at least 0, not {step}")
    return f"step-{step:09d}"


def parse_step(name: str) -> int | None:
    """The step in a directory name, or None when it is not a checkpoint's name."""
    match = _STEP_NAME.fullmatch(name)
    return int(match[1]) if match else None


def aside_path(root: Path, step: int) -> Path:
    """Where the old checkpoint of `step` waits for the moment in which a new one takes its name."""
    return root / f"{ASIDE_PREFIX}{step_name(step)}"


def checkpoint_path(root: Path, step: int) -> Path:
    """The directory of a step's checkpoint (which need not exist).

    A writer that was killed while it replaced a checkpoint leaves the old one set aside; then that is the
    path.
    """
    path = root / step_name(step)
    aside = aside_path(root, step)
    return aside if not path.exists() and aside.exists() else path


def list_checkpoints(root: Path) -> list[int]:
    """Steps that have a checkpoint in `root`, in numeric order; empty when `root` does not exist."""
    try:
        # One look at the directory: asking again about each name would miss one that is being renamed.
        with os.scandir(root) as entries:
            names = [entry.name.removeprefix(ASIDE_PREFIX) for entry in entries if entry.is_dir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted({step for step in map(parse_step, names) if step is not None})


def recover(root: Path) -> None:
    """Finish what a writer killed while replacing a checkpoint had begun. Only for the one who writes.

    Where folders cannot be renamed, the old checkpoint is removed file by file once it stands aside, and may be there
    in part: then the one aside is the whole one.
    """
    for aside in root.glob(f"{ASIDE_PREFIX}step-*"):
        path = root / aside.name.removeprefix(ASIDE_PREFIX)
        if _is_whole(path):
            discard(aside)
        else:
            with storage_errors(path):
                shutil.rmtree(path, ignore_errors=True)
                move_folder(aside, path)


def _is_whole(path: Path) -> bool:
    """Whether every file that a checkpoint's manifest names is there, in its size."""
    try:
        files = json.loads((path / MANIFEST).read_bytes())["files"]
        return all((path / name).stat().st_size == record["bytes"] for name, record in files.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def discard(path: Path) -> None:
    """Remove a directory so that, killed at any instant, it is whole or is no longer a checkpoint."""
    doomed = temporary_sibling(path)
    shutil.rmtree(doomed, ignore_errors=True)
    with storage_errors(path):
        move_folder(path, doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def clean(root: Path) -> list[str]:
    """Remove the leftovers of killed writers; return their names. Only for the one who writes."""
    if not root.is_dir():
        return []
    recover(root)
    return remove_leftovers(root)


def write_pointer(root: Path, name: Pointer, step: int) -> None:
    """Let `latest` or `best` name a step. Call it after the checkpoint is saved.

    Raises:
        StorageError: the file system refused; the pointer keeps its old value.
    """
    write_name(root / name, step_name(step))


def read_pointer(root: Path, name: Pointer) -> int | None:
    """The step that a pointer names; None when there is no pointer, or what is there names none.

    Pointers are for people and for other programs: whoever can, derives what they say from the checkpoints.
    """
    return parse_step(read_name(root / name) or "")
