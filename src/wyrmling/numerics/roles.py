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
"""

from __future__ import annotations

from typing import Literal, cast, get_args

import torch

Role = Literal["matrix", "embedding", "head", "gain", "bias", "decay", "conv"]
ROLES: tuple[Role, ...] = get_args(Role)


def declare(parameter: torch.nn.Parameter, role: Role) -> torch.nn.Parameter:
    """Give `parameter` its role and return it, so that it can be declared where it is created.

    Raises:
        ValueError: the role is unknown, or the parameter has another one already (tied weights have one).
    """
    if role not in ROLES:
        raise ValueError(f"unknown role {role!r}; choose one of {', '.join(ROLES)}")
    declared = getattr(parameter, "role", role)
    if declared != role:
        raise ValueError(f"a parameter declared as {declared!r} cannot also be {role!r}")
    parameter.role = role  # type: ignore[attr-defined]
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
