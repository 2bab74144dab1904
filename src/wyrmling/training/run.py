"""From a configuration to a finished run, and from a run back to a model."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..checkpoint import clean, save_checkpoint, set_aside_newer, write_pointer
from ..checkpoint.contents import load_model_tensors, load_optimizer_tensors
from ..checkpoint.transfer import Transfer, TransferReport
from ..config import Config, load_config
from ..data.dataset import Dataset, prepare_dataset
from ..errors import CheckpointError, ConfigError
from ..files import remove_leftovers, write_json_atomically
from ..model import Model
from ..numerics.settings import own_settings
from ..optim import describe_length
from ..runs import RunDirectory, build_run_record, create_run, refuse_taken
from ..text.tokenizers import Tokenizer
from ..watch.events import Broadcaster, Callback, Control, Message, RunStarted
from ..watch.jsonl import EventLog
from .autotune import REPORT, tune
from .borrowing import PRE_STEP, TRANSFER, plan_borrowing, pre_step_record
from .evaluation import Evaluation
from .fingerprints import fingerprint_lines
from .launch import (
    Launch,
    refuse_rewards,
    refuse_several_processes,
    resolve_launch,
    resumed_run,
    with_own_launch,
)
from .loading import naming, own_tokenizer
from .loop import LoopEnd, TrainingLoop
from .profiling import PROFILE, Mode, RunProfile
from .progress import EARLY, FINISHED, Progress
from .resuming import Told, mend_pointers, rewrite_choices, stored_choices
from .session import CONTINUAL, STREAMS, Parts, Session, build_parts
from .stopping import OnSignal, hand_on, stop_on_signals
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
        exit_code: 0, or 129 / 130 / 143 after SIGHUP / SIGINT / SIGTERM.
        model, tokenizer: ready for use.
        finished: whether nothing is left to do: the last step or early stopping, now or earlier.
        profile: the profile that was written; None where none was asked for.
    """

    run: RunDirectory
    step: int
    reason: str
    loss: float | None
    validation_loss: float | None
    exit_code: int
    model: Model
    tokenizer: Tokenizer
    finished: bool = False
    profile: Path | None = None


Progressing = Callable[[int, int | None], None]
Preparing = Callable[[str], contextlib.AbstractContextManager[Progressing]]


@contextlib.contextmanager
def unseen(title: str) -> Iterator[Progressing]:
    yield lambda done, total: None


def train(
    config: Config | None = None,
    *,
    dataset: Dataset | None = None,
    callbacks: Iterable[Callback] = (),
    allow_inexact: bool = False,
    preparing: Preparing = unseen,
    profile: Mode | None = None,
    on_signal: OnSignal = "raise",
) -> TrainResult:
    """Train, or go on training, as a configuration says.

    Args:
        config: None is the default recipe.
        dataset: data of the caller's own; None prepares what the configuration names.
        callbacks: watchers; the record in `events.jsonl` is always kept.
        allow_inexact: let a resumed run go on where bit-for-bit continuation is not possible.
        preparing: a context manager of a title that yields `progress(bytes read, bytes in all or None)`; shows
            how the text is read.
        profile: measure where time and memory go, and write `profile.json` and `trace.json` into the run; "detail"
            times the parts of a step too.
        on_signal: what becomes of a signal (Ctrl-C) that ends the run, once its checkpoint is written: "raise" hands
            it to the program, so that a loop over runs ends too; "return" only names it in the result.
    Raises:
        KeyboardInterrupt: Ctrl-C, after the checkpoint; at once where it comes twice.
        SystemExit: SIGTERM or SIGHUP, after the checkpoint, where the program has no handler of its own.
        ConfigError, DataError, CheckpointError: the caller's mistakes, before anything is written; a process that is
            announced as one of several.
        DivergedError, StorageError: what can go wrong on the way; the last good checkpoint stays.
    """
    config = config or load_config()
    refuse_several_processes()
    refuse_rewards(config)
    told = Told(callbacks)
    with contextlib.ExitStack() as held:
        held.enter_context(own_settings())
        run = resumed_run(config, told.on_message)
        if run is not None:
            held.enter_context(run.lock())  # before anything of it is read: nobody else may move it meanwhile
            remove_leftovers(run.path)  # of a write that was killed
        else:
            refuse_taken(config)  # before text is read and micro-batches are tried
        launch = resolve_launch(config, run, told.on_message, allow_inexact=allow_inexact)
        parts, transfer = _parts(config, launch, dataset, allow_inexact, preparing, told)
        held.enter_context(parts.machine.settings())
        report = _borrow(parts, transfer, told)
        progress = _load_weights(parts, launch)
        if launch.forked is not None:
            progress = _forked(progress, parts, launch.forked)
        if run is not None:
            mend_pointers(run, progress, told.on_message)
            finished = _already_finished(parts, run, progress)
            if finished is not None:
                told.on_message(Message("info", "launch", finished.reason))
                return finished
        else:
            run = create_run(config, lambda folder: _fill(parts.session(folder), report, progress, launch))
            held.enter_context(run.lock())
        result = _run(parts.session(run), launch, progress, told, allow_inexact, profile, on_signal)
    if on_signal == "raise":
        hand_on(result.exit_code)
    return result


