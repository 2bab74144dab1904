"""The optimizer that a configuration asks for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch

from ..errors import ConfigError
from .adamw import AdamW
from .groups import ParameterGroup, parameter_groups

if TYPE_CHECKING:
    from ..config.schema.optimizer import Optimizer

_FUSED_DEVICES = ("cpu", "cuda")


class Choice(NamedTuple):
    """An automatic choice and its reason (law 6)."""

    name: str
    value: str
    reason: str


def build_optimizer(model: torch.nn.Module, config: Optimizer) -> tuple[AdamW, tuple[Choice, ...]]:
    """AdamW (Loshchilov and Hutter 2019) over the groups of `parameter_groups`.

    Every group starts with the configuration's learning rate; the schedule's is set before each step.

    Returns: the optimizer, and the choices that were made for it, to be printed.

    Raises:
        ConfigError: an optimizer that is not known.
        ValueError: a parameter without a role, or nothing to train.
    """
    if config.name != "adamw":
        raise ConfigError(f"optimizer.name = {config.name!r} is not available in this version; use 'adamw'")
    groups = parameter_groups(model.named_parameters(), config.weight_decay)
    fused, reason = _can_fuse(groups)
    optimizer = AdamW(
        [group.for_optimizer() for group in groups],
        lr=config.learning_rate,
        betas=(config.beta1, config.beta2),
        eps=config.eps,
        fused=fused,
    )
    choices = (
        Choice("optimizer", "adamw, fused" if fused else "adamw, one operation after another", reason),
        Choice("weight decay", _decayed(groups), "gains, biases, decays and convolutions never decay"),
    )
    return optimizer, choices


def _can_fuse(groups: Sequence[ParameterGroup]) -> tuple[bool, str]:
    for group in groups:
        for name, parameter in zip(group.names, group.parameters, strict=True):
            if parameter.device.type not in _FUSED_DEVICES:
                return False, f"no fused update on {parameter.device.type} ({name})"
            if not parameter.is_floating_point():
                return False, f"no fused update for {parameter.dtype} ({name})"
    return True, "one pass over weights, gradients and moments"


def _decayed(groups: Sequence[ParameterGroup]) -> str:
    decayed = [group for group in groups if group.weight_decay > 0]
    if not decayed:
        return "none"
    roles = ", ".join(group.role for group in decayed)
    return f"{decayed[0].weight_decay:g} on {roles} ({sum(group.count for group in decayed):,} weights)"
