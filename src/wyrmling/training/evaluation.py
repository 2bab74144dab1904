"""Losses without learning: validation during a run, and the evaluation of a whole split.

An evaluation never touches training: it draws nothing, holds its own states, puts the model's mode back, and leaves
no gradient. The same stretches of a text are read every time, so that two validations can be compared: each begins
with an empty state, and none reaches over the border of a document where a run reads documents apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from ..config.schema import Training
from ..data.batches import gather
from ..data.dataset import Split
from ..data.order import IGNORED, RandomWindows, Windows
from ..data.streams import Blocks, Documents
from ..errors import DataError
from ..generation.mode import evaluating
from ..model import Model, State
from ..numerics.keyed import KeyedPermutation, hash_int
from ..text.tokenizers import Tokenizer
from .machine import Machine

# Fewer tokens at a time leave the processor idle, more gain nothing: small batches are read together up to this.
TOKENS_AT_A_TIME = 512
# Stretches whose lengths are compared, so that like is read beside like: a large corpus is read in bounded memory.
AT_ONCE = 1 << 16


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
        documents: how many were read apart, each from an empty state; None where the text was read as one.
    """

    loss: float
    targets: int
    text_bytes: int
    textless: int = 0
    textless_loss: float | None = None
    unmeasured: int = 0
    complete: bool = True
    documents: int | None = None

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

    def evaluation(self, *, complete: bool = True, documents: Documents | None = None) -> Evaluation:
        """The result; reading the losses waits for the device."""
        return Evaluation(
            float(self.loss_sum) / self.targets if self.targets else math.nan,
            self.targets,
            self.text_bytes,
            self.textless,
            float(self.textless_loss_sum) / self.textless if self.textless else None,
            self.unmeasured,
            complete,
            None if documents is None else len(documents),
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
    documents: Documents | None = None,
    chunk: int | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Evaluation:
    """The loss on the sample that `sample_of` gives. A loss that is not finite is returned as it is.

    Args:
        documents: as `documents_apart` gives them.
        chunk: tokens that are read at once.
        stop: asked before every batch.
    """
    sample = sample_of(split, documents, block_size=block_size, rows=rows, batches=batches, seed=seed)
    tally = _Scorer(model, split, tokenizer, machine)
    complete = tally.read(sample, block_size=block_size, rows=rows, chunk=chunk, stop=stop)
    return tally.evaluation(complete=complete, documents=documents)


def evaluate_split(
    model: Model,
    split: Split,
    tokenizer: Tokenizer,
    machine: Machine,
    *,
    block_size: int,
    rows: int,
    carry_state: bool,
    documents: Documents | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Evaluation:
    """The loss over every target of a split exactly once: every token but the first of the text, or of each document.

    With `carry_state` a state lives from block to block through a document; where the text is read as one, through
    each of `rows` contiguous shares of it. Else every block starts from an empty state.

    Args:
        rows: documents, or shares of the text, that are read side by side; what is measured on documents does not
            depend on it.
        documents: as `documents_apart` gives them.
        progress: told of targets done and in all.
    """
    whole = Documents.cut(len(split), len(split)) if documents is None else documents
    stretches = shares(len(split), block_size, rows) if documents is None else documents
    count, take = len(stretches), stretches.take
    if not carry_state:
        blocks = Blocks(whole, block_size)
        count, take = blocks.count, blocks.take
    total, scorer = int(whole.targets.sum()), _Scorer(model, split, tokenizer, machine)
    for start in range(0, count, AT_ONCE):
        part = take(np.arange(start, min(start + AT_ONCE, count)))
        scorer.read(part, block_size=block_size, rows=rows, progress=progress, total=total)
    return scorer.evaluation(documents=documents)


def documents_apart(split: Split, training: Training) -> Documents | None:
    """What a run reads apart, each from an empty state: the documents of a split, short ones joined as for training.
    None where its order reads the split as one text, or the split is one.

    Raises:
        DataError: no document with anything to predict.
    """
    starts = split.document_starts
    if training.order != "streaming" or len(starts) == 1:
        return None
    try:
        return Documents.of(starts, len(split), training.min_logical_block_size)
    except ValueError as error:
        raise DataError(
            f"{split.where}: {error} of the {split.name} split; join short documents with "
            "training.min_logical_block_size"
        ) from error


def sample_of(
    split: Split, documents: Documents | None, *, block_size: int, rows: int, batches: int, seed: int
) -> Documents:
    """What every validation of a run reads: `batches` x `rows` blocks, each from an empty state; all that there are,
    where they are no more. Of documents they are drawn without repetition, of a text that is read as one from anywhere.
    """
    wanted = batches * rows
    if documents is None and len(split) - 1 > wanted * block_size:
        order = RandomWindows(len(split), block_size, seed, split.name)
        drawn = [order.windows(step, np.arange(rows)).starts for step in range(batches)]
        return Documents(np.concatenate(drawn), np.full(wanted, block_size))
    if documents is None:
        return Documents.cut(len(split), block_size)
    blocks = Blocks(documents, block_size)
    if blocks.count <= wanted:
        return blocks.take(np.arange(blocks.count))
    permutation = KeyedPermutation(blocks.count, hash_int("validation sample", seed, split.name))
    return blocks.take(np.sort(permutation(np.arange(wanted))))


def shares(n_tokens: int, block_size: int, rows: int) -> Documents:
    """A text in at most `rows` contiguous shares of whole blocks, to be read side by side."""
    return Documents.cut(n_tokens, block_size * -(-(n_tokens - 1) // (block_size * rows)))


@dataclass(frozen=True)
class Reading:
    """The next block of some stretches that are read side by side.

    Attributes:
        tokens, targets: int64 [R, T], T the longest of the blocks.
        first: whether the stretches begin here, with an empty state; else their states are the first R of those
            after the reading before, for stretches that have come to an end are the last.
        last: whether no stretch goes on.
    """

    tokens: torch.Tensor
    targets: torch.Tensor
    first: bool
    last: bool


def read_side_by_side(split: Split, stretches: Documents, block_size: int, rows: int) -> Iterator[Reading]:
    """Every target of some stretches exactly once, those of like length beside each other: `rows` of them, or more
    where they are so short that a single block holds them and is still small.
    """
    order = np.argsort(-stretches.targets, kind="stable")
    while len(order):
        longest = int(stretches.targets[order[0]])
        count = rows if longest > block_size else max(rows, TOKENS_AT_A_TIME // longest)
        group, order = stretches.take(order[:count]), order[count:]
        for done in range(0, longest, block_size):
            left = group.targets[group.targets > done] - done
            width = min(int(left[0]), block_size)
            windows = Windows(group.starts[: len(left)] + done, np.minimum(left, block_size))
            tokens, targets = gather(split, windows, width)
            yield Reading(
                torch.from_numpy(tokens), torch.from_numpy(targets), done == 0, done + block_size >= longest
            )


def continued(state: State | None, reading: Reading) -> State | None:
    """The state that a reading begins with, of the one that was left by the reading before."""
    if state is None or reading.first:
        return None
    rows = len(reading.tokens)
    return state if rows == state.rows else state.select(range(rows))


class _Scorer(Tally):
    """Adds up what a model's losses on stretches of a split are."""

    def __init__(self, model: Model, split: Split, tokenizer: Tokenizer, machine: Machine) -> None:
        super().__init__(zero_loss(machine), textless_loss_sum=zero_loss(machine))
        self._model, self._split, self._machine = model, split, machine
        self._lengths, self._textless = tokenizer.byte_lengths(), textless_tokens(tokenizer, machine)

    def read(
        self,
        stretches: Documents,
        *,
        block_size: int,
        rows: int,
        chunk: int | None = None,
        stop: Callable[[], bool] = lambda: False,
        progress: Callable[[int, int], None] | None = None,
        total: int = 0,
    ) -> bool:
        """Read stretches, each from an empty state and block after block with the state that it left; False when a
        stop was requested half-way.
        """
        state: State | None = None
        with evaluating(self._model):
            for reading in read_side_by_side(self._split, stretches, block_size, rows):
                if stop():
                    return False
                state = continued(state, reading)
                tokens, targets = (
                    tensor.to(self._machine.device, non_blocking=True).split(chunk or block_size, dim=1)
                    for tensor in (reading.tokens, reading.targets)
                )
                for part, (inputs, wanted) in enumerate(zip(tokens, targets, strict=True), start=1):
                    with self._machine.autocast():
                        carry = not reading.last or part < len(tokens)
                        hidden, state = self._model(inputs, state, carry=carry)
                        self.add(*loss_sums(self._model, hidden, wanted, self._textless))
                self.count(reading.targets, self._lengths)
                if progress is not None:
                    progress(self.targets, total)
        return True
