"""Which checkpoints stay."""

from __future__ import annotations

import math
from pathlib import Path

from ..errors import ConfigError
from ..files import move_folder, storage_errors, sync_directory
from .layout import (
    SUPERSEDED,
    Pointer,
    checkpoint_path,
    clean,
    discard,
    list_checkpoints,
    read_pointer,
    step_name,
)


def prune(root: Path, keep: int, best: int | None) -> list[int]:
    """Remove all checkpoints but the newest `keep` (by step number) and the best one.

    Call it after a save and after the pointers are written. A process killed inside leaves whole
    checkpoints only.

    Returns: the steps removed.

    Raises:
        ConfigError: `keep` is below 1.
        StorageError: the file system refused.
    """
    if keep < 1:
        raise ConfigError(f"training.checkpoint_keep is {keep}; at least 1 checkpoint has to be kept")
    clean(root)
    steps = list_checkpoints(root)
    removed = [step for step in steps[:-keep] if step != best]
    for step in removed:
        discard(checkpoint_path(root, step))
    return removed


def set_aside_newer(root: Path, step: int) -> list[int]:
    """Move checkpoints newer than `step` into `superseded/`; for a run that resumes from `step`.

    Without it, a damaged checkpoint 100 would still count as the newest after a fall back to 90, and
    `prune` would keep it and remove the good 95; or a resume from 50 on purpose, when stopped at 60, would
    go on from the 100 of the abandoned course. They are moved, not removed: they may be good. A pointer to
    one of them goes.

    Returns: the steps moved.

    Raises:
        StorageError: the file system refused.
    """
    clean(root)
    newer = [number for number in list_checkpoints(root) if number > step]
    attic = root / SUPERSEDED
    names: tuple[Pointer, ...] = ("latest", "best")
    with storage_errors(attic):
        for name in names:
            if read_pointer(root, name) in newer:
                (root / name).unlink()
        for number in newer:
            attic.mkdir(exist_ok=True)
            move_folder(checkpoint_path(root, number), _free_name(attic, number))
        if newer:
            sync_directory(attic)
            sync_directory(root)
    return newer


def is_better(new: float, old: float | None) -> bool:
    """Whether the metric `new` beats `old` (lower is better; ties keep the earlier one).

    What is not finite never does, and is always beaten.
    """
    if not math.isfinite(new):
        return False
    return old is None or not math.isfinite(old) or new < old


def _free_name(attic: Path, step: int) -> Path:
    path = attic / step_name(step)
    count = 2
    while path.exists():
        path = attic / f"{step_name(step)}-{count}"
        count += 1
    return path
