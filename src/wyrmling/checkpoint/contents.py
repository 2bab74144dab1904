"""What a run saves: the model's tensors and the optimizer's, by name.

Names are the model's own, without wrappers (see `names`), so a checkpoint of a compiled model or of a replica
loads into a plain one and back. Optimizer state is keyed by parameter name, not by position, so the order of
parameter groups does not matter. Nothing is filled in silently: what is missing, left over, or of another
shape is an error.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..errors import CheckpointError
from .names import Entry, entries, parameter_names

_SHOWN = 3
_RECORD = "slots"
# Slots of element-wise optimizers; those that keep sums of rows and columns have other names for them.
_LIKE_THE_PARAMETER = {"exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer"}
_KINDS: dict[str, type] = {"tensor": Tensor, "bool": bool, "int": int, "float": float}


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and persistent buffers under canonical names, tied ones once.

    They are the model's own memory, not copies: save them before the next step.
    """
    return {entry.name: entry.tensor.detach() for entry in entries(model)}


def load_model_tensors(model: nn.Module, tensors: Mapping[str, Tensor], *, cast: bool = False) -> None:
    """Copy saved tensors into a model, in place: tied tensors stay tied, device and dtype stay the model's.

    Args:
        cast: allow conversions that lose digits (float32 into bfloat16). Widening ones are always allowed.

    Raises:
        CheckpointError: a tensor is missing, left over, of another shape or dtype, or not finite; the model is
            unchanged.
    """
    chosen: list[tuple[Entry, Tensor]] = []
    missing, unexpected, misfits = [], set(tensors), []
    for entry in entries(model):
        found = [name for name in entry.names if name in tensors]
        unexpected -= set(found[:1])
        if not found:
            missing.append(entry.name)
            continue
        source = tensors[found[0]]
        if source.shape != entry.tensor.shape:
            misfits.append(f"{found[0]} is {_shape(source)} there and {_shape(entry.tensor)} here")
        elif not (cast or _exact(source.dtype, entry.tensor.dtype)):
            misfits.append(f"{found[0]} is {_dtype(source)} there and {_dtype(entry.tensor)} here")
        elif not _finite(source):
            misfits.append(f"{found[0]} holds numbers that are not finite")
        chosen.append((entry, source))
    _refuse(
        "the checkpoint does not fit this model",
        {"missing": missing, "not in this model": sorted(unexpected), "": misfits},
        "use the configuration that the checkpoint was trained with",
    )
    with torch.no_grad():
        for entry, source in chosen:
            entry.tensor.copy_(source)


