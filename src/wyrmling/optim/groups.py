"""Which parameters decay.

Decoupled weight decay (Loshchilov and Hutter 2019) pulls a weight towards zero. That is a prior for weights
that map activations: matrices, the embedding, the head. It is not one for gains (whose rest value is 1),
biases, decay rates and time steps (whose zero is a particular speed): those never decay. The taps of a convolution
are weights too, and decay as in Mamba-2's public code, unless the configuration says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..numerics.roles import ROLES, Role, role_of

DECAYED_ROLES: frozenset[Role] = frozenset({"matrix", "embedding", "head", "conv"})


@dataclass(frozen=True)
class ParameterGroup:
    """The trained parameters of one role, sorted by name; `part` tells groups of a role apart."""

    role: Role
    decays: bool
    weight_decay: float
    names: tuple[str, ...]
    parameters: tuple[torch.nn.Parameter, ...]
    part: str = ""

    @property
    def count(self) -> int:
        """Scalars in the group."""
        return sum(parameter.numel() for parameter in self.parameters)

    def for_optimizer(self) -> dict[str, Any]:
        """The group as `torch.optim` takes it; `role`, `decays` and `part` stay readable in it."""
        return {
            "params": list(self.parameters),
            "weight_decay": self.weight_decay,
            "role": self.role,
            "decays": self.decays,
            "part": self.part,
        }


def parameter_groups(
    named_parameters: Iterable[tuple[str, torch.nn.Parameter]],
    weight_decay: float,
    apart: Callable[[str], str] = lambda name: "",
    decayed: frozenset[Role] = DECAYED_ROLES,
) -> list[ParameterGroup]:
    """Divide parameters into one group per role that occurs, and per part where some are kept apart.

    Every parameter that requires a gradient is in exactly one group: a tied weight once, under the first of
    its names in alphabetical order, a frozen one nowhere. The order (roles as listed in `ROLES`, then
    parts, then names) does not depend on the order of creation.

    Args:
        named_parameters: as from `model.named_parameters()`, with or without duplicates.
        weight_decay: for the roles in `decayed`; the others get 0.
        apart: the part that a parameter of this name belongs to.

    Raises:
        ValueError: a parameter declares no role, or nothing is left to train.
    """
    members_of: dict[tuple[Role, str], list[tuple[str, torch.nn.Parameter]]] = {}
    seen: set[int] = set()
    for name, parameter in sorted(named_parameters, key=lambda pair: pair[0]):
        if id(parameter) in seen:
            continue
        seen.add(id(parameter))
        role = role_of(parameter, name)
        if parameter.requires_grad:
            members_of.setdefault((role, apart(name)), []).append((name, parameter))
    groups = [
        ParameterGroup(
            role=role,
            decays=role in decayed,
            weight_decay=weight_decay if role in decayed else 0.0,
            names=tuple(name for name, _ in members),
            parameters=tuple(parameter for _, parameter in members),
            part=part,
        )
        for (role, part), members in sorted(
            members_of.items(), key=lambda item: (ROLES.index(item[0][0]), item[0][1])
        )
    ]
    if not groups:
        raise ValueError("every parameter is frozen: there is nothing to train")
    return groups


def summarize(groups: Sequence[ParameterGroup]) -> str:
    """One line per group: role, tensors, scalars, weight decay, names."""
    return "\n".join(
        f"{group.role:<9} {len(group.names):>3} tensors {group.count:>13,} weights  "
        f"decay {group.weight_decay:g}  {', '.join(group.names)}"
        for group in groups
    )
