"""How long a run is and in which order it reads its text."""

from __future__ import annotations

from dataclasses import dataclass

from ..config import Config
from ..config.rules import resolve_gradient_accumulation
from ..config.schema import Training
from ..data.dataset import Dataset, Split
from ..data.order import EpochWindows, Order, RandomWindows
from ..data.streams import Documents, StreamingWindows
from ..errors import ConfigError, DataError
from .evaluation import documents_apart


@dataclass(frozen=True)
class Plan:
    """How long the run is and what a step reads; everything follows from the configuration and the data's size.

    Attributes:
        accumulation: micro-batches per optimizer step.
        global_rows: rows per optimizer step.
        steps_per_epoch: optimizer steps that read the training split once.
        total_steps: optimizer steps of the whole run.
        by_epochs: whether the order visits every target once per epoch.
    """

    accumulation: int
    global_rows: int
    steps_per_epoch: int
    total_steps: int
    by_epochs: bool
    order: Order

    @staticmethod
    def of(config: Config, dataset: Dataset) -> Plan:
        """Raises ConfigError when neither epochs nor max_iters says how long the run is, DataError where documents hold
        nothing to predict.
        """
        training = config.training
        accumulation = resolve_gradient_accumulation(
            training.batch_size, training.gradient_accumulation_steps, training.target_effective_batch_size
        )
        rows = training.batch_size * accumulation
        tokens, name = len(dataset.train), dataset.train.name
        epochs: EpochWindows | StreamingWindows
        epochs = EpochWindows(tokens, training.block_size, rows, training.seed, name)
        by_epochs = training.epochs is not None or training.order != "random"
        order: Order
        if training.order == "streaming":
            order = epochs = _streaming(dataset.train, training, rows)
        else:
            order = epochs if by_epochs else RandomWindows(tokens, training.block_size, training.seed, name)
        if training.epochs is not None:
            total = training.epochs * epochs.steps_per_epoch
        elif training.max_iters is not None:
            total = training.max_iters
        else:
            raise ConfigError("training.max_iters or training.epochs must say how long the run is")
        if dataset.validation is not None:
            documents_apart(dataset.validation, training)  # refused now, not at the first validation
        return Plan(accumulation, rows, epochs.steps_per_epoch, total, by_epochs, order)


def _streaming(split: Split, training: Training, rows: int) -> StreamingWindows:
    """The streaming order of a split.

    Raises:
        DataError: no document with anything to predict, or fewer blocks than rows.
    """
    try:
        documents = Documents.of(split.document_starts, len(split), training.min_logical_block_size)
    except ValueError as error:
        raise DataError(
            f"{split.where}: {error}; join short documents with training.min_logical_block_size"
        ) from error
    order = StreamingWindows(documents, training.block_size, rows, training.seed, split.name)
    if order.count < rows:
        raise DataError(
            f"{split.where}: the {split.name} split has {order.count} blocks of training.block_size = "
            f"{training.block_size} tokens for the {rows} rows of an optimizer step; use fewer rows "
            "(training.batch_size, training.gradient_accumulation_steps), shorter blocks, or more text"
        )
    return order
