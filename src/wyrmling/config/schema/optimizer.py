"""`[optimizer]`: how gradients become changes."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from .base import CountingInt, Kinds, NonNegativeFloat, PositiveFloat, PositiveInt, Table, Variant

LearningRate = Annotated[float, Field(gt=0, le=1)]
FinalRate = Annotated[float, Field(ge=0, le=1)]
Factor = Annotated[float, Field(gt=0, le=1)]


class ConstantSchedule(Variant):
    """The same learning rate from first to last."""

    type: Literal["constant"] = Field(default="constant", description="The same rate from first to last.")
    initial_lr: LearningRate | None = Field(
        default=None, description="The rate; unset: optimizer.learning_rate."
    )


class CosineSchedule(Variant):
    """Up in a line, down along a cosine, then held at the minimum."""

    type: Literal["cosine"] = Field(
        default="cosine", description="Up in a line, down along a cosine, then held at the minimum."
    )
    initial_lr: LearningRate | None = Field(
        default=None, description="The peak; unset: optimizer.learning_rate."
    )
    min_lr: FinalRate = Field(default=0.0, description="The rate at the end.")
    warmup_steps: CountingInt = Field(default=0, description="Optimizer steps up to the peak.")
    num_iters: PositiveInt | None = Field(
        default=None, description="Optimizer steps to the minimum, warmup included; unset: the whole run."
    )


class LinearSchedule(Variant):
    """Up in a line, down in a line, then held at the final rate."""

    type: Literal["linear"] = Field(
        default="linear", description="Up in a line, down in a line, then held at the final rate."
    )
    initial_lr: LearningRate | None = Field(
        default=None, description="The peak; unset: optimizer.learning_rate."
    )
    final_lr: FinalRate = Field(description="The rate at the end.")
    warmup_steps: CountingInt = Field(default=0, description="Optimizer steps up to the peak.")
    num_iters: PositiveInt | None = Field(
        default=None, description="Optimizer steps to the final rate, warmup included; unset: the whole run."
    )


class ExponentialSchedule(Variant):
    """Times a factor at every step."""

    type: Literal["exponential"] = Field(default="exponential", description="Times a factor at every step.")
    initial_lr: LearningRate | None = Field(
        default=None, description="The rate of the first step; unset: optimizer.learning_rate."
    )
    gamma: Factor = Field(description="The factor.")


class StepSchedule(Variant):
    """Times a factor after every so many steps."""

    type: Literal["step"] = Field(default="step", description="Times a factor after every so many steps.")
    initial_lr: LearningRate | None = Field(
        default=None, description="The rate of the first steps; unset: optimizer.learning_rate."
    )
    gamma: Factor = Field(default=0.1, description="The factor.")
    step_size: PositiveInt | None = Field(
        default=None, description="Optimizer steps between two changes; unset: the whole run, so no change."
    )


class NoamSchedule(Variant):
    """Up in a line, then down with the root of the step."""

    type: Literal["noam"] = Field(
        default="noam",
        description="Up in a line, then down with the root of the step; initial_lr is a factor, not a rate.",
    )
    initial_lr: PositiveFloat | None = Field(
        default=None,
        description="The factor: the highest rate is initial_lr / sqrt(model_size * warmup_steps); "
        "unset: optimizer.learning_rate.",
    )
    warmup_steps: PositiveInt | None = Field(
        default=None, description="Optimizer steps up to the highest rate; unset: the whole run."
    )
    model_size: PositiveInt | None = Field(default=None, description="Width; unset: model.n_embd.")


SCHEDULES = (
    ConstantSchedule,
    CosineSchedule,
    LinearSchedule,
    ExponentialSchedule,
    StepSchedule,
    NoamSchedule,
)
LearningRateSchedule = (
    ConstantSchedule | CosineSchedule | LinearSchedule | ExponentialSchedule | StepSchedule | NoamSchedule
)


class Muon(Table):
    """What Muon does with matrices."""

    momentum: Annotated[float, Field(gt=0, lt=1)] = Field(
        default=0.95, description="Decay of the mean of the gradients."
    )
    nesterov: bool = Field(default=True, description="Look one step ahead along the momentum.")
    ns_steps: Annotated[int, Field(ge=1, le=20)] = Field(
        default=5, description="Steps of the iteration that makes a matrix orthogonal."
    )
    adjust_lr_fn: Literal["match_rms_adamw", "original"] = Field(
        default="match_rms_adamw",
        description='Size of an update: like that of AdamW, for one learning rate, or the "original" one.',
    )
    lr_scale: PositiveFloat = Field(
        default=1.0, description="Learning rate of the matrices in units of the learning rate of the others."
    )
    split_heads: bool = Field(default=True, description="Each head's matrix on its own.")
    dtype: Literal["auto", "bfloat16", "float32"] = Field(
        default="auto", description='Of the products of the iteration; "auto": that of the model\'s products.'
    )


class Optimizer(Table):
    """What changes the weights; weight decay is decoupled and falls on weights, never on gains, biases and decays."""

    alternatives: ClassVar[tuple[tuple[str, str], ...]] = (
        ("grad_clip_norm", "grad_clip_value"),
        ("grad_clip_norm", "grad_clip_norm_per_tensor"),
        ("grad_clip_value", "grad_clip_norm_per_tensor"),
    )

    name: Literal["adamw", "muon", "bitnet_published"] = Field(
        default="adamw",
        description='The method; "muon": Muon for matrices, AdamW for everything else; "bitnet_published": AdamW '
        "whose weight decay fades in the second half of the run.",
    )
    learning_rate: LearningRate = Field(default=1e-3, description="Learning rate, the peak of a schedule.")
    weight_decay: NonNegativeFloat = Field(default=0.1, description="Decoupled weight decay.")
    weight_decay_final: NonNegativeFloat | None = Field(
        default=None,
        description="Weight decay of the last step, reached in a line from the middle of the run; unset: 0 with "
        '`name = "bitnet_published"`, else no change.',
    )
    decay_convolutions: bool = Field(
        default=True,
        description="Weight decay falls on the taps of convolutions too, as in Mamba-2's public code (mamba2).",
    )
    beta1: Annotated[float, Field(ge=0, lt=1)] = Field(
        default=0.9, description="Decay of the mean of the gradients."
    )
    beta2: Annotated[float, Field(ge=0, lt=1)] = Field(
        default=0.95, description="Decay of the mean of their squares."
    )
    eps: PositiveFloat = Field(default=1e-8, description="Added to the denominator.")
    lr_schedule: Annotated[LearningRateSchedule, Kinds(*SCHEDULES)] | None = Field(
        default=None, description="How the learning rate moves; unset: constant."
    )
    grad_clip_norm: PositiveFloat | Literal["off"] = Field(
        default=1.0, description='Largest norm of all gradients together; "off": not limited.'
    )
    grad_clip_value: PositiveFloat | None = Field(
        default=None, description="Largest size of each element of a gradient, instead of grad_clip_norm."
    )
    grad_clip_norm_per_tensor: PositiveFloat | None = Field(
        default=None, description="Largest norm of each parameter's gradient, instead of grad_clip_norm."
    )
    schedule_mode: Literal["bdh_reference", "bitnet_b158_reference"] = Field(
        default="bdh_reference",
        description='The learning rate when lr_schedule is unset: constant, or "bitnet_b158_reference": warm-up, the '
        "peak to the middle of the run, then in a line to two thirds of it.",
    )
    muon: Muon = Field(default_factory=Muon, description='What Muon does, with `name = "muon"`.')

    @classmethod
    def unset_value(cls, key: str) -> Any:
        """The norm is switched off by its own word."""
        return "off" if key == "grad_clip_norm" else super().unset_value(key)
