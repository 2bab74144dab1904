"""Losses without learning: validation during a run, and the evaluation of a whole split.

An evaluation never touches training: it draws nothing, holds its own states, puts the model's mode back, and leaves
no gradient. The same windows are read every time, so that two validations can be compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..data.batches import BatchLoader, target_bytes
from ..data.dataset import Split
from ..data.order import RandomWindows, SequentialWindows
from ..generation.mode import evaluating
from ..model import Model, State
from ..text.tokenizers import Tokenizer
from .machine import Machine


@dataclass(frozen=True)
class Evaluation:
    """A loss and what it was measured on.

    Attributes:
        loss: nats per token.
        targets: tokens that were predicted.
        text_bytes: bytes of text that they stand for; None where tokens have no fixed length in bytes.
        complete: False when a stop was requested half-way.
    """

    loss: float
    targets: int
    text_bytes: int | None
    complete: bool = True

    @property
    def perplexity(self) -> float:
        """exp(loss); infinite where that overflows."""
        return math.exp(self.loss) if self.loss < 700 else math.inf

    @property
    def bits_per_byte(self) -> float | None:
        """Bits per byte of text: comparable between tokenizers."""
        if not self.text_bytes:
            return None
        return self.loss * self.targets / math.log(2) / self.text_bytes


def validate(
    model: Model,
    split: Split,
    tokenizer: Tokenizer,
    machine: Machine,
    *,
    block_size: int,
    rows: int,
    batches: int,
    seed: int,
    stop: Callable[[], bool] = lambda: False,
) -> Evaluation:
    """The loss on a fixed sample of `batches` x `rows` windows, from fresh states.

    A split that is smaller than the sample is read once from end to end instead. Raises nothing of its own; a loss
    that is not finite is returned as it is.
    """
    if len(split) - 1 <= batches * rows * block_size or len(split) <= block_size:
        order = SequentialWindows(len(split), block_size, rows)
        loader = BatchLoader(split, order, block_size)
        return _run(model, loader, tokenizer, machine, steps=order.steps, rows=rows, carry=False, stop=stop)
    sample = RandomWindows(len(split), block_size, seed, split.name)
    loader = BatchLoader(split, sample, block_size)
    return _run(model, loader, tokenizer, machine, steps=batches, rows=rows, carry=False, stop=stop)


def evaluate_split(
    model: Model,
    split: Split,
    tokenizer: Tokenizer,
    machine: Machine,
    *,
    block_size: int,
    rows: int,
    carry_state: bool,
    progress: Callable[[int, int], None] | None = None,
) -> Evaluation:
    """The loss over every token of a split exactly once (but the first, which nothing predicts).

    With `carry_state` each row reads one contiguous share of the split and its state lives from block to block; else
    every block starts from an empty state.
    """
    order = SequentialWindows(len(split), block_size, rows)
    loader = BatchLoader(split, order, block_size)
    return _run(
        model, loader, tokenizer, machine, steps=order.steps, rows=rows, carry=carry_state, progress=progress
    )


def _run(
    model: Model,
    loader: BatchLoader,
    tokenizer: Tokenizer,
    machine: Machine,
    *,
    steps: int,
    rows: int,
    carry: bool,
    stop: Callable[[], bool] = lambda: False,
    progress: Callable[[int, int], None] | None = None,
) -> Evaluation:
    lengths = tokenizer.byte_lengths()
    total, targets, text_bytes = 0.0, 0, 0
    state: State | None = None
    complete = True
    with evaluating(model):
        for step in range(steps):
            if stop():
                complete = False
                break
            batch = loader.batch(step, np.arange(rows))
            with machine.autocast():
                hidden, state = model(batch.tokens.to(machine.device), state, carry=carry)
                total += float(model.loss_sum(hidden, batch.targets.to(machine.device)))
            targets += batch.target_count
            if lengths is not None:
                text_bytes += target_bytes(batch.targets, lengths)
            if progress is not None:
                progress(step + 1, steps)
    loss = total / targets if targets else math.nan
    return Evaluation(loss, targets, text_bytes if lengths is not None else None, complete)
