"""`[training.gdpo]`: how groups of continuations are compared, and how far a step may go."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from .base import Kinds, NonNegativeFloat, PositiveFloat, PositiveInt, Table, Variant


class NoGate(Variant):
    """The easy reward always counts."""

    type: Literal["off"] = Field(default="off", description="The easy reward always counts.")


class FixedGate(Variant):
    """The easy reward counts from a fixed hard reward on."""

    type: Literal["fixed"] = Field(
        default="fixed", description="The easy reward counts where the hard one is at least so high."
    )
    threshold: float = Field(description="The least hard reward.")


class PercentileGate(Variant):
    """The easy reward counts for the better ones of a group."""

    default_variant: ClassVar[bool] = True
    type: Literal["percentile"] = Field(
        default="percentile",
        description="The easy reward counts where the hard one is at least the group's quantile.",
    )
    quantile: Annotated[float, Field(ge=0, le=1)] = Field(
        default=0.5, description="The quantile, by linear interpolation; 0.5 is the median."
    )


GATES = (NoGate, FixedGate, PercentileGate)
HardGate = NoGate | FixedGate | PercentileGate


class Gdpo(Table):
    """Group-decoupled policy optimization, for `wyrmling.training.gdpo`."""

    enabled: bool = Field(
        default=False,
        description="Meant for programs that use wyrmling.training.gdpo; `wyrmling train` refuses it.",
    )
    group_size: PositiveInt = Field(
        default=1, description="Continuations per prompt that are compared; at least 2 where it is enabled."
    )
    hard_weight: NonNegativeFloat = Field(default=1.0, description="Weight of the hard reward.")
    easy_weight: NonNegativeFloat = Field(default=1.0, description="Weight of the easy reward.")
    policy_weight: NonNegativeFloat = Field(default=1.0, description="Factor of the loss; 0: no loss.")
    policy_clip_range: NonNegativeFloat = Field(
        default=0.2,
        description="How far a probability may move from where it was drawn, as a share; 0: not limited.",
    )
    hard_gate: Annotated[HardGate, Kinds(*GATES)] = Field(
        default_factory=PercentileGate, description="Where the easy reward counts."
    )
    norm_epsilon: PositiveFloat = Field(default=1e-6, description="Added to variances.")
    advantage_clip: NonNegativeFloat = Field(
        default=0.0, description="Largest size of an advantage; 0: not limited."
    )
    advantage_ema_decay: Annotated[float, Field(ge=0, lt=1)] = Field(
        default=0.0,
        description="Decay of the running mean and variance that advantages are whitened with; 0: those of the batch.",
    )