def optimizer_tensors(optimizer: Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """State of an optimizer as `<parameter name>.<slot>`, such as `encoder.exp_avg`. Not copied.

    `<parameter name>.slots` records (as JSON in bytes) the kind of optimizer, the parameter's shape and which
    slots there are, so that loading can tell a parameter that has no state yet from one whose state was lost.
    Settings of the groups (rates, betas) are not state: they follow from the configuration and the step.

    Raises:
        ValueError: the optimizer holds a parameter that is not the model's, or state that is not numbers.
    """
    result: dict[str, Tensor] = {}
    for name, parameter in _named_parameters(optimizer, model):
        kinds = {}
        for slot, value in optimizer.state.get(parameter, {}).items():
            if value is None:
                continue
            if "." in slot or slot == _RECORD or not isinstance(value, Tensor | bool | int | float):
                raise ValueError(
                    f"the optimizer state {slot!r} of {name} ({type(value).__name__}) cannot be saved"
                )
            kinds[slot] = "tensor" if isinstance(value, Tensor) else type(value).__name__
            result[f"{name}.{slot}"] = value.detach() if isinstance(value, Tensor) else _scalar(value)
        record = {"optimizer": type(optimizer).__name__, "shape": list(parameter.shape), "slots": kinds}
        text = json.dumps(record, sort_keys=True).encode("utf-8")
        result[f"{name}.{_RECORD}"] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    return result


def load_optimizer_tensors(
    optimizer: Optimizer, model: nn.Module, tensors: Mapping[str, Tensor] | None
) -> None:
    """Give an optimizer the state that `optimizer_tensors` took, bit for bit, on its parameters' devices.

    Raises:
        CheckpointError: no state at all, or none for a parameter or slot; another kind of optimizer; state of
            parameters that this optimizer does not have; moments of another shape or dtype than the
            parameter's, or that are not finite. The optimizer is unchanged.
    """
    advice = "resuming needs the optimizer's state; to start from weights alone, use init_from_checkpoint"
    if tensors is None:
        raise CheckpointError(f"the checkpoint holds no optimizer state; {advice}")
    states: list[tuple[nn.Parameter, dict[str, Any]]] = []
    missing, misfits, left = [], [], set(tensors)
    groups = {id(parameter): group for group in optimizer.param_groups for parameter in group["params"]}
    for name, parameter in _named_parameters(optimizer, model):
        record = _read_record(name, tensors)
        left.discard(f"{name}.{_RECORD}")
        if record is None:
            missing.append(name)
            continue
        other = _compare(name, record, optimizer, parameter)
        misfits += other
        state: dict[str, Any] = {}
        for slot, kind in record["slots"].items():
            key = f"{name}.{slot}"
            if key not in tensors:
                missing.append(key)
                continue
            left.discard(key)
            misfit = _misfit(key, slot, kind, tensors[key], parameter)
            if misfit is not None:
                misfits += [] if other else [misfit]
                continue
            state[slot] = _restore(slot, kind, tensors[key], parameter, groups[id(parameter)])
        states.append((parameter, state))
    _refuse(
        "the optimizer state does not fit this optimizer",
        {"missing": missing, "of no parameter here": sorted(left), "": misfits},
        advice,
    )
    optimizer.state.clear()
    for parameter, state in states:
        if state:
            optimizer.state[parameter] = state


def _named_parameters(optimizer: Optimizer, model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    names = parameter_names(model)
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if id(parameter) not in names:
                raise ValueError("the optimizer holds a parameter that the model does not have")
            yield names[id(parameter)], parameter


def _read_record(name: str, tensors: Mapping[str, Tensor]) -> dict[str, Any] | None:
    encoded = tensors.get(f"{name}.{_RECORD}")
    if encoded is None:
        return None
    try:
        record = json.loads(bytes(encoded.tolist()).decode("utf-8"))
        slots = {str(slot): _KINDS[kind] for slot, kind in record["slots"].items()}
        kind, shape = str(record["optimizer"]), list(record["shape"])
        return {"optimizer": kind, "shape": shape, "slots": slots}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CheckpointError(
            f"the optimizer state of {name} has no readable record of its slots; use another checkpoint"
        ) from error


def _compare(
    name: str, record: Mapping[str, Any], optimizer: Optimizer, parameter: nn.Parameter
) -> list[str]:
    kind = type(optimizer).__name__
    if record["optimizer"] != kind:
        return [f"{name} was trained with {record['optimizer']} and this is {kind}"]
    if record["shape"] != list(parameter.shape):
        return [f"{name} is {record['shape']} there and {_shape(parameter)} here"]
    return []


def _misfit(key: str, slot: str, kind: type, saved: Tensor, parameter: nn.Parameter) -> str | None:
    """Why a kernel must not be given a slot's tensor, which it would believe; None where it may."""
    if slot in _LIKE_THE_PARAMETER:
        if saved.shape != parameter.shape:
            return f"{key} is {_shape(saved)} there and {_shape(parameter)} here"
        if saved.dtype != parameter.dtype:
            return f"{key} is {_dtype(saved)} there and {_dtype(parameter)} here"
    elif (slot == "step" or kind is not Tensor) and saved.shape != ():
        return f"{key} is {_shape(saved)} there and one number here"
    return None if _finite(saved) else f"{key} holds numbers that are not finite"


def _restore(slot: str, kind: type, saved: Tensor, parameter: nn.Parameter, group: Mapping[str, Any]) -> Any:
    """A slot as the optimizer wants it: its own copy, in the saved dtype, on the right device."""
    if kind is not Tensor:
        return kind(saved.item())
    # As in torch.optim: step counters stay on the CPU unless the kernel reads them on the device.
    on_cpu = slot == "step" and not (group.get("capturable") or group.get("fused"))
    return saved.detach().clone().to("cpu" if on_cpu else parameter.device)


def _scalar(value: bool | int | float) -> Tensor:
    kinds = {bool: torch.bool, int: torch.int64, float: torch.float64}
    return torch.tensor(value, dtype=kinds[type(value)])


def _finite(tensor: Tensor) -> bool:
    return not tensor.is_floating_point() or bool(torch.isfinite(tensor).all())


def _exact(source: torch.dtype, target: torch.dtype) -> bool:
    if source == target:
        return True
    both_real = source.is_floating_point and target.is_floating_point
    return both_real and torch.promote_types(source, target) == target


def _refuse(what: str, findings: Mapping[str, list[str]], advice: str) -> None:
    """Raise one line with at most three names per finding, if there is any."""
    clauses = []
    for title, items in findings.items():
        if items:
            more = f" and {len(items) - _SHOWN} more" if len(items) > _SHOWN else ""
            clauses.append(f"{title} {', '.join(items[:_SHOWN])}{more}".strip())
    if clauses:
        raise CheckpointError(f"{what}: {'; '.join(clauses)}; {advice}")


def _shape(tensor: Tensor) -> list[int]:
    return list(tensor.shape)


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
