"""Canonical names of a model's tensors: the same whatever the model is wrapped in.

`torch.compile` and the replica wrappers hold the real module in a child, and the child's name gets into
every key ("_orig_mod.", "module."), nested in any order. A segment is dropped only where the module that
holds it is such a wrapper: a layer that its author called `module` keeps its name.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

# Where a wrapper's class lives and its name, to the child that holds the real module. Names, because
# importing the classes is slow.
_WRAPPERS = {
    ("torch._dynamo", "OptimizedModule"): "_orig_mod",
    ("torch.nn.parallel", "DistributedDataParallel"): "module",
    ("torch.nn.parallel", "DataParallel"): "module",
    ("torch.distributed.algorithms._checkpoint", "CheckpointWrapper"): "_checkpoint_wrapped_module",
    ("torch.optim.swa_utils", "AveragedModel"): "module",
}


@dataclass(frozen=True)
class Entry:
    """One tensor of a model, with every canonical name it goes by (more than one when it is tied)."""

    names: tuple[str, ...]
    tensor: Tensor

    @property
    def name(self) -> str:
        """The name it is saved under: the first in the model's own order."""
        return self.names[0]


def canonical_name(model: nn.Module, key: str) -> str:
    """A key of `model.state_dict()` or `model.named_parameters()` without the segments that wrappers add."""
    kept = []
    module: nn.Module | None = model
    for segment in key.split("."):
        if module is None or segment != _inner_name(module):
            kept.append(segment)
        module = None if module is None else module._modules.get(segment)
    return ".".join(kept)


def entries(model: nn.Module) -> list[Entry]:
    """Parameters and persistent buffers of a model in its own order, each piece of memory once.

    Raises:
        TypeError: the model keeps something other than tensors in its state.
    """
    names: dict[object, list[str]] = {}
    tensors: dict[object, Tensor] = {}
    for key, value in model.state_dict(keep_vars=True).items():
        if not isinstance(value, Tensor):
            raise TypeError(f"{key} in the model's state is a {type(value).__name__}, not a tensor")
        identity = _identity(value)
        names.setdefault(identity, []).append(canonical_name(model, key))
        tensors[identity] = value
    return [Entry(tuple(names[identity]), tensor) for identity, tensor in tensors.items()]


def parameter_names(model: nn.Module) -> dict[int, str]:
    """`id(parameter)` to the name it is saved under, for every parameter of the model."""
    found: dict[int, str] = {}
    for key, parameter in model.named_parameters(remove_duplicate=False):
        found.setdefault(id(parameter), canonical_name(model, key))
    return found


def _inner_name(module: nn.Module) -> str | None:
    for kind in type(module).__mro__:
        for (package, name), inner in _WRAPPERS.items():
            if kind.__name__ == name and kind.__module__.startswith(package):
                return inner
    return None


def _identity(tensor: Tensor) -> object:
    """Equal for two tensors exactly when they are the same numbers in the same memory."""
    if tensor.is_meta or tensor.numel() == 0 or tensor.layout != torch.strided:
        return id(tensor)
    return (tensor.device, tensor.dtype, tensor.data_ptr(), tuple(tensor.shape), tensor.stride())
