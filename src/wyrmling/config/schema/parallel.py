"""`[parallel]`: over how many processes."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from .base import PositiveInt, Table


class Parallel(Table):
    """How a run is spread over processes."""

    mode: Literal["single"] = Field(default="single", description="One process.")
    world_size: PositiveInt = Field(default=1, description="Number of processes.")
