"""What the environment says about a run: `WYRMLING_RUN_DIR` and `WYRMLING_RUN_NAME`, both or neither."""

from __future__ import annotations

import os
from pathlib import Path

from ..errors import ConfigError
from .names import checked_name

RUN_DIR_VARIABLE = "WYRMLING_RUN_DIR"
RUN_NAME_VARIABLE = "WYRMLING_RUN_NAME"


def given_run() -> tuple[Path, str] | None:
    """Directory and name that the environment fixes for a new run, or None when it fixes neither.

    A variable that is set to nothing (or blanks) counts as not set.

    Raises:
        ConfigError: only one of the two is set, or the name cannot be one.
    """
    directory = os.environ.get(RUN_DIR_VARIABLE, "").strip()
    name = os.environ.get(RUN_NAME_VARIABLE, "").strip()
    if not directory and not name:
        return None
    if not directory or not name:
        there, absent = (
            (RUN_DIR_VARIABLE, RUN_NAME_VARIABLE) if directory else (RUN_NAME_VARIABLE, RUN_DIR_VARIABLE)
        )
        raise ConfigError(f"{there} is set and {absent} is not; set both, or neither")
    return Path(os.path.expanduser(directory)), checked_name(name, RUN_NAME_VARIABLE)
