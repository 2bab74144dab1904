"""Everything that a training loop needs, put together once: data, model, optimizer, schedule, settings."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch

from ..checkpoint.contents import model_tensors, optimizer_tensors
from ..config import Config
from ..config.rules import resolve_gradient_accumulation
from ..config.schema import Training
from ..data.batches import Batch, BatchLoader
from ..data.dataset import Dataset, Split
from ..data.order import EpochWindows, Order, RandomWindows
from ..data.streams import Documents, StreamingWindows
from ..errors import ConfigError, DataError
from ..model import Geometry, Model
from ..model.choice import step_bytes
from ..model.fused import Fused
from ..optim import Schedule, WeightDecay, build_optimizer, build_schedule, build_weight_decay
from ..runs import Choice, RunDirectory
from ..text.tokenizers import Tokenizer
from ..watch import fingerprint
from .evaluation import Evaluation, validate
from .geometry import RWKV8_CHOICE, geometry_line, limit_scratch
from .machine import Machine, apply_process_settings, choose_machine, thread_waiting
from .streams import Streams

STREAMS = "streams-0"
"""The part of a checkpoint that holds the states of the rows, from row 0 on."""


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
        """Raises ConfigError when neither epochs nor max_iters says how long the run is."""
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
        return Plan(accumulation, rows, epochs.steps_per_epoch, total, by_epochs, order)


@dataclass
class Session:
    """A run that is ready to go on."""

    config: Config
    dataset: Dataset
    plan: Plan
    machine: Machine
    model: Model
    optimizer: torch.optim.Optimizer
    schedule: Schedule
    weight_decay: WeightDecay
    choices: tuple[Choice, ...]
    run: RunDirectory
    streams: Streams | None = None

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the data."""
        return self.dataset.tokenizer

    @property
    def total_steps(self) -> int:
        """Optimizer steps of the whole run."""
        return self.plan.total_steps

    @property
    def validation_interval(self) -> int:
        """Optimizer steps between validations."""
        training = self.config.training
        return training.validation_interval_iters or training.checkpoint_interval_iters

    def epochs_begun(self, step: int) -> int:
        """How many epochs had begun when optimizer step `step` (from 1) was taken; 1 during the first."""
        return (step - 1) // self.plan.steps_per_epoch + 1

    def epoch_ended_by(self, step: int) -> int:
        """The number of the epoch that step `step` completes; 0 if it completes none."""
        if not self.plan.by_epochs or step % self.plan.steps_per_epoch:
            return 0
        return step // self.plan.steps_per_epoch

    @property
    def kernel_override(self) -> str | None:
        """What took the place of the configured memory or executor: "memory" or "memory/executor"; None: nothing."""
        kernel, promoted = (
            self.config.training.sequence_kernel_override,
            self.machine.chosen_executor.promoted,
        )
        if kernel is not None:
            return kernel.memory_system + ("" if kernel.executor == "auto" else f"/{kernel.executor}")
        return f"{self.config.model.sequence_kernel.memory_system}/{promoted}" if promoted else None

    @contextlib.contextmanager
    def batches(self, done: int) -> Iterator[Iterator[list[Batch]]]:
        """The micro-batches of every optimizer step after the first `done`, made ahead by a thread."""
        training = self.config.training
        loader = BatchLoader(self.dataset.train, self.plan.order, training.block_size)
        groups = [
            range(index * training.batch_size, (index + 1) * training.batch_size)
            for index in range(self.plan.accumulation)
        ]
        with loader.prefetching(done, groups, self.config.runtime.prefetch, stop=self.total_steps) as batches:
            yield batches

    def tensors(self) -> dict[str, dict[str, torch.Tensor]]:
        """What a checkpoint holds: weights, moments and carried states, by part and name."""
        parts = {
            "model": model_tensors(self.model),
            "optimizer": optimizer_tensors(self.optimizer, self.model),
        }
        if self.streams is not None:
            parts[STREAMS] = self.streams.tensors()
        return parts

    def validate(self, split: Split, batches: int, stop: Callable[[], bool]) -> Evaluation:
        """The loss on the run's fixed sample of `split`, in `batches` batches."""
        training = self.config.training
        return validate(
            self.model,
            split,
            self.tokenizer,
            self.machine,
            block_size=training.block_size,
            rows=training.batch_size,
            batches=batches,
            seed=training.seed,
            chunk=training.tbptt_chunk_size,
            stop=stop,
        )

    def device_memory(self) -> int | None:
        """Bytes in use on an accelerator; None on the CPU, where the process's memory tells."""
        if self.machine.device.type == "cuda":
            return int(torch.cuda.memory_allocated(self.machine.device))
        return None

    def state_bytes(self) -> int:
        """Bytes of the recurrent state of one micro-batch; of all rows of a step where states are carried."""
        carried = self.config.training.tbptt_persist_across_steps
        rows = self.plan.global_rows if carried else self.config.training.batch_size
        return self.model.geometry.state_bytes(rows, self.machine.weight_dtype.itemsize)

    def step_bytes(self) -> int:
        """An estimate of what a training step needs beyond weights, gradients and moments."""
        training = self.config.training
        return step_bytes(
            self.machine.chosen_executor,
            self.model.geometry,
            rows=training.batch_size,
            length=training.kernel_block,
            recompute=self.machine.recompute,
            element_size=self.machine.dtype.itemsize,
            dropout=self.config.model.dropout > 0,
            spans=training.spans,
            carries=training.carries_states,
        )

    def fingerprint_lines(self) -> tuple[tuple[str, str], ...]:
        """The lines that say what the run does: five, and one for the geometry of a memory other than linear."""
        training, optimizer = self.config.training, self.config.optimizer
        executor = self.machine.chosen_executor
        geometry = geometry_line(self.config, self.machine.device.type, self.model.memory, executor.tile)
        return (
            fingerprint.parallel_runtime(),
            fingerprint.training_path(
                backend=self.machine.device.type,
                launch_mode=training.launch_mode,
                sequence_kernel=self.config.effective_model.sequence_kernel.memory_system,
                sequence_kernel_override=self.kernel_override,
                block_size=training.block_size,
                dtype=str(self.machine.dtype).removeprefix("torch."),
                executor=f"{executor.name}/{executor.form}",
                tbptt_chunk_size=training.tbptt_chunk_size,
            ),
            fingerprint.train_schedule(
                dataset_steps_per_epoch=self.plan.steps_per_epoch,
                checkpoint_interval_iters=training.checkpoint_interval_iters,
                total_steps=self.total_steps,
                epochs=training.epochs,
            ),
            fingerprint.training_batching(
                micro_batch_size=training.batch_size,
                gradient_accumulation_steps=self.plan.accumulation,
                tbptt_chunk_size=training.tbptt_chunk_size,
                tbptt_persist_across_steps=training.tbptt_persist_across_steps,
                min_logical_block_size=training.min_logical_block_size,
            ),
            fingerprint.optimizer(
                name=optimizer.name,
                schedule_mode=optimizer.schedule_mode,
                learning_rate=optimizer.learning_rate,
                weight_decay=optimizer.weight_decay,
                weight_decay_final=optimizer.weight_decay_final,
            ),
            *(() if geometry is None else (geometry,)),
        )


