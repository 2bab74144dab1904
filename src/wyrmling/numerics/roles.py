"""What a parameter is for.

Every parameter declares its role when it is created. Weight decay, learning-rate groups and the choice of
optimizer follow roles, never the number of dimensions: a decay rate stored as a matrix is still a decay rate.

    matrix      maps activations to activations (encoders, decoders, projections)
    embedding   one row per token
    head        maps the last hidden state to logits
    gain        multiplies an activation (norm gains, skip scales)
    bias        is added to an activation
    decay       sets how fast a memory forgets, or its time step
    conv        the taps of a short convolution over time

A parameter of role `matrix` is stored [inputs, outputs] in its last two axes (activations @ weights), and may hold
several matrices: those of an axis in front, heads one below the other, projections of one input side by side. What
works on whole matrices (an optimizer, a norm of a matrix) takes them apart as they were declared.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, cast, get_args

import torch

Role = Literal["matrix", "embedding", "head", "gain", "bias", "decay", "conv"]
ROLES: tuple[Role, ...] = get_args(Role)


def declare(
    parameter: torch.nn.Parameter, role: Role, *, parts: Sequence[int] = (), heads: int = 1
) -> torch.nn.Parameter:
    """Give `parameter` its role and return it, so that it can be declared where it is created.

    Args:
        parts: sizes along the last axis (of the outputs) of projections that lie side by side in one parameter.
        heads: how many matrices of equal size lie one below the other, along the last axis but one.

    Raises:
        ValueError: the role is unknown, or the parameter has another one already (tied weights have one); parts or
            heads that do not make up the parameter's shape.
    """
    if role not in ROLES:
        raise ValueError(f"unknown role {role!r}; choose one of {', '.join(ROLES)}")
    declared = getattr(parameter, "role", role)
    if declared != role:
        raise ValueError(f"a parameter declared as {declared!r} cannot also be {role!r}")
    shape = tuple(parameter.shape)
    if parts and (not shape or sum(parts) != shape[-1] or min(parts) < 1):
        raise ValueError(f"parts {tuple(parts)} do not make up the last axis of {shape}")
    if heads < 1 or (heads > 1 and (len(shape) < 2 or shape[-2] % heads)):
        raise ValueError(f"{heads} heads do not lie one below the other in {shape}")
    parameter.role = role  # type: ignore[attr-defined]
    parameter.parts = tuple(parts)  # type: ignore[attr-defined]
    parameter.heads = heads  # type: ignore[attr-defined]
    return parameter


def role_of(parameter: torch.nn.Parameter, name: str = "a parameter") -> Role:
    """The declared role of `parameter`; `name` is used in the error.

    Raises:
        ValueError: the parameter has no role, or one that is not known.
    """
    role = getattr(parameter, "role", None)
    if role not in ROLES:
        raise ValueError(
            f"{name} {tuple(parameter.shape)} declares no role: create it with declare(parameter, role), "
            f"role one of {', '.join(ROLES)}"
        )
    return cast(Role, role)


def parts_of(parameter: torch.nn.Parameter) -> tuple[int, ...]:
    """The declared sizes along the last axis of projections side by side; empty where it is one."""
    return tuple(getattr(parameter, "parts", ()))


def heads_of(parameter: torch.nn.Parameter) -> int:
    """The declared number of matrices one below the other; 1 where it is one."""
    return int(getattr(parameter, "heads", 1))
