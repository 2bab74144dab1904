"""`[[training.module_lr_scales]]`: parts of the model with a factor of their own."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from .base import NonNegativeFloat, Table

Target = Literal[
    "embedding",
    "normalization",
    "output_head",
    "shared_lowrank_encoder",
    "shared_lowrank_decoder",
    "shared_lowrank_decay",
    "mamba",
    "other_backbone",
]
Fraction = Annotated[float, Field(ge=0, le=1)]


class ScaleSchedule(Table):
    """A line from `scale` to `final_scale` over a part of the run."""

    final_scale: NonNegativeFloat = Field(description="The factor where the line ends, and after it.")
    start_fraction: Fraction = Field(default=0.0, description="Where in the run the line starts.")
    end_fraction: Fraction = Field(default=1.0, description="Where in the run it ends.")


class ModuleScale(Table):
    """A factor of its own for a part of the model."""

    target: Target = Field(description="The part, see [optimizers](optimizers.md).")
    scale: NonNegativeFloat = Field(
        description="The factor, or the first one of a schedule; 0 freezes the part."
    )
    mode: Literal["learning_rate", "gradient"] = Field(
        default="learning_rate",
        description="What is multiplied; AdamW and Muon hardly notice a factor of the gradient.",
    )
    schedule: ScaleSchedule | None = Field(
        default=None, description="A line to another factor; without it the factor stays."
    )


ModuleScales = Annotated[tuple[ModuleScale, ...], Field(strict=False)]
