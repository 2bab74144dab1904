"""`[generation]`: how text is drawn from a model."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from .base import CountingInt, Kinds, NonNegativeFloat, PositiveInt, Table, Variant


class InfiniteContext(Variant):
    """The state carries everything since the beginning."""

    default_variant: ClassVar[bool] = True
    type: Literal["infinite"] = Field(
        default="infinite", description="The state carries everything since the beginning."
    )


class SlidingContext(Variant):
    """Only the last tokens count."""

    type: Literal["sliding"] = Field(default="sliding", description="Only the last tokens count.")
    window: PositiveInt = Field(description="Number of tokens that count.")


CONTEXT_STRATEGIES = (InfiniteContext, SlidingContext)
ContextStrategy = InfiniteContext | SlidingContext


class Generation(Table):
    """What is printed by `wyrmling generate` and by the samples of a training run."""

    prompt: str = Field(default="", description="The text to go on from.")
    max_tokens: PositiveInt | Literal["unlimited"] = Field(
        default=200, description='Most tokens to draw, or "unlimited".'
    )
    max_chars: PositiveInt | None = Field(default=None, description="Most characters to show.")
    temperature: NonNegativeFloat = Field(default=1.0, description="0 takes the likeliest token every time.")
    top_k: PositiveInt | None = Field(default=None, description="Draw among the k likeliest tokens only.")
    top_p: Annotated[float, Field(gt=0, le=1)] | None = Field(
        default=None, description="Draw among the likeliest tokens whose probabilities reach p."
    )
    seed: CountingInt | None = Field(
        default=None, description="Makes the draws repeatable; unset: a random one, printed."
    )
    stop_at_eos: bool = Field(default=True, description="Stop where the model ends the document.")
    context_strategy: Annotated[ContextStrategy, Kinds(*CONTEXT_STRATEGIES)] = Field(
        default_factory=InfiniteContext, description="How far back the model sees."
    )
    output_format: Literal["auto", "decoded_text", "token_ids"] = Field(
        default="auto", description='"auto": text where the tokenizer has any, else ids.'
    )
    weight_dtype: Literal["float32", "bfloat16"] = Field(
        default="float32",
        description="What the weights are rounded to for reading single tokens on the CPU; half the bytes, "
        "sooner read.",
    )
    state_dtype: Literal["float32", "bfloat16"] = Field(
        default="float32",
        description="What the memory is kept in while single tokens are read on the CPU; bfloat16 drifts.",
    )
