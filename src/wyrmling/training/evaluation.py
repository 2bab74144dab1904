"""Losses without learning: validation during a run, and the evaluation of a whole split.

An evaluation never touches training: it draws nothing, holds its own states, puts the model's mode back, and leaves
no gradient. The same windows are read every time, so that two validations can be compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from ..data.batches import Batch, BatchLoader
from ..data.dataset import Split
from ..data.order import IGNORED, RandomWindows, SequentialWindows
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
        loss: nats per token, over all targets.
        targets: tokens that were predicted.
        text_bytes: bytes of text that they stand for.
        textless: targets that stand for no text, such as an end of text that was added to a document.
        textless_loss: nats per token over these; None where there is none.
        unmeasured: targets whose bytes do not follow from the id, such as an unknown token.
        complete: False when a stop was requested half-way.
    """

    loss: float
    targets: int
    text_bytes: int
    textless: int = 0
    textless_loss: float | None = None
    unmeasured: int = 0
    complete: bool = True

    @property
    def perplexity(self) -> float:
        """exp(loss); infinite where that overflows."""
        return math.exp(self.loss) if self.loss < 700 else math.inf

    @property
    def bits_per_byte(self) -> float | None:
        """The bits of the tokens with text, per byte of text: comparable between tokenizers, however many ends of
        text were added. None where not every token's bytes are known.
        """
        if not self.text_bytes or self.unmeasured:
            return None
        nats = self.loss * self.targets - (self.textless_loss or 0.0) * self.textless
        return nats / math.log(2) / self.text_bytes


@dataclass
class Tally:
    """Sums over targets, of which a loss and bits per byte are made; losses stay on the device."""

    loss_sum: torch.Tensor | float = 0.0
    targets: int = 0
    text_bytes: int = 0
    textless: int = 0
    textless_loss_sum: torch.Tensor | float = 0.0
    unmeasured: int = 0

    def add(self, loss_sum: torch.Tensor, textless_loss_sum: torch.Tensor | float) -> None:
        """Nats, as `loss_sums` gives them."""
        self.loss_sum = self.loss_sum + loss_sum
        self.textless_loss_sum = self.textless_loss_sum + textless_loss_sum

    def count(self, targets: torch.Tensor, lengths: npt.NDArray[np.int64]) -> None:
        """What targets (int64, any shape, IGNORED where there is none) stand for, by `Tokenizer.byte_lengths`."""
        ids = targets.cpu().numpy()  # a torch index would wake every thread for a few numbers
        found = lengths[ids[ids != IGNORED]]
        self.targets += found.size
        self.text_bytes += int(found[found > 0].sum())
        self.textless += int(np.count_nonzero(found == 0))
        self.unmeasured += int(np.count_nonzero(found < 0))

    def evaluation(self, *, complete: bool = True) -> Evaluation:
        """The result; reading the losses waits for the device."""
        return Evaluation(
            float(self.loss_sum) / self.targets if self.targets else math.nan,
            self.targets,
            self.text_bytes,
            self.textless,
            float(self.textless_loss_sum) / self.textless if self.textless else None,
            self.unmeasured,
            complete,
        )


def textless_tokens(tokenizer: Tokenizer, machine: Machine) -> torch.Tensor | None:
    """Which ids stand for no text, bool [V] on the device; None where none does."""
    silent = tokenizer.byte_lengths() == 0
    return torch.from_numpy(silent).to(machine.device) if silent.any() else None


def loss_sums(
    model: Model, hidden: torch.Tensor, targets: torch.Tensor, textless: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor | float]:
    """The sum of the token losses in nats, and the part of it on targets without text (detached).

    Args:
        hidden, targets: [B, T, D] and int64 [B, T].
        textless: as `textless_tokens` gives it.
    """
    if textless is None:
        return model.loss_sum(hidden, targets), 0.0
    losses = model.token_losses(hidden, targets)  # [B, T]; 0 where the target is ignored
    apart = textless[targets.clamp(min=0)]
    return losses.sum(), losses.detach().masked_fill(~apart, 0.0).sum()


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
    lengths, textless = tokenizer.byte_lengths(), textless_tokens(tokenizer, machine)
    tally = Tally(zero_loss(machine), textless_loss_sum=zero_loss(machine))
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
                    tally.add(*loss_sums(model, hidden, targeted, textless))
            tally.count(batch.targets, lengths)
            if progress is not None:
                progress(done, steps)
    return tally.evaluation(complete=complete)


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
