"""Truncated backpropagation through time: a block read in chunks, and states that outlive a step.

Each chunk has a backward pass of its own, over the sum of its token losses (law 5); the state it hands on is cut from
the graph. With a window of k chunks the loss of chunk j also reaches chunks j - k + 1 .. j, as one backward pass over
that span would: every chunk then goes backward up to k times.

Source: Williams and Peng 1990, "An efficient gradient-based algorithm for on-line training of recurrent network
trajectories", where it is called truncated backpropagation through time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import CheckpointError
from ..model import Model, State
from ..optim.replacement import forget_neurons

Forward = Callable[[Tensor, Tensor, State | None, "Tensor | None", bool], tuple[Tensor, "State | None"]]
"""(tokens [B, C], targets [B, C], state, reset, carry) -> sum of token losses, state after the chunk."""

Backward = Callable[[list[Tensor], list[Tensor], bool], None]
"""(what is differentiated, its gradients, whether the graph is needed again)."""


def _backward(ends: list[Tensor], gradients: list[Tensor], again: bool) -> None:
    torch.autograd.backward(ends, gradients, retain_graph=again)


class Streams:
    """The states of all rows of the global batch, between optimizer steps: one `State` per micro-batch.

    Args:
        groups: micro-batches of a step.
        rows: of a micro-batch.
    """

    def __init__(self, groups: int, rows: int) -> None:
        self.rows = rows
        self.states: list[State | None] = [None] * groups

    def forget(self, model: Model, neurons: Tensor) -> None:
        """Empty what some neurons (bool [H, N]) have written into the states."""
        self.states = [
            None if state is None else forget_neurons(model, state, neurons) for state in self.states
        ]

    def tensors(self) -> dict[str, Tensor]:
        """For a checkpoint: the rows of all micro-batches, one after the other; nothing before the first step."""
        states = [state for state in self.states if state is not None]
        return State.cat(states).to_tensors() if states else {}

    def load(self, tensors: Mapping[str, Tensor], model: Model, dtype: torch.dtype) -> None:
        """Take what `tensors` gave, however many rows a micro-batch had then.

        Raises:
            CheckpointError: states of another model, or another number of rows in all.
        """
        if not tensors:
            return
        try:
            state = State.from_tensors(tensors)
            misfit = state.misfit(model.initial_state(1))
        except ValueError as error:
            misfit = str(error)
        if misfit is not None:
            raise CheckpointError(
                f"the carried states of the checkpoint do not fit this model: {misfit}; use another checkpoint, or "
                "start a new run from its weights with training.launch_mode = init_from_checkpoint"
            )
        state = state.to(model.device).map(lambda tensor: tensor.to(dtype))
        wanted = self.rows * len(self.states)
        if state.rows != wanted:
            raise CheckpointError(
                f"the checkpoint holds the streams of {state.rows} rows, and an optimizer step has {wanted} now: "
                "resume with the rows that it was trained with, or start a new run from its weights with "
                "training.launch_mode = init_from_checkpoint"
            )
        self.states = [
            state.select(range(index * self.rows, (index + 1) * self.rows))
            for index in range(len(self.states))
        ]


@dataclass
class _Chunk:
    """What a later loss needs to go back through a chunk."""

    before: list[Tensor]  # the state it began with: leaves
    after: list[Tensor]  # the state it left, in its graph


def backward_in_chunks(
    forward: Forward,
    tokens: Tensor,
    targets: Tensor,
    state: State | None,
    reset: Tensor | None,
    *,
    chunk: int | None,
    window: int,
    carry: bool,
    backward: Backward = _backward,
) -> tuple[Tensor, State | None]:
    """Forward and backward over a block, chunk by chunk; gradients are added to the parameters' `.grad`.

    Args:
        tokens, targets: int64 [B, T].
        state: what the rows have read before; nothing flows back into it.
        reset: bool [B], rows that start anew with the first token, or None.
        chunk: tokens per chunk; None is all of them.
        window: chunks that a loss reaches, its own included; 1 detaches every chunk from the one before.
        carry: whether the final state is wanted.
        backward: runs a backward pass; somebody may want to time it.
    Returns: the sum of token losses, detached; the final state, detached, or None.
    """
    total: Tensor | None = None
    history: deque[_Chunk] = deque(maxlen=max(window - 1, 1))
    parts = list(_parts(tokens, targets, chunk))
    for index, (inputs, wanted) in enumerate(parts):
        more = index + 1 < len(parts)
        if window > 1 and state is not None:
            state = state.map(lambda tensor: tensor.detach().requires_grad_())
        before = [] if state is None else _tensors(state)
        loss, after = forward(inputs, wanted, state, reset, carry or more)
        reset = None
        if window > 1:
            _reach_back(loss, before, history, keep=more, backward=backward)
            if after is not None and more:
                history.append(_Chunk(before, _tensors(after)))
        else:
            backward([loss], [torch.ones_like(loss)], False)
        total = loss.detach() if total is None else total + loss.detach()
        state = None if after is None else after.detach()
        del loss, after  # with them goes their graph, before the next chunk makes its own
    assert total is not None
    return total, state if carry else None


def _parts(tokens: Tensor, targets: Tensor, chunk: int | None) -> Iterator[tuple[Tensor, Tensor]]:
    size = chunk or max(tokens.shape[1], 1)
    yield from zip(tokens.split(size, dim=1), targets.split(size, dim=1), strict=True)


def _tensors(state: State) -> list[Tensor]:
    return [tensor for layer in state.layers for tensor in layer.values()]


def _reach_back(
    loss: Tensor,
    before: list[Tensor],
    history: deque[_Chunk],
    *,
    keep: bool,
    backward: Backward = _backward,
) -> None:
    """The loss's backward pass through its own chunk and those of the history, newest first.

    `keep`: later losses will come through here. Only the newest chunks can still be reached then, so the oldest one's
    graph goes with this pass.
    """
    ends, seeds, leaves = [loss], [torch.ones_like(loss)], before
    for place, chunk in enumerate([None, *reversed(history)]):
        if chunk is not None:  # go on where the later chunk's state ended
            pairs = [
                (end, leaf.grad)
                for end, leaf in zip(chunk.after, leaves, strict=True)
                if leaf.grad is not None and end.requires_grad
            ]
            _clear(leaves)
            ends, seeds = [end for end, _ in pairs], [seed for _, seed in pairs]
            leaves = chunk.before
        if not ends:
            break
        oldest = place == len(history) == history.maxlen
        backward(ends, seeds, keep and not oldest)
    _clear(leaves)


def _clear(leaves: list[Tensor]) -> None:
    for leaf in leaves:
        leaf.grad = None
