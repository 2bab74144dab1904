"""Rules of `[run_layout]`: names that can be folders on every system, and that stay below the folder of the runs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..problems import Problem
from .rulebook import Rulebook

if TYPE_CHECKING:
    from ..schema import Config

BOOK = Rulebook()
FOLDERS = ("category", "bundle", "stage", "variant")
"""The keys that name folders, from the outermost to the innermost."""

DEEPEST = 4
"""Most folders that one of these keys may name."""

RESERVED_NAMES = {
    "latest": "which means the newest run",
    "checkpoint": "which is the folder of a run's checkpoints",
}

# Names that mean a device on Windows, whatever follows the first dot.
_DEVICES = {"con", "prn", "aux", "nul", *(f"{port}{n}" for port in ("com", "lpt") for n in range(10))}
_ALLOWED = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")


def is_folder_name(name: str) -> bool:
    """Whether a name is one plain folder on every system: no separator, no `..`, no device, no reserved word."""
    device = name.split(".", 1)[0].lower() in _DEVICES
    plain = _ALLOWED.fullmatch(name) is not None and not name.endswith(".")
    return plain and not device and name.lower() not in RESERVED_NAMES


@BOOK.rule("a-run-has-its-own-name", "`run_layout.name` is none of the names that mean something else.")
def _name(config: Config) -> Iterator[Problem]:
    name = config.run_layout.name
    if name in RESERVED_NAMES:
        yield Problem(f'run_layout.name must not be "{name}", {RESERVED_NAMES[name]}', ("run_layout.name",))


@BOOK.rule(
    "folders-lie-below-the-runs",
    f"`run_layout.category`, `bundle`, `stage` and `variant` are at most {DEEPEST} plain names with / between them.",
)
def _folders(config: Config) -> Iterator[Problem]:
    for key in FOLDERS:
        value = getattr(config.run_layout, key)
        if value is None:
            continue
        parts = value.split("/")
        if len(parts) > DEEPEST or not all(map(is_folder_name, parts)):
            yield Problem(
                f"run_layout.{key} must name folders below the folder of the runs: at most {DEEPEST} names of letters, "
                f"digits, '.', '_' and '-' with / between them, got {value[:60]!r}",
                (f"run_layout.{key}",),
            )