def _parts(
    config: Config,
    launch: Launch,
    dataset: Dataset | None,
    allow_inexact: bool,
    preparing: Preparing,
    told: Told,
) -> tuple[Parts, Transfer | None]:
    """Data, model and optimizer, checked against what the run goes on from or begins with."""
    source = launch.source
    tokenizer = own_tokenizer(source) if source is not None else None
    if dataset is None:
        with preparing("reading the text") as advance:
            dataset = prepare_dataset(
                config,
                progress=advance,
                tokenizer=tokenizer,
                tell=lambda line: told.on_message(Message("info", "text", line)),
            )
    dataset.check(config.training.block_size)
    for note in dataset.notes:
        told.on_message(Message("info", "text", note))
    transfer = plan_borrowing(launch, config, dataset.tokenizer)
    stored = None
    if source is not None:
        stored = stored_choices(source, config, dataset, allow_inexact, told.on_message)
    tuned = tune(config, dataset, stored, told.on_message)
    parts = build_parts(tuned.config, dataset, tuned.stored)
    return tuned.finish(parts, config), transfer


def _run(
    session: Session,
    launch: Launch,
    progress: Progress,
    told: Told,
    allow_inexact: bool,
    profile: Mode | None,
    on_signal: OnSignal,
) -> TrainResult:
    run, control = session.run, Control()
    clean(run.checkpoints)
    if launch.run is not None:
        for step in set_aside_newer(run.checkpoints, progress.step):
            told.on_message(
                Message("info", "checkpoint", f"step {step} is set aside: the run goes on earlier")
            )
        mend_pointers(run, progress, told.on_message)
        if allow_inexact:  # first: killed between the two, the next resume chooses anew what --set says anew
            rewrite_choices(run, session.choices, versions())
        run.write_training_config(with_own_launch(session.configured, run.training_config()))
    log = EventLog(run.events_path)
    if log.lost:
        text = f"the last {log.lost} lines of {run.events_path} were no events and were cut off"
        told.on_message(Message("warning", "events", text))
    told.replay(log)
    reports = Broadcaster([log, *told.callbacks])
    log.tell = reports.on_message

    def begin() -> None:
        for choice in session.choices:
            reports.on_message(Message("info", f"choice.{choice.name}", f"{choice.value} ({choice.reason})"))
        previous = None if launch.checkpoint is None else launch.checkpoint.progress.get("total_steps")
        length = describe_length(session.config.optimizer, session.total_steps, previous)
        reports.on_message(Message("info", "schedule", length))
        sample = session.validation_sample()
        if sample is not None:
            reports.on_message(Message("info", "validation", sample))
        reports.on_start(_started(session, progress, launch, control))

    def borrowed(measured: Evaluation) -> None:
        record = pre_step_record(run.path, session.config.training.init_transfer, measured)
        write_json_atomically(run.path / PRE_STEP, record)
        worth = f"the borrowed weights cost {measured.loss:.4f} nats per token before the first step"
        reports.on_message(Message("info", "pre-step validation", worth))

    unmeasured = (run.path / TRANSFER).exists() and not (run.path / PRE_STEP).exists()

    with stop_on_signals(control, on_signal) as interrupt:
        measured = None if profile is None else RunProfile(session, progress.step + 1, profile)
        loop = TrainingLoop(session, progress, reports, control, measured)
        end = loop.run(begin, borrowed if unmeasured else None)
    result = _result(session, end, interrupt.exit_code)
    return result if measured is None else replace(result, profile=run.path / PROFILE)


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
        finished=end.reason in (FINISHED, EARLY),
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
        fingerprint=fingerprint_lines(session),
        resumed=launch.run is not None,
    )


