"""`[model.initialization]`: the first weights.

A table that gives only some keys keeps the defaults of the others, which are those of the published BDH:
every matrix normal with a deviation of 0.02, nothing else.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from .base import NonNegativeFloat, PositiveFloat, PositiveInt, Table

FiringRate = Annotated[float, Field(gt=0, lt=1)]


class ResidualScaling(Table):
    """Smaller weights for deeper models."""

    kind: Literal["disabled", "depth_scaled", "family_default"] = Field(
        default="disabled",
        description='"depth_scaled": divide by the square root of n_layer; "family_default": so for '
        "near_critical and headwise_semi_orthogonal.",
    )
    gain: PositiveFloat = Field(default=1.0, description="Factor on encoder, encoder_v and decoder.")


class NeuronGains(Table):
    """Neurons of different strength."""

    kind: Literal["iid", "heavy_tailed_log_normal"] = Field(
        default="iid", description='"iid": all alike; otherwise strengths drawn per neuron.'
    )
    log_sigma: NonNegativeFloat = Field(
        default=0.75, description="Deviation of the logarithm of the strength."
    )
    max_gain: PositiveFloat = Field(
        default=4.0, description="Largest strength, before they are scaled to rms 1."
    )


class TopologyPrior(Table):
    """Communities of neurons with bridges between them."""

    kind: Literal["iid", "modular_bridges"] = Field(default="iid", description='"iid": none.')
    community_count: PositiveInt = Field(default=4, description="Number of communities.")
    bridge_fraction: Annotated[float, Field(ge=0, le=1)] = Field(
        default=0.05, description="Share of the neurons that are bridges."
    )
    intra_gain: PositiveFloat = Field(default=1.5, description="Factor within a community.")
    inter_gain: PositiveFloat = Field(default=0.5, description="Factor between communities.")
    bridge_gain: PositiveFloat = Field(default=1.0, description="Factor of the bridges.")


class FiringTargets(Table):
    """Thresholds so that a wanted share of the neurons fires."""

    kind: Literal["disabled", "gaussian_estimate", "explicit_thresholds"] = Field(
        default="disabled", description='"disabled": relu_threshold for all.'
    )
    x_target: FiringRate = Field(default=0.15, description="Share of x that fires (gaussian_estimate).")
    y_target: FiringRate = Field(default=0.05, description="Share of y that fires (gaussian_estimate).")
    x_threshold: float = Field(default=0.0, description="Threshold of x (explicit_thresholds).")
    y_threshold: float = Field(default=0.0, description="Threshold of y (explicit_thresholds).")


class Initialization(Table):
    """How the first weights are drawn."""

    kind: Literal["simple_normal", "near_critical", "headwise_semi_orthogonal", "he_glorot"] = Field(
        default="simple_normal", description="The family."
    )
    simple_normal_std: PositiveFloat = Field(default=0.02, description="Deviation of simple_normal.")
    residual_scaling: ResidualScaling = Field(
        default_factory=ResidualScaling, description="Smaller weights for deeper models."
    )
    neuron_gains: NeuronGains = Field(
        default_factory=NeuronGains, description="Neurons of different strength."
    )
    topology_prior: TopologyPrior = Field(
        default_factory=TopologyPrior, description="Communities of neurons."
    )
    firing_targets: FiringTargets = Field(
        default_factory=FiringTargets, description="Thresholds so that a wanted share of the neurons fires."
    )
