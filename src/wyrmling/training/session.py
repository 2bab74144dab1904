"""Everything that a training loop needs, put together once: data, model, optimizer, schedule, settings."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import torch

from ..checkpoint import Surroundings
from ..checkpoint.contents import model_tensors, optimizer_tensors
from ..config import Config
from ..data.batches import Batch, BatchLoader
from ..data.dataset import Dataset
from ..errors import ConfigError
from ..model import Geometry, Model
from ..model.choice import step_bytes
from ..model.fused import Fused
from ..optim import (
    Scales,
    Schedule,
    WeightDecay,
    backbone_scale,
    build_optimizer,
    build_schedule,
    build_weight_decay,
    module_scales,
)
from ..optim.continual import Activity, ContinualBackprop
from ..runs import Choice, RunDirectory
from ..text.tokenizers import Tokenizer
from ..watch.device_memory import DeviceMemory
from .evaluation import Evaluation, documents_apart, sample_of, validate
from .geometry import RWKV8_CHOICE, limit_scratch
from .machine import Machine, allocator, choose_machine, thread_waiting
from .plan import Plan
from .replacing import build_continual, replacing_choices
from .streams import Streams

STREAMS = "streams-0"
"""The part of a checkpoint that holds the states of the rows, from row 0 on."""
CONTINUAL = "continual"
"""The part of a checkpoint that holds utilities and ages of neurons."""


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
    scales: Scales = field(default_factory=Scales)
    asked: Config | None = None
    autotune: Mapping[str, Any] | None = None
    continual: ContinualBackprop | None = None

    def session(self, run: RunDirectory) -> Session:
        """The session of this run."""
        table, total = self.config.optimizer, self.plan.total_steps
        schedule = build_schedule(table, total, self.config.effective_model.n_embd)
        own = {item.name: getattr(self, item.name) for item in fields(Parts)}
        return Session(**own, schedule=schedule, weight_decay=build_weight_decay(table, total), run=run)


@dataclass(frozen=True, kw_only=True)
class Session(Parts):
    """A run that is ready to go on: its parts, how its rates go, and where it is written."""

    schedule: Schedule
    weight_decay: WeightDecay
    run: RunDirectory

    @property
    def configured(self) -> Config:
        """The configuration as it was given: `config` without what was found for it (the rows of a micro-batch)."""
        return self.asked or self.config

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

    @functools.cached_property
    def surroundings(self) -> Surroundings:
        """What the manifest of every checkpoint says of the run."""
        dataset = self.dataset
        return Surroundings(self.configured.to_dict(), dataset.tokenizer.fingerprint(), dataset.fingerprint)

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
        if self.continual is not None:
            parts[CONTINUAL] = self.continual.tensors()
        return parts

    def replace_neurons(self, step: int, rate: float, activity: Activity | None) -> int | None:
        """What continual backprop does after optimizer step `step`: how many neurons are new; None where it is off.

        Args:
            rate: the step's learning rate.
            activity: what neurons did in the step, where it was sampled.
        """
        if self.continual is None:
            return None
        chosen = self.continual.after_step(step, activity, self.model, self.optimizer, rate)
        if chosen is None:
            return 0
        if self.streams is not None:
            self.streams.forget(self.model, chosen)
        return int(chosen.sum())

    def validate(self, stop: Callable[[], bool]) -> Evaluation:
        """The loss on the sample of the validation split that every validation of the run reads."""
        training, split = self.config.training, self.dataset.validation
        assert split is not None
        return validate(
            self.model,
            split,
            self.tokenizer,
            self.machine,
            block_size=training.block_size,
            rows=training.batch_size,
            batches=training.validation_batches,
            seed=training.seed,
            documents=documents_apart(split, training),
            chunk=training.tbptt_chunk_size,
            stop=stop,
        )

    def validation_sample(self) -> str | None:
        """What every validation reads, in words; None where nothing is validated."""
        training, split = self.config.training, self.dataset.validation
        if split is None:
            return None
        documents = documents_apart(split, training)
        options = {"batches": training.validation_batches, "seed": training.seed}
        sample = sample_of(
            split, documents, block_size=training.block_size, rows=training.batch_size, **options
        )
        read, there = int(sample.targets.sum()), len(split) - 1
        if documents is not None:
            there = int(documents.targets.sum())
        share = "all" if read == there else f"the same {read:,} of"
        apart = "" if documents is None else f", {len(documents):,} documents apart"
        blocks = f"in blocks of {training.block_size} that begin with an empty state"
        return f"each reads {share} {there:,} targets, {blocks}{apart}"

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
        return step_bytes_of(self.config, self.model.geometry, self.machine)


def step_bytes_of(config: Config, geometry: Geometry, machine: Machine) -> int:
    """An estimate of what a training step needs beyond weights, gradients and moments, computed as was chosen."""
    training = config.training
    return step_bytes(
        machine.chosen_executor,
        geometry,
        rows=training.batch_size,
        length=training.kernel_block,
        recompute=machine.recompute,
        element_size=machine.dtype.itemsize,
        dropout=config.model.dropout > 0,
        spans=training.spans,
        carries=training.carries_states,
    )


@dataclass(frozen=True)
class Learner:
    """A model with its first weights and the optimizer that moves them, on their device."""

    model: Model
    optimizer: torch.optim.Optimizer
    choices: tuple[Choice, ...]
    scales: Scales


def build_learner(
    config: Config, geometry: Geometry, machine: Machine, *, total_steps: int, chunk: str | None = None
) -> Learner:
    """Model and optimizer of a run of `total_steps` steps; `chunk` is the recorded choice of an RWKV-8 memory."""
    model = _model(config, geometry, machine)
    chunks = limit_scratch(model.memory, chunk)
    model.to(machine.device, machine.weight_dtype)
    scales = _scales(config, model, total_steps)
    optimizer, made = build_optimizer(
        model, config.optimizer, total_steps=total_steps, products=machine.dtype, scales=scales
    )
    choices = (*chunks, *(Choice(*choice) for choice in made), *_scaled(scales))
    return Learner(model, optimizer, choices, scales)


def build_parts(config: Config, dataset: Dataset, stored: Mapping[str, str] | None = None) -> Parts:
    """Model, optimizer and plan of a run.

    Args:
        stored: the choices of a run that goes on.
    Raises:
        ConfigError: settings that the data or this machine cannot fulfil.
    """
    plan = Plan.of(config, dataset)
    geometry = Geometry.of(config.effective_model, vocabulary_of(config, dataset))
    tokens = plan.total_steps * plan.global_rows * config.training.block_size
    machine = choose_machine(config, geometry, stored, tokens=tokens)
    _refuse_what_cannot_fit(config, geometry, machine, plan)
    with machine.settings():
        learner = build_learner(
            config, geometry, machine, total_steps=plan.total_steps, chunk=(stored or {}).get(RWKV8_CHOICE)
        )
    continual = build_continual(config, geometry, learner.scales)
    choices = (
        *machine.choices,
        allocator(),
        thread_waiting(),
        *learner.choices,
        _batching(config, plan),
        *replacing_choices(continual),
    )
    carried = config.training.tbptt_persist_across_steps
    streams = Streams(plan.accumulation, config.training.batch_size) if carried else None
    return Parts(
        config,
        dataset,
        plan,
        machine,
        learner.model,
        learner.optimizer,
        choices,
        streams,
        learner.scales,
        continual=continual,
    )


# What is asked for beyond this many times the memory is refused: estimates of a step are not better than that.
BEYOND = 1.5


def _refuse_what_cannot_fit(config: Config, geometry: Geometry, machine: Machine, plan: Plan) -> None:
    """Raises ConfigError, before anything is taken, where a run would end in the system killing it."""
    total = DeviceMemory(machine.device).total()
    if total is None:
        return
    training, element = config.training, machine.weight_dtype.itemsize
    matrices = (
        3 * geometry.width * geometry.heads * geometry.neurons + 2 * geometry.vocab_size * geometry.width
    )
    ahead = 1 + min(config.runtime.prefetch, plan.total_steps)
    carried = training.tbptt_persist_across_steps
    needs = {
        # weights, gradients, two moments
        "the weights (model.n_embd, latent_total, vocab_size)": 4 * matrices * element,
        "a step (training.batch_size, block_size, model.n_layer, vocab_size)": step_bytes_of(
            config, geometry, machine
        ),
        "the carried states (the rows of a step)": geometry.state_bytes(plan.global_rows, element)
        if carried
        else 0,
        # tokens and targets, and the arrays that they are made from
        "the batches (the rows of a step, runtime.prefetch)": ahead
        * plan.global_rows
        * training.block_size
        * 32,
    }
    if sum(needs.values()) > BEYOND * total:
        most = max(needs, key=lambda name: needs[name])
        raise ConfigError(
            f"this run needs about {sum(needs.values()) / 1e9:,.0f} GB of memory, and {total / 1e9:,.1f} GB are here; "
            f"most of it is for {most}: lower that"
        )


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


def _scales(config: Config, model: Model, total_steps: int) -> Scales:
    """The parts of the model that learn at a rate of their own, or not at all."""
    names = [name for name, _ in model.named_parameters()]
    training = config.training
    parts = module_scales(training.module_lr_scales, names, total_steps)
    return Scales([*parts, *backbone_scale(training.init_transfer, names)])


def _scaled(scales: Scales) -> tuple[Choice, ...]:
    if not scales:
        return ()
    return (
        Choice(
            "parts of the model",
            scales.describe(),
            "asked for in [training]",
        ),
    )


def vocabulary_of(config: Config, dataset: Dataset) -> int:
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
