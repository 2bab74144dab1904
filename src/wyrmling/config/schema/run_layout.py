"""`[run_layout]`: where runs lie and what they are called."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from .base import FilePath, Table, Text


class RunLayout(Table):
    """Where a run lies: base_dir/category/bundles/BUNDLE/stages/STAGE/variants/VARIANT/name, with what is set."""

    base_dir: FilePath | None = Field(
        default=None, description="Folder of the runs; unset: WYRMLING_RUN_ROOT, else `runs`."
    )
    category: Text | None = Field(
        default=None,
        description="Folder below base_dir; several with `/` between them. A run is found by its name all the same.",
    )
    bundle: Text | None = Field(
        default=None, description="Folder `bundles/...` below that; `wyrmling bundle` sets it."
    )
    stage: Text | None = Field(
        default=None, description="Folder `stages/...` below that; `wyrmling bundle` sets it."
    )
    variant: Text | None = Field(
        default=None,
        description="Folder `variants/...` below that: of runs that differ in one thing, which this is.",
    )
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=200)] | None = Field(
        default=None,
        description="Name of the run (letters, digits, `.`, `_`, `-`); unset: a new one is made up.",
    )
