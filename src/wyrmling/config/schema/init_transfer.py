"""`[training.init_transfer]`: what a new run takes from another one's weights."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from .base import CountingInt, FilePath, PositiveInt, Table

Share = Annotated[float, Field(ge=0, le=1)]


class InitTransfer(Table):
    """Everything is taken as it is, unless a key says otherwise; docs/warm-start.md has the order."""

    interface_checkpoint_path: FilePath | None = Field(
        default=None,
        description="A second run or checkpoint: it can lend embedding and head, and stands for the first weights "
        "wherever this table speaks of fresh ones.",
    )
    interface_checkpoint_step: CountingInt | None = Field(
        default=None, description="The step of interface_checkpoint_path; unset: its newest good checkpoint."
    )
    preserve_interface_input_embedding: bool = Field(
        default=False, description="Take the embedding from the interface checkpoint."
    )
    preserve_interface_output_head: bool = Field(
        default=False, description="Take the head from the interface checkpoint."
    )
    interface_output_head_blend_alpha: Share | None = Field(
        default=None, description="Share of the interface checkpoint's head in the head; unset: none."
    )
    fresh_surfaces: bool = Field(
        default=False,
        description="Begin with a new embedding and a new head, for vocabularies that have nothing in common.",
    )
    match_fresh_rms: bool = Field(
        default=False,
        description="Scale each transferred backbone tensor to the root mean square of the fresh one.",
    )
    backbone_blend_alpha: Share | None = Field(
        default=None,
        description="Share of the transferred weights in the backbone; the rest is fresh. Unset: all.",
    )
    fresh_top_heads: PositiveInt | None = Field(
        default=None,
        description="How many heads, the last ones, get fresh encoders (and decays); unset: none.",
    )
    decoder_blend_alpha: Share | None = Field(
        default=None,
        description="Share of the transferred weights in the decoder; the rest is fresh. Unset: all.",
    )
    norm_blend_alpha: Share | None = Field(
        default=None,
        description="Share of the transferred weights in the norm; the rest is fresh. Unset: all.",
    )
    preserve_fresh_decoder: bool = Field(default=False, description="Begin with a fresh decoder.")
    preserve_fresh_norm: bool = Field(default=False, description="Begin with a fresh norm.")
    backbone_grad_scale: Share | None = Field(
        default=None,
        description="Factor on the gradients of the transferred backbone in the first steps; 0 holds it still.",
    )
    backbone_grad_scale_steps: PositiveInt | None = Field(
        default=None, description="How many optimizer steps backbone_grad_scale lasts."
    )
