"""The optimizer that a configuration asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from .adamw import AdamW
from .bitnet import WeightDecay, build_weight_decay
from .groups import DECAYED_ROLES, ParameterGroup, parameter_groups
from .muon import Muon, MuonSettings, matrices
from .scales import Scales

if TYPE_CHECKING:
    from ..config.schema.optimizer import Optimizer

_FUSED_DEVICES = ("cpu", "cuda")
_DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


class Choice(NamedTuple):
    """An automatic choice and its reason (law 6)."""

    name: str
    value: str
    reason: str


def build_optimizer(
    model: torch.nn.Module,
    config: Optimizer,
    *,
    total_steps: int = 1,
    products: torch.dtype = torch.float32,
    scales: Scales | None = None,
) -> tuple[AdamW, tuple[Choice, ...]]:
    """AdamW (Loshchilov and Hutter 2019) over the groups of `parameter_groups`; Muon for the matrices if asked for.

    Every group starts with the configuration's learning rate and weight decay; `set_rates` sets those of a step.
    `bitnet_published` is AdamW too: what is its own is how the weight decay changes.

    Args:
        total_steps: of the run, over which a weight decay that changes does so.
        products: what the model's products run in; Muon's own follow it unless the configuration says otherwise.
        scales: parts of the model whose learning rate is scaled have groups of their own.
    Returns: the optimizer, and the choices that were made for it, to be printed.

    Raises:
        ValueError: a parameter without a role, a matrix with less than two axes, or nothing to train.
    """
    scales = scales or Scales()
    decayed = DECAYED_ROLES if config.decay_convolutions else DECAYED_ROLES - {"conv"}
    groups = parameter_groups(model.named_parameters(), config.weight_decay, scales.apart, decayed)
    fused, reason = _can_fuse(groups)
    settings: dict[str, Any] = {
        "lr": config.learning_rate,
        "betas": (config.beta1, config.beta2),
        "eps": config.eps,
        "fused": fused,
    }
    kind = "adamw, fused" if fused else "adamw, one operation after another"
    decay = _decayed(groups, build_weight_decay(config, total_steps))
    never = Choice("weight decay", decay, "gains, biases and decays never decay")
    if config.name == "muon":
        muon, choices = _muon(groups, config, settings, products)
        return muon, (*choices, Choice("adamw", _names(groups, kind), reason), never)
    optimizer = AdamW([group.for_optimizer() for group in groups], **settings)
    return optimizer, (Choice("optimizer", kind, reason), never)


def set_rates(
    optimizer: torch.optim.Optimizer,
    rate: float,
    decay: float | None = None,
    factors: Mapping[str, float] | None = None,
) -> None:
    """Give every group the learning rate of a step, times the group's `lr_scale` where it has one, and its decay.

    Args:
        decay: of the groups that decay; None leaves it as it is.
        factors: by the `part` of a group, what multiplies its learning rate besides; see `Scales.rates`.
    """
    for group in optimizer.param_groups:
        group["lr"] = rate * group.get("lr_scale", 1.0) * (factors or {}).get(group.get("part", ""), 1.0)
        if decay is not None and group.get("decays"):
            group["weight_decay"] = decay


def _muon(
    groups: Sequence[ParameterGroup], config: Optimizer, adamw: dict[str, Any], products: torch.dtype
) -> tuple[Muon, tuple[Choice, ...]]:
    table = config.muon
    dtype = _DTYPES.get(table.dtype, torch.bfloat16 if products == torch.bfloat16 else torch.float32)
    settings = MuonSettings(
        momentum=table.momentum,
        nesterov=table.nesterov,
        steps=table.ns_steps,
        adjustment=table.adjust_lr_fn,
        split_heads=table.split_heads,
        dtype=dtype,
    )
    given = [
        {**group.for_optimizer(), "muon": True, "lr_scale": table.lr_scale}
        if group.role == "matrix"
        else group.for_optimizer()
        for group in groups
    ]
    found = [group for group in groups if group.role == "matrix"]
    count = sum(group.count for group in found)
    names = ", ".join(name for group in found for name in group.names) or "nothing"
    apart = "each head apart" if table.split_heads else "heads together"
    what = f"{names}: {_matrix_count(found, settings)} matrices, {apart}, {count:,} weights"
    source = "asked for by optimizer.muon.dtype" if table.dtype != "auto" else "as the model's products"
    name = str(dtype).removeprefix("torch.")
    choices = (
        Choice("optimizer", f"muon, Newton-Schulz in {name}", f"{source}; float64 weights stay in float64"),
        Choice("muon", what, 'what has the role "matrix"'),
    )
    return Muon(given, settings, **adamw), choices


def _matrix_count(groups: Sequence[ParameterGroup], settings: MuonSettings) -> int:
    total = 0
    for group in groups:
        for parameter in group.parameters:
            for stack in matrices(parameter, settings.split_heads):
                total += stack.shape[:-2].numel() if settings.split_heads else 1
    return total


def _names(groups: Sequence[ParameterGroup], kind: str) -> str:
    names = [name for group in groups if group.role != "matrix" for name in group.names]
    return f"{', '.join(names) or 'nothing'} ({kind})"


def _can_fuse(groups: Sequence[ParameterGroup]) -> tuple[bool, str]:
    for group in groups:
        for name, parameter in zip(group.names, group.parameters, strict=True):
            if parameter.device.type not in _FUSED_DEVICES:
                return False, f"no fused update on {parameter.device.type} ({name})"
            if not parameter.is_floating_point():
                return False, f"no fused update for {parameter.dtype} ({name})"
    return True, "one pass over weights, gradients and moments"


def _decayed(groups: Sequence[ParameterGroup], decay: WeightDecay) -> str:
    decayed = [group for group in groups if group.decays]
    if not decayed or decay.initial == decay.final == 0:
        return "none"
    roles = ", ".join(dict.fromkeys(group.role for group in decayed))
    return f"{decay.describe()} on {roles} ({sum(group.count for group in decayed):,} weights)"
