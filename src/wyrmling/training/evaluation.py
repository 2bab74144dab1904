"""Losses without learning: validation during a run, and the evaluation of a whole split.

An evaluation never touches training: it draws nothing, holds its own states, puts the model's mode back, and leaves
no gradient. The same windows are read every time, so that two validations can be compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch

from ..data.batches import Batch, BatchLoader, target_bytes
from ..data.dataset import Split
from ..data.order import RandomWindows, SequentialWindows
from ..generation.mode import evaluating
from ..model import Model, State
from ..text.tokenizers import Tokenizer
from .machine import Machine

# Fewer tokens at a time leave the processor idle, more gain nothing: small batches are read together up to this.
TOKENS_AT_A_TIME = 512


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


def zero_loss(machine: Machine) -> torch.Tensor:
    """A sum of losses that stays on the device: adding to it waits for nothing. float64 where the device has it."""
    dtype = torch.float32 if machine.device.type == "mps" else torch.float64
    return torch.zeros((), dtype=dtype, device=machine.device)


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
    chunk: int | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Evaluation:
    """The loss on a fixed sample of `batches` x `rows` windows, from fresh states.

    A split that is smaller than the sample is read once from end to end instead. Raises nothing of its own; a loss
    that is not finite is returned as it is.
    """
    if len(split) - 1 <= batches * rows * block_size or len(split) <= block_size:
        order = SequentialWindows(len(split), block_size, rows)
        loader = BatchLoader(split, order, block_size)
        return _run(
            model,
            loader,
            tokenizer,
            machine,
            steps=order.steps,
            rows=rows,
            carry=False,
            chunk=chunk,
            stop=stop,
        )
    sample = RandomWindows(len(split), block_size, seed, split.name)
    loader = BatchLoader(split, sample, block_size)
    return _run(
        model, loader, tokenizer, machine, steps=batches, rows=rows, carry=False, chunk=chunk, stop=stop
    )


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
    chunk: int | None = None,
    stop: Callable[[], bool] = lambda: False,
    progress: Callable[[int, int], None] | None = None,
) -> Evaluation:
    lengths = tokenizer.byte_lengths()
    total, targets, text_bytes = zero_loss(machine), 0, 0
    state: State | None = None
    complete = True
    at_once = 1 if carry else max(1, TOKENS_AT_A_TIME // (rows * loader.block_size))
    with evaluating(model):
        for done, batch in _batches(loader, steps, rows, at_once):
            if stop():
                complete = False
                break
            tokens, wanted = (
                tensor.to(machine.device, non_blocking=True).split(chunk or loader.block_size, dim=1)
                for tensor in (batch.tokens, batch.targets)
            )
            state = state if carry else None
            for part, (inputs, targeted) in enumerate(zip(tokens, wanted, strict=True), start=1):
                with machine.autocast():
                    hidden, state = model(inputs, state, carry=carry or part < len(tokens))
                    total = total + model.loss_sum(hidden, targeted)
            targets += batch.target_count
            if lengths is not None:
                text_bytes += target_bytes(batch.targets, lengths)
            if progress is not None:
                progress(done, steps)
    loss = float(total) / targets if targets else math.nan
    return Evaluation(loss, targets, text_bytes if lengths is not None else None, complete)


def _batches(loader: BatchLoader, steps: int, rows: int, at_once: int) -> Iterator[tuple[int, Batch]]:
    """The batches of all steps, `at_once` of them joined row by row, each with the number of steps read by then."""
    for begin in range(0, steps, at_once):
        end = min(begin + at_once, steps)
        parts = [loader.batch(step, np.arange(rows)) for step in range(begin, end)]
        yield (
            end,
            Batch(
                begin,
                torch.cat([part.rows for part in parts]),
                torch.cat([part.tokens for part in parts]),
                torch.cat([part.targets for part in parts]),
                sum(part.target_count for part in parts),
            ),
        )