@dataclass(frozen=True)
class Parts:
    """A session before it has a run directory: built, so that mistakes show before anything is written."""

    config: Config
    dataset: Dataset
    plan: Plan
    machine: Machine
    model: Model
    optimizer: torch.optim.Optimizer
    choices: tuple[Choice, ...]
    streams: Streams | None = None

    def session(self, run: RunDirectory) -> Session:
        """The session of this run."""
        table, total = self.config.optimizer, self.plan.total_steps
        schedule = build_schedule(table, total, self.config.effective_model.n_embd)
        return Session(
            self.config,
            self.dataset,
            self.plan,
            self.machine,
            self.model,
            self.optimizer,
            schedule,
            build_weight_decay(table, total),
            self.choices,
            run,
            streams=self.streams,
        )


def build_parts(config: Config, dataset: Dataset, stored: Mapping[str, str] | None = None) -> Parts:
    """Model, optimizer and plan of a run; `stored` are the choices of a run that goes on.

    Raises:
        ConfigError: settings that the data or this machine cannot fulfil.
    """
    plan = Plan.of(config, dataset)
    geometry = Geometry.of(config.effective_model, _vocabulary(config, dataset))
    tokens = plan.total_steps * plan.global_rows * config.training.block_size
    machine = choose_machine(config, geometry, stored, tokens=tokens)
    allocator = apply_process_settings(machine, deterministic=config.runtime.deterministic)
    model = _model(config, geometry, machine)
    chunks = limit_scratch(model.memory, (stored or {}).get(RWKV8_CHOICE))
    model.to(machine.device, machine.weight_dtype)
    optimizer, optimizer_choices = build_optimizer(
        model, config.optimizer, total_steps=plan.total_steps, products=machine.dtype
    )
    choices = (
        *machine.choices,
        *chunks,
        allocator,
        thread_waiting(),
        *(Choice(*choice) for choice in optimizer_choices),
        _batching(config, plan),
    )
    carried = config.training.tbptt_persist_across_steps
    streams = Streams(plan.accumulation, config.training.batch_size) if carried else None
    return Parts(config, dataset, plan, machine, model, optimizer, choices, streams)


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


def _model(config: Config, geometry: Geometry, machine: Machine) -> Model:
    """The model with its first weights, computed as was chosen."""
    model = Model(
        config.effective_model, geometry.vocab_size, seed=config.training.seed, recompute=machine.recompute
    )
    chosen = machine.chosen_executor
    if isinstance(model.layer_step, Fused):
        model.layer_step.kernels = machine.kernels
        model.layer_step.always_composed = chosen.name == "composed"
    else:
        model.layer_step.tile_tokens = chosen.tile
    if chosen.promoted is not None:
        model.memory.executor = chosen.promoted
    return model


def _vocabulary(config: Config, dataset: Dataset) -> int:
    """V, checked against the tokenizer."""
    needed, asked = dataset.tokenizer.vocab_size, config.model.vocab_size
    if asked is not None and asked < needed:
        raise ConfigError(
            f"model.vocab_size is {asked}, but the {dataset.tokenizer.kind} tokenizer has {needed} tokens; "
            "leave it out, or make it larger"
        )
    return asked or needed


def _batching(config: Config, plan: Plan) -> Choice:
    training = config.training
    value = f"{training.batch_size} rows x {plan.accumulation}"
    if training.target_effective_batch_size is None:
        reason = "as configured"
    else:
        reason = f"training.target_effective_batch_size asks for {training.target_effective_batch_size} rows"
    tokens = plan.global_rows * training.block_size
    return Choice("batch", value, f"{reason}; {tokens:,} tokens per optimizer step")