def _borrow(parts: Parts, transfer: Transfer | None, told: Told) -> TransferReport | None:
    """Put borrowed weights into the model, and say what became of each."""
    if transfer is None:
        return None
    report = transfer.load(parts.model)
    for line in report.lines():
        told.on_message(Message("info", "transfer", line))
    return report


def _load_weights(parts: Parts, launch: Launch) -> Progress:
    """Put the checkpoint's weights and moments where they belong; where the run stands."""
    checkpoint = launch.checkpoint
    if checkpoint is None:
        return Progress()
    needed = {"model": "weights", "optimizer": "optimizer state"}
    if parts.streams is not None:
        needed[STREAMS] = "carried states"
    for part, what in needed.items():
        if part not in checkpoint.parts or (checkpoint.step and not checkpoint.parts[part]):
            raise CheckpointError(
                f"{checkpoint.path} has no {what}, so the run cannot go on exactly; resume from another checkpoint, or "
                "start a new run from weights with training.launch_mode = init_from_checkpoint"
            )
    progress = Progress.of(checkpoint)
    with naming(checkpoint):
        load_model_tensors(parts.model, checkpoint.parts["model"])
        load_optimizer_tensors(parts.optimizer, parts.model, checkpoint.parts["optimizer"])
        if parts.streams is not None:
            parts.streams.load(checkpoint.parts[STREAMS], parts.model, parts.machine.weight_dtype)
        if parts.continual is not None:
            parts.continual.load(checkpoint.parts.get(CONTINUAL, {}))
    return progress


def _already_finished(parts: Parts, run: RunDirectory, progress: Progress) -> TrainResult | None:
    """The result of a run that has nothing left to do; None when there is."""
    total, step = parts.plan.total_steps, progress.step
    if progress.validation_due:
        return None
    if step >= total:
        reason = (
            f"{run.name} is finished: {step} of {total} steps are done; to train longer, raise training.max_iters or "
            "training.epochs with --set"
        )
    elif progress.best.exhausted(parts.config.training.early_stopping):
        reason = (
            f"{run.name} is finished: early stopping ended it at step {step}; to train longer, raise "
            "training.early_stopping.patience with --set, or unset training.early_stopping"
        )
    else:
        return None
    loss, validation = progress.loss, progress.validation_loss
    tokenizer = parts.dataset.tokenizer
    return TrainResult(run, step, reason, loss, validation, 0, parts.model, tokenizer, finished=True)


def _forked(progress: Progress, parts: Parts, source: RunDirectory) -> Progress:
    """Where a fork begins: where the run that it leaves stood, with validations to be judged anew.

    Raises:
        ConfigError: no step is left to do.
    """
    if progress.step >= parts.plan.total_steps:
        raise ConfigError(
            f"{source.name} is at step {progress.step} of {parts.plan.total_steps}: a fork has nothing to do; raise "
            "training.max_iters or training.epochs, or name an earlier training.resume_checkpoint_step"
        )
    fresh = Progress()
    return replace(
        progress,
        best=fresh.best,
        validation_loss=None,
        validation_step=None,
        validation_due=False,
        reason=None,
    )


def _fill(session: Session, report: TransferReport | None, progress: Progress, launch: Launch) -> None:
    """What a new run has from its first instant: its records, and what it took from another run."""
    _write_records(session, launch)
    if report is not None:
        write_json_atomically(session.run.path / TRANSFER, report.to_json())
    if report is not None or launch.forked is not None:
        start, root = progress.to_json(session.total_steps), session.run.checkpoints
        save_checkpoint(root, progress.step, session.tensors(), start, session.surroundings)
        write_pointer(root, "latest", progress.step)


def _write_records(session: Session, launch: Launch) -> None:
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
        kernel_override=session.kernel_override,
    )
    if launch.forked is not None and launch.checkpoint is not None:
        record["forked_from"] = {
            "run": launch.forked.name,
            "path": launch.forked.path.resolve().as_posix(),
            "step": launch.checkpoint.step,
            "changed": list(launch.changed),
        }
    if session.autotune is not None:
        record["startup_autotune"] = session.autotune
        write_json_atomically(session.run.path / REPORT, session.autotune)
    session.run.write_records(session.configured, dataset.tokenizer, record)
