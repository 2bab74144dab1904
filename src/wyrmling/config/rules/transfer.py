"""Rules of `[training.init_transfer]`: which keys need a checkpoint, and which go together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..problems import Problem, at_most, exclusive, requires
from .rulebook import Rulebook

if TYPE_CHECKING:
    from ..schema import Config

BOOK = Rulebook()
TABLE = "training.init_transfer"
_NEED_INTERFACE = (
    "interface_checkpoint_step",
    "preserve_interface_input_embedding",
    "preserve_interface_output_head",
    "interface_output_head_blend_alpha",
)
_HEAD, _BLEND = f"{TABLE}.preserve_interface_output_head", f"{TABLE}.interface_output_head_blend_alpha"
_SCALE, _STEPS = f"{TABLE}.backbone_grad_scale", f"{TABLE}.backbone_grad_scale_steps"
_INTERFACE = f"{TABLE}.interface_checkpoint_path"


def _given(config: Config) -> dict[str, object]:
    return config.training.init_transfer.model_dump(exclude_defaults=True)


@BOOK.rule("an-interface-has-its-checkpoint", f"Keys of an interface need `{_INTERFACE}`.")
def _interface(config: Config) -> Iterator[Problem]:
    if config.training.init_transfer.interface_checkpoint_path is None:
        for key in _NEED_INTERFACE:
            if key in _given(config):
                yield requires(f"{TABLE}.{key}", _INTERFACE)


@BOOK.rule(
    "a-transfer-has-its-checkpoint",
    f"`[{TABLE}]` needs `training.init_checkpoint_path`; a run that goes on, or is forked, keeps the table without it.",
)
def _start(config: Config) -> Iterator[Problem]:
    training = config.training
    if training.init_checkpoint_path is None and training.launch_mode not in ("resume_exact_run", "fork"):
        for key in _given(config):
            yield requires(f"{TABLE}.{key}", "training.init_checkpoint_path")


@BOOK.rule(
    "a-borrowed-head-is-a-head",
    f"`{_HEAD}` and `{_BLEND}` need a head of its own, not `model.tie_embeddings`.",
)
def _tied(config: Config) -> Iterator[Problem]:
    for key in (_HEAD, _BLEND):
        if config.model.tie_embeddings and key.rpartition(".")[2] in _given(config):
            yield exclusive(key, "model.tie_embeddings")


@BOOK.rule("a-head-is-kept-or-blended", f"Not both `{_HEAD}` and `{_BLEND}` are set.")
def _kept(config: Config) -> Iterator[Problem]:
    table = config.training.init_transfer
    if table.preserve_interface_output_head and table.interface_output_head_blend_alpha is not None:
        yield exclusive(_HEAD, _BLEND)


@BOOK.rule("a-held-backbone-has-its-steps", f"`{_SCALE}` and `{_STEPS}` are set together.")
def _held(config: Config) -> Iterator[Problem]:
    table = config.training.init_transfer
    if (table.backbone_grad_scale is None) != (table.backbone_grad_scale_steps is None):
        one, other = (_SCALE, _STEPS) if table.backbone_grad_scale is not None else (_STEPS, _SCALE)
        yield requires(one, other)


@BOOK.rule("heads-to-renew", f"`{TABLE}.fresh_top_heads` is at most `model.n_head`.")
def _heads(config: Config) -> Iterator[Problem]:
    fresh = config.training.init_transfer.fresh_top_heads
    if fresh is not None and fresh > config.model.n_head:
        yield at_most(f"{TABLE}.fresh_top_heads", "model.n_head", fresh, config.model.n_head)
