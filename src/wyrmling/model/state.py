"""The recurrent state of a model, as a value (law 1).

A `State` is named tensors per layer plus the position of every row. It can be detached, moved, indexed and
concatenated by row, reset by row, saved and counted; no module holds one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..memory.base import MemoryState, reset_rows


@dataclass(frozen=True)
class State:
    """Everything a model remembers of the tokens it has seen.

    Attributes:
        layers: per layer, named tensors whose first axis is the batch row.
        position: int64 [B] on the CPU, tokens that each row has seen since its reset.
    """

    layers: tuple[MemoryState, ...]
    position: Tensor

    @property
    def rows(self) -> int:
        """Number of batch rows B."""
        return len(self.position)

    def map(self, function: Callable[[Tensor], Tensor]) -> State:
        """The state with `function` applied to every tensor of the layers (not to the position)."""
        layers = tuple({name: function(tensor) for name, tensor in layer.items()} for layer in self.layers)
        return State(layers, self.position)

    def detach(self) -> State:
        """The same values, cut from the graph: no gradient flows to what came before."""
        return self.map(Tensor.detach)

    def to(self, device: torch.device | str) -> State:
        """On another device; the position stays on the CPU, where phases are computed."""
        return self.map(lambda tensor: tensor.to(device))

    def select(self, rows: Tensor | Iterable[int]) -> State:
        """The rows with these indices, in this order (repetition allowed)."""
        index = torch.as_tensor(rows if isinstance(rows, Tensor) else list(rows), dtype=torch.int64)
        picked = self.map(lambda tensor: tensor.index_select(0, index.to(tensor.device)))
        return State(picked.layers, self.position.index_select(0, index.cpu()))

    @staticmethod
    def cat(states: Iterable[State]) -> State:
        """One state whose rows are those of `states`, in order."""
        parts = list(states)
        layers = tuple(
            {name: torch.cat([part.layers[i][name] for part in parts]) for name in layer}
            for i, layer in enumerate(parts[0].layers)
        )
        return State(layers, torch.cat([part.position for part in parts]))

    def reset(self, rows: Tensor) -> State:
        """With the marked rows (bool [B]) emptied and their position set to 0."""
        layers = tuple(reset_rows(layer, rows) for layer in self.layers)
        return State(layers, torch.where(rows.cpu(), 0, self.position))

    def nbytes(self) -> int:
        """Bytes of all tensors, the position included."""
        tensors = [tensor for layer in self.layers for tensor in layer.values()]
        return sum(t.numel() * t.element_size() for t in [*tensors, self.position])

    def to_tensors(self) -> dict[str, Tensor]:
        """A flat dictionary for a file: `layers.<i>.<name>` and `position`; the inverse of `from_tensors`."""
        flat = {f"layers.{i}.{name}": t for i, layer in enumerate(self.layers) for name, t in layer.items()}
        return {**flat, "position": self.position}

    def misfit(self, other: State) -> str | None:
        """In what the tensors are not those of `other`, a state of the model in question with any number of rows.

        Returns: the first tensor with both shapes, dtypes or names, or one that is not finite; None: it fits.
        """
        if len(self.layers) != len(other.layers):
            return f"it has {len(self.layers)} layers there and {len(other.layers)} here"
        for i, (mine, theirs) in enumerate(zip(self.layers, other.layers, strict=True)):
            if mine.keys() != theirs.keys():
                return f"layer {i} holds {', '.join(sorted(mine))} there and {', '.join(sorted(theirs))} here"
            for name, tensor in mine.items():
                shape, wanted = [self.rows, *tensor.shape[1:]], [self.rows, *theirs[name].shape[1:]]
                if shape != wanted:
                    return f"layers.{i}.{name} is {shape} there and {wanted} here"
                if not tensor.is_floating_point() or not bool(torch.isfinite(tensor).all()):
                    return f"layers.{i}.{name} ({tensor.dtype}) holds numbers that are not finite"
        return "a position is below 0" if bool((self.position < 0).any()) else None

    @staticmethod
    def from_tensors(tensors: Mapping[str, Tensor]) -> State:
        """From what `to_tensors` gave.

        Raises:
            ValueError: a name that `to_tensors` does not write, a missing layer, row counts that disagree, positions
                that are no whole numbers.
        """
        layers: dict[int, MemoryState] = {}
        for name, tensor in tensors.items():
            if name == "position":
                continue
            prefix, _, rest = name.partition(".")
            index, _, part = rest.partition(".")
            if prefix != "layers" or not index.isdecimal() or not part:
                raise ValueError(f"a state has no tensor named {name!r}")
            layers.setdefault(int(index), {})[part] = tensor
        if "position" not in tensors or sorted(layers) != list(range(len(layers))):
            raise ValueError("a state needs its position and all of its layers")
        position = tensors["position"]
        if position.dim() != 1 or position.is_floating_point() or position.is_complex():
            raise ValueError(
                f"positions are whole numbers [rows], not {position.dtype} {list(position.shape)}"
            )
        position = position.to("cpu", torch.int64)
        if any(t.dim() == 0 or len(t) != len(position) for layer in layers.values() for t in layer.values()):
            raise ValueError(
                f"the tensors of a state disagree about the number of rows ({len(position)} positions)"
            )
        return State(tuple(layers[i] for i in range(len(layers))), position)
