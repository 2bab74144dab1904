"""`[training.continual_backprop]`: neurons that do little are replaced while the model trains."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from .base import NonNegativeFloat, PositiveFloat, PositiveInt, Table


class ContinualBackprop(Table):
    """Replacing the neurons that contribute least, a few at a time."""

    enabled: bool = Field(default=False, description="Whether neurons are replaced.")
    target: Literal["shared_lowrank_latents"] = Field(
        default="shared_lowrank_latents",
        description="What is replaced: neurons of encoder, encoder_v and decoder, which all layers share.",
    )
    utility: Literal["contribution_per_input", "contribution"] = Field(
        default="contribution_per_input",
        description="What a neuron is worth: what it hands on times the size of its weights out, over the size of its "
        "weights in; or the first two alone, as the paper has it.",
    )
    utility_decay: Annotated[float, Field(ge=0, lt=1)] = Field(
        default=0.99, description="Decay of the mean of a neuron's contribution, per sample."
    )
    replacement_rate: Annotated[float, Field(ge=0, le=1)] = Field(
        default=1e-4,
        description="Share of the mature neurons that is replaced per optimizer step; 0 only measures.",
    )
    maturity_steps: PositiveInt = Field(
        default=100, description="Optimizer steps for which a new neuron is protected."
    )
    sample_interval_steps: PositiveInt = Field(
        default=8, description="Optimizer steps between measurements of what neurons contribute."
    )
    replace_interval_steps: PositiveInt = Field(
        default=64, description="Optimizer steps between replacements."
    )
    utility_epsilon: PositiveFloat = Field(
        default=1e-6,
        description="Least size of the weights into a neuron that its contribution is divided by.",
    )
    lr_coupling: Literal["none", "global_ratio", "target_group_ratio"] = Field(
        default="none",
        description="What the replacement rate follows: nothing, the learning rate in units of "
        "optimizer.learning_rate, or the mean of that over the replaced weights' parameter groups.",
    )
    lr_coupling_power: NonNegativeFloat = Field(
        default=1.0, description="Power of that ratio of learning rates."
    )
    new_weights: Literal["fresh", "initial"] = Field(
        default="fresh",
        description="Weights into a new neuron: drawn anew, or those that the model began with in this place.",
    )
