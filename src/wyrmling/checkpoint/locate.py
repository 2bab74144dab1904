"""From what a person points at to a checkpoint's directory."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from ..errors import CheckpointError
from .layout import checkpoint_path, list_checkpoints, parse_step, read_pointer
from .manifest import MANIFEST
from .store import read_checkpoint

_OWN_NAMES = 8


def locate_checkpoint(path: Path, step: int | Literal["latest", "best"] | None = None) -> Path:
    """The checkpoint directory that `path` and `step` mean.

    Args:
        path: a checkpoint, a directory of checkpoints, or a run directory (which has a folder `checkpoint`).
        step: a number, "latest" (the highest number), "best" (what the newest checkpoint says was the best so
            far; the pointer, where it does not say); None: latest, or `path` itself when it is a
            checkpoint.

    Raises:
        CheckpointError: nothing there; the step is not there (the line names those that are); the newest, which knows
            the best, is damaged; `path` is a file.
    """
    if path.is_file():
        raise CheckpointError(
            f"{path} is a file, and a checkpoint is a directory; weights of the published BDH (.pt) have to "
            "be imported first"
        )
    if (path / MANIFEST).is_file() or parse_step(path.name) is not None:
        if step is None:
            return path
        path = path.parent
    root = path / "checkpoint" if (path / "checkpoint").is_dir() else path
    if not root.is_dir():
        raise CheckpointError(f"there is no run or checkpoint at {path}; check the path")
    steps = list_checkpoints(root)
    if not steps:
        raise CheckpointError(f"there is no checkpoint in {root} yet; train first, or choose another run")
    if step == "best":
        chosen = _best(root, steps[-1])
        if chosen is None or (chosen == 0 and chosen not in steps):
            raise CheckpointError(
                f"{root} has no best checkpoint (no validation yet that is below that of the first weights); use latest"
            )
    elif step is None or step == "latest":
        chosen = steps[-1]
    else:
        chosen = step
    if chosen not in steps:
        names = ", ".join(map(str, steps[-_OWN_NAMES:]))
        raise CheckpointError(f"{root} has no checkpoint of step {chosen}; it has {names}")
    return checkpoint_path(root, chosen)


def _best(root: Path, newest: int) -> int | None:
    best = read_checkpoint(checkpoint_path(root, newest), []).progress.get("best")
    if not isinstance(best, dict):
        return read_pointer(root, "best")
    return best["step"] if isinstance(best.get("step"), int) else None
