"""Checkpoints: `store` writes and verifies them, `retention` decides which stay, `contents` says what a run
saves.

Torch is imported only when tensors are written or read, so that listing runs stays quick; `contents` and
`interchange` need it at once and are imported by name.
"""

from __future__ import annotations

from .layout import (
    checkpoint_path,
    clean,
    list_checkpoints,
    parse_step,
    read_pointer,
    step_name,
    write_pointer,
)
from .locate import locate_checkpoint
from .manifest import Surroundings
from .retention import is_better, prune, set_aside_newer
from .store import Checkpoint, newest_good, read_checkpoint, save_checkpoint

__all__ = [
    "Checkpoint",
    "Surroundings",
    "checkpoint_path",
    "clean",
    "is_better",
    "list_checkpoints",
    "locate_checkpoint",
    "newest_good",
    "parse_step",
    "prune",
    "read_checkpoint",
    "read_pointer",
    "save_checkpoint",
    "set_aside_newer",
    "step_name",
    "write_pointer",
]
