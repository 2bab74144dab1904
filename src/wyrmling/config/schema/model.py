"""`[model]`: the shape of the dragon."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from .base import Kinds, PositiveFloat, PositiveInt, Table, Variant
from .initialization import Initialization
from .mamba import Mamba

MemoryName = Literal["linear_attention", "mamba2", "mamba3", "rwkv8"]
LONG_NAMES = {
    "mamba2_state_space_duality": "mamba2",
    "mamba3_state_space_duality": "mamba3",
    "rwkv8_state_space": "rwkv8",
}


def _short_name(value: Any) -> Any:
    return LONG_NAMES.get(value, value) if isinstance(value, str) else value


MemorySystem = Annotated[MemoryName, BeforeValidator(_short_name, json_schema_input_type=MemoryName)]


class SequenceKernel(Table):
    """The memory over time, and how it is computed."""

    memory_system: MemorySystem = Field(default="linear_attention", description="What remembers the past.")
    executor: Literal["auto", "fused", "composed", "reference", "dense", "chunked"] = Field(
        default="auto",
        description='Which of the equivalent computations is used. "auto": the fast one. Linear attention: on the CPU '
        '"fused", else "composed" ("reference" is another name for it), each in the cheaper form; "dense", "chunked": '
        'in this form. The other memories: "composed" in chunks; "reference": the recurrence, token by token.',
    )


def _kernel_by_name(value: Any) -> Any:
    return {"memory_system": value} if isinstance(value, str) else value


Kernel = Annotated[
    SequenceKernel, BeforeValidator(_kernel_by_name, json_schema_input_type=MemoryName | SequenceKernel)
]
"""A memory by its name, or a table with its executor."""


class Normalization(Table):
    """The one norm used everywhere."""

    kind: Literal["layer_norm", "rms_norm", "dynamic_tanh", "derf"] = Field(
        default="layer_norm", description="The function."
    )
    affine: bool = Field(default=False, description="Learn a gain and a bias per feature.")
    eps: PositiveFloat = Field(default=1e-5, description="Added to the variance.")
    alpha_init: PositiveFloat | None = Field(
        default=None, description="First slope of dynamic_tanh and derf; unset: 0.5 and 0.88622695."
    )
    shift_init: float | None = Field(default=None, description="First shift of derf; unset: 0.")


class LateLayerFanout(Variant):
    """Narrow layers first, wide layers last."""

    type: Literal["late_layer"] = Field(
        default="late_layer", description="Narrow layers first, wide layers last."
    )
    base_latent_total: PositiveInt = Field(description="Neurons of the narrow layers.")
    last_layers: PositiveInt = Field(description="How many layers at the end have all neurons.")


class GeometricFanout(Variant):
    """Each layer wider than the one before by the same factor."""

    type: Literal["geometric"] = Field(
        default="geometric", description="Each layer wider than the one before by the same factor."
    )
    min_latent_total: PositiveInt = Field(description="Neurons of the first layer.")


FANOUT_SCHEDULES = (LateLayerFanout, GeometricFanout)
FanoutSchedule = LateLayerFanout | GeometricFanout


class StandardHead(Variant):
    """One score per token."""

    default_variant: ClassVar[bool] = True
    type: Literal["standard_token_classification"] = Field(
        default="standard_token_classification", description="One score per token."
    )


LANGUAGE_HEADS = (StandardHead,)
DEFAULT_MULTIPLIER = 128


class Model(Table):
    """L layers that share all their weights: width D, H heads, N neurons per head."""

    alternatives: ClassVar[tuple[tuple[str, str], ...]] = (("latent_total", "mlp_internal_dim_multiplier"),)

    n_layer: PositiveInt = Field(default=6, le=100_000, description="Times the layer is applied (L).")
    n_embd: PositiveInt = Field(default=256, description="Width of the stream (D).")
    n_head: PositiveInt = Field(default=4, description="Heads (H).")
    mlp_internal_dim_multiplier: PositiveInt | None = Field(
        default=DEFAULT_MULTIPLIER, description="Neurons of all heads together, in units of n_embd."
    )
    latent_total: PositiveInt | None = Field(
        default=None, description="Neurons of all heads together (H·N), instead of the multiplier."
    )
    dropout: Annotated[float, Field(ge=0, lt=1)] = Field(
        default=0.1, description="Share of the gated neurons that is silenced in training."
    )
    sequence_kernel: Kernel = Field(
        default_factory=SequenceKernel,
        description="The memory over time: its name, or a table with its executor.",
    )
    mamba: Mamba = Field(default_factory=Mamba, description="The sizes of the Mamba memories.")
    rotary_embedding: Literal["rope", "alibi", "pope"] = Field(
        default="rope",
        description="Positions of linear attention: rotated pairs, a decay per head, or rotated magnitudes.",
    )
    rope_theta: PositiveFloat = Field(default=65536.0, description="Base of the rotation frequencies.")
    alibi_slopes: Annotated[tuple[PositiveFloat, ...], Field(strict=False)] | None = Field(
        default=None, description="Decay per head for alibi; unset: 2^(-h/H)."
    )
    relu_threshold: float = Field(default=0.0, description="A neuron fires above this.")
    normalization: Normalization = Field(default_factory=Normalization, description="The norm.")
    initialization: Initialization = Field(default_factory=Initialization, description="The first weights.")
    latent_fanout_schedule: Annotated[FanoutSchedule, Kinds(*FANOUT_SCHEDULES)] | None = Field(
        default=None, description="Fewer neurons in some layers; unset: all neurons in every layer."
    )
    tie_embeddings: bool = Field(default=False, description="Use the embedding as the head.")
    vocab_size: PositiveInt | None = Field(
        default=None, description="Number of tokens; unset: the tokenizer's. It may be larger, never smaller."
    )
    language_head: Annotated[StandardHead, Kinds(*LANGUAGE_HEADS)] = Field(
        default_factory=StandardHead, description="How the stream becomes scores."
    )
    residual_connector: Literal["vanilla"] = Field(
        default="vanilla", description="How a layer's output joins the stream."
    )

    @property
    def total_neurons(self) -> int:
        """Neurons of all heads together: H·N."""
        if self.latent_total is not None:
            return self.latent_total
        return (self.mlp_internal_dim_multiplier or DEFAULT_MULTIPLIER) * self.n_embd

    @property
    def neurons_per_head(self) -> int:
        """N: what each head holds."""
        return self.total_neurons // self.n_head
