"""Rules of `[training.init_transfer]`: which keys need a checkpoint, and which go together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from .problems import Problem, at_most

if TYPE_CHECKING:
    from .schema import Config

TABLE = "training.init_transfer"
_NEED_INTERFACE = (
    "interface_checkpoint_step",
    "preserve_interface_input_embedding",
    "preserve_interface_output_head",
    "interface_output_head_blend_alpha",
)
_HEAD, _BLEND = f"{TABLE}.preserve_interface_output_head", f"{TABLE}.interface_output_head_blend_alpha"
_SCALE, _STEPS = f"{TABLE}.backbone_grad_scale", f"{TABLE}.backbone_grad_scale_steps"


def transfer_rules(config: Config) -> Iterator[Problem]:
    """Every broken rule of the table."""
    training, table = config.training, config.training.init_transfer
    given = table.model_dump(exclude_defaults=True)
    interface, start = f"{TABLE}.interface_checkpoint_path", "training.init_checkpoint_path"
    if table.interface_checkpoint_path is None:
        for key in _NEED_INTERFACE:
            if key in given:
                yield _requires(f"{TABLE}.{key}", interface)
    # a run that goes on keeps the table it began with, and no longer needs the checkpoint
    if training.init_checkpoint_path is None and training.launch_mode != "resume_exact_run":
        for key in given:
            yield _requires(f"{TABLE}.{key}", start)
    for key in (_HEAD, _BLEND):
        if config.model.tie_embeddings and key.rpartition(".")[2] in given:
            yield Problem(
                f"{key} cannot be combined with model.tie_embeddings", (key, "model.tie_embeddings")
            )
    if table.preserve_interface_output_head and table.interface_output_head_blend_alpha is not None:
        yield Problem(f"{_HEAD} cannot be combined with {_BLEND}", (_HEAD, _BLEND))
    if (table.backbone_grad_scale is None) != (table.backbone_grad_scale_steps is None):
        one, other = (_SCALE, _STEPS) if table.backbone_grad_scale is not None else (_STEPS, _SCALE)
        yield _requires(one, other)
    if table.fresh_top_heads is not None and table.fresh_top_heads > config.model.n_head:
        yield at_most(f"{TABLE}.fresh_top_heads", "model.n_head", table.fresh_top_heads, config.model.n_head)


def _requires(key: str, needed: str) -> Problem:
    return Problem(f"{key} requires {needed}", (key, needed))
