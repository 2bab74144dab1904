"""From a configuration to a finished run, and from a run back to a model."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from ..checkpoint import Checkpoint, clean, set_aside_newer
from ..checkpoint.contents import load_model_tensors, load_optimizer_tensors
from ..config import Config, load_config
from ..data.dataset import Dataset, prepare_dataset
from ..errors import CheckpointError
from ..files import write_json_atomically
from ..model import Model
from ..optim import describe_length
from ..runs import RunDirectory, build_run_record, create_run, find_run
from ..text.tokenizers import Tokenizer, differences
from ..watch.events import Broadcaster, Callback, Control, Message, RunStarted
from ..watch.jsonl import EventLog
from .evaluation import validate
from .launch import Launch, resolve_launch
from .loading import own_tokenizer
from .loop import LoopEnd, Progress, TrainingLoop
from .session import Parts, Session, build_parts
from .stopping import stop_on_signals
from .versions import versions


@dataclass(frozen=True)
class TrainResult:
    """What came of a run.

    Attributes:
        run: its directory.
        step: optimizer steps done in all.
        reason: "finished", "early stopping", or who stopped it.
        loss: training loss of the last logged steps, nats per token; None when nothing ran.
        validation_loss: of the last validation; None without one.
        exit_code: 0, or 130 / 143 after SIGINT / SIGTERM.
        model, tokenizer: ready for use.
    """

    run: RunDirectory
    step: int
    reason: str
    loss: float | None
    validation_loss: float | None
    exit_code: int
    model: Model
    tokenizer: Tokenizer


Progressing = Callable[[int, int | None], None]
Preparing = Callable[[str], contextlib.AbstractContextManager[Progressing]]


@contextlib.contextmanager
def _unseen(title: str) -> Iterator[Progressing]:
    yield lambda done, total: None


def train(
    config: Config | None = None,
    *,
    dataset: Dataset | None = None,
    callbacks: Iterable[Callback] = (),
    allow_inexact: bool = False,
    preparing: Preparing = _unseen,
) -> TrainResult:
    """Train, or go on training, as a configuration says.

    Args:
        config: None is the default recipe.
        dataset: data of the caller's own; None prepares what the configuration names.
        callbacks: watchers; the record in `events.jsonl` is always kept.
        allow_inexact: let a resumed run go on where bit-for-bit continuation is not possible.
        preparing: a context manager of a title that yields `progress(bytes read, bytes in all or None)`; shows
            how the text is read.
    Raises:
        ConfigError, DataError, CheckpointError: the caller's mistakes, before anything is written.
        DivergedError, StorageError: what can go wrong on the way; the last good checkpoint stays.
    """
    config = config or load_config()
    control, watchers = Control(), list(callbacks)
    early = Broadcaster(watchers)
    launch = resolve_launch(config, early.on_message)
    tokenizer = own_tokenizer(launch.run) if launch.run is not None else None
    if dataset is None:
        with preparing("reading the text") as advance:
            dataset = prepare_dataset(config, progress=advance, tokenizer=tokenizer)
    dataset.check(config.training.block_size)
    for note in dataset.notes:
        early.on_message(Message("info", "text", note))
    if launch.initial is not None:
        _refuse_other_vocabulary(launch.initial, dataset.tokenizer)
    stored = _stored_choices(launch.run, dataset, allow_inexact, early) if launch.run is not None else None
    parts = build_parts(config, dataset, stored)
    state = _load_weights(parts, launch)
    finished = _already_finished(parts, launch, state)
    if finished is not None:
        early.on_message(Message("info", "launch", finished.reason))
        return finished
    run = launch.run or create_run(config, lambda directory: _write_records(parts.session(directory)))
    with run.lock():
        return _run(parts.session(run), launch, state, watchers, control)


def _run(
    session: Session, launch: Launch, progress: Progress, watchers: list[Callback], control: Control
) -> TrainResult:
    run = session.run
    clean(run.checkpoints)
    if launch.run is not None:
        for step in set_aside_newer(run.checkpoints, progress.step):
            Broadcaster(watchers).on_message(
                Message("info", "checkpoint", f"step {step} is set aside: the run goes on earlier")
            )
        run.write_training_config(session.config)
    reports = Broadcaster([EventLog(run.events_path), *watchers])
    with stop_on_signals(control) as interrupt:
        for choice in session.choices:
            reports.on_message(Message("info", f"choice.{choice.name}", f"{choice.value} ({choice.reason})"))
        previous = None if launch.checkpoint is None else launch.checkpoint.progress.get("total_steps")
        length = describe_length(session.config.optimizer, session.total_steps, previous)
        reports.on_message(Message("info", "schedule", length))
        reports.on_start(_started(session, progress, launch, control))
        if launch.initial is not None:
            _write_pre_step_validation(session, launch.initial)
        end = TrainingLoop(session, progress, reports, control).run()
    return _result(session, end, interrupt.exit_code)


def _result(session: Session, end: LoopEnd, exit_code: int) -> TrainResult:
    return TrainResult(
        run=session.run,
        step=end.step,
        reason=end.reason,
        loss=end.loss,
        validation_loss=None if end.validation is None else end.validation.loss,
        exit_code=exit_code,
        model=session.model,
        tokenizer=session.tokenizer,
    )


def _started(session: Session, progress: Progress, launch: Launch, control: Control) -> RunStarted:
    return RunStarted(
        name=session.run.name,
        path=session.run.path,
        step=progress.step,
        total_steps=session.total_steps,
        parameters=session.model.parameter_count(),
        control=control,
        state_bytes=session.state_bytes(),
        step_bytes=session.step_bytes(),
        fingerprint=session.fingerprint_lines(),
        resumed=launch.run is not None,
    )


def _load_weights(parts: Parts, launch: Launch) -> Progress:
    """Put the checkpoint's weights and moments where they belong; where the run stands."""
    if launch.initial is not None:
        load_model_tensors(parts.model, launch.initial.parts["model"], cast=True)
    if launch.checkpoint is None:
        return Progress()
    load_model_tensors(parts.model, launch.checkpoint.parts["model"])
    if "optimizer" not in launch.checkpoint.parts:
        raise CheckpointError(
            f"{launch.checkpoint.path} has no optimizer state, so the run cannot go on exactly; start a new run "
            "from its weights with training.launch_mode = init_from_checkpoint"
        )
    load_optimizer_tensors(parts.optimizer, parts.model, launch.checkpoint.parts["optimizer"])
    return Progress.from_json(launch.checkpoint.progress)


