"""Bundles: stage after stage, each a run of its own, from where an earlier one ended if it says so.

What has to be known to go on after a kill lies in two places: `bundle_state.json` says which stage was begun with which
configuration, and the run of that stage says how far it got. The name of a stage's run follows from the bundle, so a
run is found again wherever the process was killed: there is a whole one, which goes on, or none, which begins.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ..checkpoint import list_checkpoints, locate_checkpoint
from ..checkpoint.layout import parse_step
from ..config import Bundle, Config, Stage, cache_directory, with_overrides
from ..config.launching import LAUNCH_KEYS, to_go_on
from ..config.load import recorded_config
from ..config.toml import toml_value
from ..errors import CheckpointError, ConfigError, DataError, WyrmlingError
from ..files import make_folder
from ..runs import RunDirectory
from ..runs.bundle_state import FILE, BundleState, StageRecord, read_bundle_state
from ..runs.directory import locked
from ..runs.environment import RUN_DIR_VARIABLE, RUN_NAME_VARIABLE, given_run
from ..runs.records import TOKENIZER, listed
from ..text.sources import open_source, open_validation_source
from ..watch.events import Broadcaster, Callback, Message
from .launch import CHANGEABLE, INEXACT, differences, refuse_rewards, refuse_several_processes
from .machine import choose_device
from .run import Preparing, TrainResult, train, unseen
from .stopping import OnSignal, hand_on

# What may differ from the file after a stage has finished: what decided none of its weights and losses.
_HARMLESS = (
    "training.checkpoint_keep",
    "training.log_frequency",
    "training.sanity_validation",
    "training.sample_interval_iters",
    "training.sample_tokens",
    "dataset.cache_dir",
    "generation",
    "run_layout",
    "runtime.device",
    "runtime.threads",
    "runtime.activation_memory",
    "runtime.compile",
    "runtime.deterministic",
    "runtime.prefetch",
)
_ON_THIS_DISK = ("local_text", "jsonl", "csv", "parquet", "package_text", "pretokenized")


@dataclass(frozen=True)
class Planned:
    """What will be done with a stage: leave it as it is, let it go on, or begin it.

    Attributes:
        run: its directory: where a finished stage lies, wherever the file would put it now.
        step: at which a finished stage ended.
        gone: whether it had a run, of which no checkpoint is left.
    """

    stage: Stage
    action: Literal["finished", "go on", "begin"]
    run: Path
    step: int | None = None
    gone: bool = False


@dataclass
class BundleResult:
    """What came of a bundle.

    Attributes:
        runs: of the stages that are finished, in order.
        last: the result of the last stage that ran; None when there was nothing to do.
        exit_code: 0, or 129 / 130 / 143 when a signal stopped a stage.
    """

    runs: dict[str, RunDirectory] = field(default_factory=dict)
    last: TrainResult | None = None
    exit_code: int = 0


def plan_bundle(
    bundle: Bundle, *, allow_inexact: bool = False, allow_changed: bool = False, redo_missing: bool = False
) -> tuple[Planned, ...]:
    """What running a bundle would do, after checking everything that can be checked before the first step.

    Args:
        allow_inexact: as for `train`.
        allow_changed: leave finished stages as they are even where their configuration has changed since, or their
            run is gone.
        redo_missing: begin finished stages again whose run is gone. Stages that began with their weights stay.

    Raises:
        ConfigError, CheckpointError, DataError: one line that names the stage.
    """
    if given_run() is not None:
        raise ConfigError(
            f"{RUN_DIR_VARIABLE} and {RUN_NAME_VARIABLE} fix one run, and a bundle has several: unset them"
        )
    state = read_bundle_state(bundle.folder) or BundleState(bundle.name)
    planned: dict[str, Planned] = {}
    for stage in bundle.stages:
        record = state.stage(stage.name)
        planned[stage.name] = _planned(bundle, stage, record, allow_inexact, allow_changed, redo_missing)
    for item in planned.values():
        if item.action != "finished":
            _check_beginning(bundle, item)
        if item.action == "begin" and item.stage.init_from is not None:
            lender = planned[item.stage.init_from]
            if lender.action == "finished" and lender.gone:
                raise CheckpointError(
                    f"{bundle.file}: stage {item.stage.name} begins from {lender.stage.name}, and no checkpoint is "
                    f"left in {lender.run}; put it back, or run that stage again with --redo-missing"
                )
            if lender.action == "finished":
                _lent_step(item.stage, lender.run)
    return tuple(planned.values())


def run_bundle(
    bundle: Bundle,
    *,
    callbacks: Iterable[Callback] = (),
    allow_inexact: bool = False,
    allow_changed: bool = False,
    redo_missing: bool = False,
    stop_after: str | None = None,
    preparing: Preparing = unseen,
    on_signal: OnSignal = "raise",
) -> BundleResult:
    """Run the stages of a bundle that are not finished yet.

    Args:
        callbacks: watch every stage in turn.
        stop_after: the stage after which to stop; None: the last one.
        allow_inexact, allow_changed, redo_missing: as for `plan_bundle`.
        preparing, on_signal: as for `train`.

    Raises:
        What `plan_bundle` raises, before anything is written; what `train` raises, with which the bundle stops.
    """
    names = [stage.name for stage in bundle.stages]
    if stop_after is not None and stop_after not in names:
        raise ConfigError(
            f"there is no stage {stop_after!r} in this bundle; its stages are {', '.join(names)}"
        )
    refuse_several_processes()
    rules = {"allow_inexact": allow_inexact, "allow_changed": allow_changed, "redo_missing": redo_missing}
    plan_bundle(bundle, **rules)
    make_folder(bundle.folder, "choose another folder for the runs")
    with locked(bundle.folder):
        plan = plan_bundle(bundle, **rules)
        state = read_bundle_state(bundle.folder) or BundleState(bundle.name)
        state.arrange(names)
        watchers = list(callbacks)
        result = BundleResult()
        for number, item in enumerate(plan, start=1):
            told = f"{bundle.name}, stage {number} of {len(plan)}: {described(item)}"
            Broadcaster(watchers).on_message(Message("info", "bundle", told))
            if item.action != "finished":
                lender = next((other.run for other in plan if other.stage.name == item.stage.init_from), None)
                result.last = _run_stage(bundle, item, lender, state, watchers, allow_inexact, preparing)
                result.exit_code = result.last.exit_code
                if result.exit_code or not result.last.finished:
                    break
            if item.action != "finished" or not item.gone:
                result.runs[item.stage.name] = RunDirectory(item.run, item.run.name)
            if item.stage.name == stop_after:
                break
    if on_signal == "raise":
        hand_on(result.exit_code)
    return result


def described(item: Planned) -> str:
    """A stage and what will be done with it, on one line."""
    stage, training = item.stage, item.stage.config.training
    if item.action == "finished":
        step = "" if item.step is None else f" at step {item.step}"
        return f"{stage.name} is finished{step}" + (", and its run is gone" if item.gone else "")
    length = f"{training.epochs} epochs" if training.epochs is not None else f"{training.max_iters} steps"
    if item.action == "go on":
        return f"{stage.name} goes on, {length} in all"
    if stage.init_from is not None:
        tokenizer = " and the tokenizer" if _lent_tokenizer(stage) else ""
        start = f"with the {stage.init_checkpoint} checkpoint{tokenizer} of {stage.init_from}"
    elif training.init_checkpoint_path is not None:
        start = f"with weights of {training.init_checkpoint_path}"
    else:
        start = "with new weights"
    again = "again, as its run is gone, " if item.gone else ""
    return f"{stage.name} begins {again}{start}, {length} of {training.batch_size} x {training.block_size} tokens"


def _planned(
    bundle: Bundle,
    stage: Stage,
    record: StageRecord,
    allow_inexact: bool,
    allow_changed: bool,
    redo_missing: bool,
) -> Planned:
    """What to do with a stage, after comparing it with what is recorded and what lies on the disk."""
    where = f"{bundle.file}: stage {stage.name}"
    place = stage.run.relative_to(bundle.folder).as_posix()
    if record.status == "completed":
        done = bundle.folder / (record.run or place)
        gone = not list_checkpoints(RunDirectory(done, done.name).checkpoints)
        if gone and redo_missing:
            if os.path.lexists(stage.run):
                raise CheckpointError(
                    f"{where} cannot be run again while {stage.run} is there, although without a checkpoint; move "
                    "it away"
                )
            return Planned(stage, "begin", stage.run, gone=True)
        if not allow_changed:
            _refuse_changed(where, stage, record, place)
            if gone:
                raise CheckpointError(
                    f"{where} is finished, and no checkpoint is left in {done}; put it back, run the stage again with "
                    "--redo-missing, or go on without it with --allow-changed"
                )
        return Planned(stage, "finished", done, record.step, gone)
    began = record.run is not None and (bundle.folder / record.run).exists()
    if began and record.run != place:
        raise ConfigError(
            f"{where} has begun in {bundle.folder / str(record.run)} and is now to lie in {stage.run}; put run_layout "
            "back, or remove the old folder to begin the stage anew"
        )
    if not stage.run.exists():
        return Planned(stage, "begin", stage.run, gone=record.status == "interrupted")
    if not began:
        raise CheckpointError(
            f"{where}: {stage.run} exists already, and {bundle.folder / FILE} does not know it; move it away, or run "
            "the bundle under another name"
        )
    before = RunDirectory(stage.run, stage.run.name).training_config()
    found = differences(before, stage.config, (*CHANGEABLE, *(INEXACT if allow_inexact else ())))
    found += _other_lender(stage, record)
    if found:
        raise ConfigError(
            f"{where} has begun with another configuration: {listed(found)}; put it back, or remove {stage.run} to "
            "begin the stage anew"
        )
    return Planned(stage, "go on", stage.run)


def _refuse_changed(where: str, stage: Stage, record: StageRecord, place: str) -> None:
    """Raises ConfigError when a finished stage is no longer what the file says."""
    lent = tuple(f"training.{key}" for key in LAUNCH_KEYS) if stage.init_from is not None else ()
    if _lent_tokenizer(stage):
        lent = (*lent, "dataset.tokenizer.vocab_path")
    before = recorded_config(record.config or {}, f"{FILE}, stage {stage.name}")
    found = differences(before, stage.config, (*_HARMLESS, *lent)) + _other_lender(stage, record)
    if record.run != place:
        found.append(f"run_layout: {record.run} -> {place}")
    if found:
        raise ConfigError(
            f"{where} is finished, and its configuration has changed since: {listed(found)}; put it back, keep the "
            "stage as it is with --allow-changed, or begin again under another name with --name"
        )


def _other_lender(stage: Stage, record: StageRecord) -> list[str]:
    """The difference between what a stage began from and what it says now, if there is one."""
    then = None if record.init is None else (record.init.get("stage"), record.init.get("checkpoint"))
    now = None if stage.init_from is None else (stage.init_from, stage.init_checkpoint)
    if then == now:
        return []
    texts = ["nothing" if pair is None else f"{pair[1]} of {pair[0]}" for pair in (then, now)]
    return [f"init_from: {texts[0]} -> {texts[1]}"]


def _check_beginning(bundle: Bundle, item: Planned) -> None:
    """Let what would stop a stage at its start show before the first stage runs, as far as that costs nothing.

    Raises:
        ConfigError, DataError: a text or a device that is not here, or a stage that cannot be trained on text.
    """
    stage = item.stage
    dataset, cache = stage.config.dataset, cache_directory(stage.config)
    try:
        refuse_rewards(stage.config)
        if item.action == "begin":
            choose_device(stage.config.runtime.device)
        if dataset.type in _ON_THIS_DISK:
            open_source(dataset, cache_dir=cache)
        if dataset.validation is not None and dataset.validation.type in _ON_THIS_DISK:
            open_validation_source(dataset, cache_dir=cache)
    except (ConfigError, DataError) as error:
        raise type(error)(f"{bundle.file}: stage {stage.name}: {error}") from error


def _lent_step(stage: Stage, lender: Path) -> int:
    """The step of the checkpoint that a stage begins with.

    Raises:
        CheckpointError: the lender has none (any more).
    """
    step = parse_step(locate_checkpoint(lender, stage.init_checkpoint).name)
    assert step is not None
    return step


def _lent_tokenizer(stage: Stage) -> bool:
    """Whether a stage takes the tokenizer of the run that lends it the weights."""
    lender = stage.config.training.init_checkpoint_path
    path = getattr(stage.config.dataset.tokenizer, "vocab_path", None)
    return stage.init_from is not None and lender is not None and path == lender / TOKENIZER


def _run_stage(
    bundle: Bundle,
    item: Planned,
    lender: Path | None,
    state: BundleState,
    watchers: list[Callback],
    allow_inexact: bool,
    preparing: Preparing,
) -> TrainResult:
    stage, record = item.stage, state.stage(item.stage.name)
    if item.action == "begin":
        config, init = _beginning(stage, lender)
    else:
        config, init = _continuation(stage), record.init
    record.begin(stage.run.relative_to(bundle.folder).as_posix(), stage.config.to_dict(), init)
    state.write(bundle.folder)
    try:
        result = train(
            config,
            callbacks=watchers,
            allow_inexact=allow_inexact,
            preparing=preparing,
            on_signal="return",
        )
    except Exception as error:
        record.end("failed", error=" ".join(str(error).split()) or type(error).__name__)
        with contextlib.suppress(WyrmlingError, OSError):  # the first error is the one to tell
            state.write(bundle.folder)
        raise
    record.end("completed" if result.finished else "interrupted", result.step)
    state.write(bundle.folder)
    return result


def _beginning(stage: Stage, lender: Path | None) -> tuple[Config, dict[str, Any] | None]:
    """The configuration of a new run, and what it begins from for the record."""
    if lender is None:
        return stage.config, None
    step = _lent_step(stage, lender)
    init = {"stage": stage.init_from, "checkpoint": stage.init_checkpoint, "step": step}
    places = [f"training.init_checkpoint_path={toml_value(lender.as_posix())}"]
    if _lent_tokenizer(stage):
        places.append(f"dataset.tokenizer.vocab_path={toml_value((lender / TOKENIZER).as_posix())}")
    return with_overrides(stage.config, [*places, f"training.init_checkpoint_step={step}"]), init


def _continuation(stage: Stage) -> Config:
    """The configuration of a run that goes on."""
    return with_overrides(stage.config, to_go_on(stage.run))
