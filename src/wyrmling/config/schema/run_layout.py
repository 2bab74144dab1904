"""`[run_layout]`: where runs lie and what they are called."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from .base import FilePath, Table


class RunLayout(Table):
    """Where a run lies."""

    base_dir: FilePath | None = Field(
        default=None, description="Folder of the runs; unset: WYRMLING_RUN_ROOT, else `runs`."
    )
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=200)] | None = Field(
        default=None,
        description="Name of the run (letters, digits, `.`, `_`, `-`); unset: a new one is made up.",
    )