def _already_finished(parts: Parts, launch: Launch, progress: Progress) -> TrainResult | None:
    """The result of a run that has nothing left to do; None when there is."""
    if launch.run is None or progress.step < parts.plan.total_steps:
        return None
    reason = (
        f"{launch.run.name} is finished: {progress.step} of {parts.plan.total_steps} steps are done; to train longer, "
        "raise training.max_iters or training.epochs with --set"
    )
    return TrainResult(
        launch.run,
        progress.step,
        reason,
        progress.loss,
        progress.validation_loss,
        0,
        parts.model,
        parts.dataset.tokenizer,
    )


def _stored_choices(
    run: RunDirectory, dataset: Dataset, allow_inexact: bool, reports: Broadcaster
) -> dict[str, str] | None:
    """The recorded choices of a run that goes on, after checking that data and software are the recorded ones.

    Raises:
        CheckpointError: other text or another tokenizer (always); another torch (unless inexact is allowed).
    """
    record = run.record()
    if not record["data"]["fingerprint"]:
        raise CheckpointError(
            f"{run.name} was imported, not trained: it has nothing to go on with; start a new run from its weights "
            "with training.launch_mode = init_from_checkpoint"
        )
    different = differences(own_tokenizer(run), dataset.tokenizer)
    if different is not None:
        raise CheckpointError(f"{run.name} was trained with another tokenizer: {different}")
    if record["data"]["fingerprint"] != dataset.fingerprint:
        raise CheckpointError(
            f"{run.name} was trained on another text: the fingerprint is {dataset.fingerprint[:12]}, it was "
            f"{record['data']['fingerprint'][:12]}; put the old text back, or start a new run"
        )
    old, new = record["versions"]["torch"], versions()["torch"]
    if old != new:
        text = (
            f"{run.name} was trained with torch {old}, this is {new}: its numbers may differ in the last bits"
        )
        if not allow_inexact:
            raise CheckpointError(f"{text}; pass --allow-inexact to go on all the same")
        reports.on_message(Message("warning", "inexact", text))
    choices = {choice["name"]: choice["value"] for choice in record["choices"]}
    return None if allow_inexact else choices


def _refuse_other_vocabulary(initial: Checkpoint, tokenizer: Tokenizer) -> None:
    """Raises CheckpointError when borrowed weights were trained with another tokenizer than the new run's."""
    lender = find_run(initial.path)
    different = differences(own_tokenizer(lender), tokenizer)
    if different is not None:
        raise CheckpointError(
            f"the weights of {lender.name} belong to another tokenizer: {different}; use its own, with "
            f"dataset.tokenizer.vocab_path or the same [dataset.tokenizer]"
        )


def _write_records(session: Session) -> None:
    model, dataset = session.model, session.dataset
    model_facts: dict[str, Any] = {
        "parameters": model.parameter_count(),
        "vocab_size": model.geometry.vocab_size,
        "layer_neurons": list(model.geometry.layer_neurons),
        "state_bytes": session.state_bytes(),
        "step_bytes": session.step_bytes(),
    }
    data_facts: dict[str, Any] = {
        "fingerprint": dataset.fingerprint,
        "tokenizer": dataset.tokenizer.kind,
        "tokenizer_fingerprint": dataset.tokenizer.fingerprint(),
        "train_tokens": len(dataset.train),
        "validation_tokens": 0 if dataset.validation is None else len(dataset.validation),
        "steps_per_epoch": session.plan.steps_per_epoch,
        "total_steps": session.total_steps,
    }
    record = build_run_record(
        config=session.config,
        name=session.run.name,
        model_facts=model_facts,
        data_facts=data_facts,
        choices=list(session.choices),
        versions=versions(),
    )
    session.run.write_records(session.config, dataset.tokenizer, record)


def _write_pre_step_validation(session: Session, initial: Checkpoint) -> None:
    """What the borrowed weights are worth before the first step."""
    if session.dataset.validation is None:
        return
    training = session.config.training
    measured = validate(
        session.model,
        session.dataset.validation,
        session.tokenizer,
        session.machine,
        block_size=training.block_size,
        rows=training.batch_size,
        batches=training.validation_batches,
        seed=training.seed,
    )
    record = {
        "split": "val",
        "mean_loss": measured.loss,
        "tokens": measured.targets,
        "init_checkpoint_path": str(initial.path),
        "init_checkpoint_step": initial.step,
    }
    write_json_atomically(session.run.path / "pre_step_validation.json", record)
