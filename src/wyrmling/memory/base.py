"""What every sequence memory is: a function from neurons and a stream to reads, with a state that is a value.

    read, state = memory(neurons, stream, state, position=..., reset=...)

A memory may own parameters (shared by all layers) but never a state. Its state for one layer is a dictionary of named
tensors whose first axis is the batch row; how many tokens a row has seen (its position) is kept once for all layers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from ..numerics.roles import Role
from .choose import FormChoice

MemoryState = dict[str, Tensor]


def sums_dtype(tensor: Tensor) -> torch.dtype:
    """What states and sums are kept in, whatever the products run in: float64 for float64, else float32."""
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


def reset_rows(state: MemoryState, reset: Tensor) -> MemoryState:
    """The state with the marked rows (bool [B]) emptied. Every part of it; what was there, NaN included, is gone."""
    return {
        name: torch.where(
            reset.to(tensor.device).view(-1, *[1] * (tensor.dim() - 1)), tensor.new_zeros(()), tensor
        )
        for name, tensor in state.items()
    }


class Memory(nn.Module, ABC):
    """A sequence memory.

    Laws that each implementation is tested for: the whole pass equals chunks of any sizes equals single tokens
    (reads, final state, all gradients), from any state; a reset row behaves as a new one; token t never depends on
    later tokens.
    """

    #: Heads of the read: H, or 1 where the read is shared by all heads.
    read_heads: int
    #: How the recurrence is computed; see `model.sequence_kernel.executor`.
    executor: str
    #: What each parameter is for, by its name; a memory declares its parameters' roles when it creates them.
    parameter_roles: ClassVar[Mapping[str, Role]] = {}
    #: Sizes of projections that lie side by side in one parameter, by its name; see `numerics.roles.declare`.
    parameter_parts: Mapping[str, Sequence[int]] = {}

    @abstractmethod
    def initial_state(
        self, rows: int, *, neurons: int | None = None, device: torch.device | None = None
    ) -> MemoryState:
        """The empty state of one layer for `rows` rows. `neurons`: width of a narrow layer (default: the widest)."""

    @abstractmethod
    def choice(self, length: int) -> FormChoice:
        """The form that a call with `length` tokens takes, how many tokens a layer should hand over at a time, and
        why."""

    def first_neuron_weights(self) -> dict[str, Tensor]:
        """Parameters with one number per neuron, [H, N] each, as a new memory has them; here: none."""
        return {}

    def forget(self, state: MemoryState, neurons: Tensor) -> MemoryState:
        """One layer's state without what some neurons have written.

        Args:
            neurons: bool [H, N] of the widest layer; a narrow one has the first of every head.

        Here: the state as it is, that of memories which read the dense stream alone.
        """
        return state

    def forward(
        self,
        neurons: Tensor,
        stream: Tensor,
        state: MemoryState | None = None,
        *,
        position: Tensor,
        reset: Tensor | None = None,
        carry: bool = True,
    ) -> tuple[Tensor, MemoryState | None]:
        """Read the past for every token, and take the tokens in.

        Args:
            neurons: [B, H, T, N], which neurons fire.
            stream: [B, T, D], the dense stream that is stored. Without rows or tokens the read is empty too, the
                state stays as it is, and all gradients are zeros.
            state: the state before the first token; None is the empty one.
            position: int64 [B] on the CPU, tokens each row has seen before this call (after resets).
            reset: bool [B], rows to empty before the first token.
            carry: False says that nobody will read the final state, which then need not be computed (None).
        Returns: read [B, read_heads, T, D], final state.
        """
        if state is not None and reset is not None:
            state = reset_rows(state, reset)
        if stream.numel():
            return self._read(neurons, stream, state, position, carry)
        rows, length, width = stream.shape
        wide = sums_dtype(stream)
        if state is None and carry:
            state = self.initial_state(rows, neurons=neurons.shape[-1], device=stream.device)
            state = {name: part.to(wide) for name, part in state.items()}
        # of no numbers, and yet a function of everything
        whole = sum((x.sum() for x in (neurons, *self.parameters())), stream.sum()).to(wide)
        return stream.new_zeros(rows, self.read_heads, length, width, dtype=wide) + whole, (
            state if carry else None
        )

    @abstractmethod
    def _read(
        self,
        neurons: Tensor,
        stream: Tensor,
        state: MemoryState | None,
        position: Tensor,
        carry: bool,
    ) -> tuple[Tensor, MemoryState | None]:
        """`forward` for at least one row and one token, after resets."""
