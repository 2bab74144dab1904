"""Where a run starts from: nothing, itself, or another run's weights.

fresh                                a new run
resume_exact_run                     the run `training.resume_run_dir` goes on, bit for bit
resume_latest_checkpoint_if_present  `latest` goes on if there is one; refused when it is a run of another
                                     configuration
init_from_checkpoint                 a new run with the weights of `training.init_checkpoint_path`
fork                                 a new run that goes on from a checkpoint of `training.resume_run_dir` as that run
                                     would, but for a changed optimizer, schedule or length
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from ..checkpoint import (
    Checkpoint,
    checkpoint_path,
    locate_checkpoint,
    newest_good,
    read_checkpoint,
)
from ..checkpoint.manifest import MANIFEST
from ..config import Config
from ..config.launching import LAUNCH_KEYS
from ..config.load import recorded_config
from ..config.paths import run_folder, run_root
from ..config.schema.optimizer import Optimizer
from ..errors import CheckpointError, ConfigError
from ..runs import RunDirectory, find_run, newest_in
from ..runs.environment import given_run
from ..runs.records import changes, listed
from ..watch.events import Message

# How files are read may change: the text or the ids that come of it have to be the same as before.
READING = ("suffixes", "encoding", "max_decompressed_mb", "dtype", "byte_order", "header_bytes")


# What a resumed run may change: how long, how often, what is shown, where things lie. A changed path, delimiter or
# separator is harmless because the text's fingerprint is compared.
CHANGEABLE = (
    "training.max_iters",
    "training.epochs",
    "training.checkpoint_interval_iters",
    "training.checkpoint_keep",
    "training.log_frequency",
    "training.validation_interval_iters",
    "training.validation_batches",
    "training.sanity_validation",
    "training.sample_interval_iters",
    "training.sample_tokens",
    "training.early_stopping",
    "training.launch_mode",
    "training.resume_run_dir",
    "training.resume_checkpoint_step",
    "training.init_checkpoint_path",
    "training.init_checkpoint_step",
    "dataset.allow_shared_files",
    "dataset.cache_dir",
    "dataset.delimiter",
    "dataset.document_separator",
    "dataset.path",
    "dataset.local_dir",
    *(f"dataset{table}.{key}" for table in ("", ".validation") for key in READING),
    "dataset.validation.delimiter",
    "dataset.validation.path",
    "dataset.validation.local_dir",
    "dataset.tokenizer.vocab_path",
    "generation",
    "run_layout",
    "runtime.prefetch",
)


# What may change besides when bit-for-bit continuation is given up.
INEXACT = (
    "runtime.device",
    "runtime.dtype",
    "runtime.threads",
    "runtime.activation_memory",
    "runtime.compile",
)


# What a fork may change besides: how weights are changed from here on, but not the method, whose moments go on.
FORKABLE = tuple(f"optimizer.{key}" for key in Optimizer.model_fields if key != "name")


@dataclass(frozen=True)
class Launch:
    """What a run starts from.

    Attributes:
        run: the run that goes on; None for a new one.
        checkpoint: what it goes on from; None when it was stopped before its first checkpoint.
        forked: the run that a new one leaves at `checkpoint`.
        changed: `key: old -> new` for what a fork does otherwise than the run it leaves.
        initial: the checkpoint whose weights a new run starts with.
        interface: a second one, of `training.init_transfer`.
    """

    run: RunDirectory | None = None
    checkpoint: Checkpoint | None = None
    forked: RunDirectory | None = None
    changed: tuple[str, ...] = ()
    initial: Checkpoint | None = None
    interface: Checkpoint | None = None

    @property
    def source(self) -> RunDirectory | None:
        """The run whose data, choices and checkpoint go on, in its own folder or in a fork's."""
        return self.run or self.forked


def refuse_rewards(config: Config) -> None:
    """Raises ConfigError when a configuration asks for learning from rewards: a run on text has none."""
    if config.training.gdpo.enabled:
        raise ConfigError(
            "training.gdpo.enabled is true, but a run on text has no rewards to learn from: use "
            "wyrmling.training.gdpo in a program of your own (docs/gdpo.md), or set training.gdpo.enabled = false"
        )


# How the programs that start several processes tell each of them how many there are, and which it is: torchrun (and
# accelerate, deepspeed), mpirun of Open MPI, MPICH or Intel, and MVAPICH, horovodrun, srun. A batch script of Slurm
# has SLURM_NTASKS, but is one process; SLURM_STEP_NUM_TASKS is set for the processes of a step alone.
_COUNTS = (
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "OMPI_COMM_WORLD_SIZE",
    "PMI_SIZE",
    "MV2_COMM_WORLD_SIZE",
    "HOROVOD_SIZE",
    "SLURM_STEP_NUM_TASKS",
)
_RANKS = (
    "RANK",
    "LOCAL_RANK",
    "OMPI_COMM_WORLD_RANK",
    "PMI_RANK",
    "PMIX_RANK",
    "MV2_COMM_WORLD_RANK",
    "HOROVOD_RANK",
    "SLURM_PROCID",
)


def refuse_several_processes() -> None:
    """Raises ConfigError when this process is announced as one of several: each would train the same run alone."""
    announced = []
    for name in (*_COUNTS, *_RANKS):
        text = os.environ.get(name, "").strip()
        try:
            number = int(text or 0)
        except ValueError:
            raise ConfigError(
                f"{name} is {text[:40]!r}, which is not a number of processes: unset it"
            ) from None
        if number > (name in _COUNTS):
            announced.append(f"{name}={number}")
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        size = torch.distributed.get_world_size()
        announced += [f"a process group of {size}"] * (size > 1)
    if announced:
        raise ConfigError(
            f"this process is announced as one of several ({', '.join(announced)}), and a run is trained by one "
            "process: start it without torchrun, srun or mpirun, or unset these variables"
        )


def resumed_run(config: Config, tell: Callable[[Message], None]) -> RunDirectory | None:
    """The run that goes on; None when a new one begins.

    `resume_latest_checkpoint_if_present` means the run that the environment or `run_layout.name` names, where it
    exists, else the newest in the folder of `run_layout`; one that was stopped before its first checkpoint too.

    Raises:
        CheckpointError: there is no such run.
        ConfigError: the mode's key is missing.
    """
    training = config.training
    if training.launch_mode == "resume_exact_run":
        if training.resume_run_dir is None:
            raise ConfigError("training.launch_mode = resume_exact_run requires training.resume_run_dir")
        return find_run(str(training.resume_run_dir), run_root(config))
    if training.launch_mode != "resume_latest_checkpoint_if_present":
        return None
    given = given_run()
    if given is not None:
        found: RunDirectory | None = RunDirectory(*given)
    elif config.run_layout.name is not None:
        found = RunDirectory(run_folder(config) / config.run_layout.name, config.run_layout.name)
    else:
        found = newest_in(run_folder(config))
    if found is None or not found.config_json.is_file():
        tell(Message("info", "launch", "no earlier run: starting a new one"))
        return None
    return found


def resolve_launch(
    config: Config, run: RunDirectory | None, tell: Callable[[Message], None], *, allow_inexact: bool = False
) -> Launch:
    """Read what the launch mode asks for: the run's newest good checkpoint, or the weights to begin with.

    Raises:
        CheckpointError: nothing there, damaged, or a run of another configuration.
        ConfigError: the mode's key is missing.
    """
    training = config.training
    if run is not None:
        refuse_differences(run.training_config(), config, run.name, INEXACT if allow_inexact else ())
        return Launch(run=run, checkpoint=_read(run, training.resume_checkpoint_step, tell))
    if training.launch_mode == "fork":
        return _fork(config, tell, INEXACT if allow_inexact else ())
    if training.init_checkpoint_path is not None:
        root = run_root(config)
        initial = _initial(training.init_checkpoint_path, training.init_checkpoint_step, root, tell)
        second = training.init_transfer
        if second.interface_checkpoint_path is None:
            return Launch(initial=initial)
        interface = _initial(second.interface_checkpoint_path, second.interface_checkpoint_step, root, tell)
        return Launch(initial=initial, interface=interface)
    if training.launch_mode == "init_from_checkpoint":
        raise ConfigError(
            "training.launch_mode = init_from_checkpoint requires training.init_checkpoint_path"
        )
    return Launch()


def _fork(config: Config, tell: Callable[[Message], None], also: tuple[str, ...]) -> Launch:
    """The run that a new one leaves, at the checkpoint that was named or the newest good one."""
    training = config.training
    if training.resume_run_dir is None:
        raise ConfigError("training.launch_mode = fork requires training.resume_run_dir")
    source = find_run(str(training.resume_run_dir), run_root(config))
    before = source.training_config()
    refuse_differences(before, config, source.name, (*FORKABLE, *also))
    checkpoint = _read(source, training.resume_checkpoint_step, tell)
    if checkpoint is None:
        raise CheckpointError(
            f"{source.name} has no checkpoint yet, nothing to fork; start a new run instead"
        )
    told = ("training.max_iters", "training.epochs")
    unseen = tuple(key for key in CHANGEABLE if key not in told)
    changed = tuple(differences(before, config, unseen))
    what = "; ".join(changed) or "nothing is changed"
    tell(Message("info", "fork", f"from {source.name} at step {checkpoint.step}: {what}"))
    return Launch(checkpoint=checkpoint, forked=source, changed=changed)


def with_own_launch(config: Config, recorded: Config) -> Config:
    """`config` with the launch keys of `recorded`: how a run was resumed is no part of what it is."""
    own = {key: getattr(recorded.training, key) for key in LAUNCH_KEYS}
    return config.model_copy(update={"training": config.training.model_copy(update=own)})


def _initial(path: Path, step: int | None, root: Path, tell: Callable[[Message], None]) -> Checkpoint:
    """The weights to start with: the checkpoint that was named, or the newest good one of a run, by place or name."""
    if not path.exists():
        path = find_run(path, root).path
    found = locate_checkpoint(path, step)
    if step is None and found != path:
        checkpoint = newest_good(found.parent, _teller(tell), ["model"])
        if checkpoint is not None:
            return checkpoint
    return read_checkpoint(found, ["model"])


def _teller(tell: Callable[[Message], None]) -> Callable[[Path, str], None]:
    def damaged(path: Path, reason: str) -> None:
        tell(Message("warning", "checkpoint", f"{path.name} is passed over: {reason}"))

    return damaged


def _read(run: RunDirectory, step: int | None, tell: Callable[[Message], None]) -> Checkpoint | None:
    if step is not None:
        checkpoint: Checkpoint | None = read_checkpoint(checkpoint_path(run.checkpoints, step))
    else:
        checkpoint = newest_good(run.checkpoints, _teller(tell))
    if checkpoint is not None:
        refuse_other_surroundings(run, checkpoint)
    elif run.training_config().training.init_checkpoint_path is not None or "forked_from" in run.record():
        raise CheckpointError(
            f"{run.name} began with weights of another run, and no checkpoint is left of them or of what came of them; "
            "start a new run"
        )
    else:
        tell(
            Message(
                "info",
                "launch",
                f"{run.name} was stopped before its first checkpoint: starting it from step 0",
            )
        )
    return checkpoint


def differences(old: Config, new: Config, allowed: tuple[str, ...] = CHANGEABLE) -> list[str]:
    """`key: old -> new` for every key in which two configurations differ, but for those (and those below) allowed.

    What only Mamba memories read makes no difference where neither has one.
    """
    if not any(c.effective_model.sequence_kernel.memory_system.startswith("mamba") for c in (old, new)):
        allowed = (*allowed, "model.mamba", "optimizer.decay_convolutions")
    return changes(old.to_dict(), new.to_dict(), allowed)


def refuse_differences(old: Config, new: Config, name: str, also: tuple[str, ...] = ()) -> None:
    """Raises CheckpointError when a resumed run would be another run."""
    allowed = (*CHANGEABLE, *also)
    found = differences(old, new, allowed)
    if not found:
        return
    if differences(old, new, (*allowed, *FORKABLE)):
        remedy = "start a new run, or take its weights with training.launch_mode = init_from_checkpoint"
    else:
        remedy = f"a new run can, from its checkpoints: wyrmling train --fork {name} with the same --set"
    raise CheckpointError(f"{name} cannot go on with another configuration: {listed(found)}; {remedy}")


def refuse_other_surroundings(run: RunDirectory, checkpoint: Checkpoint) -> None:
    """Raises CheckpointError when a checkpoint was saved under another configuration, tokenizer or text.

    What a resumed run may change is not compared: the program itself writes it before the next checkpoint is saved.
    """
    saved = checkpoint.run
    if saved is None:  # by an earlier version
        return
    now, recorded = run.training_config(), run.record()["data"]
    manifest = checkpoint.path / MANIFEST
    then = recorded_config({**now.to_dict(), **saved.config}, str(manifest))
    found = differences(then, now, (*CHANGEABLE, *INEXACT))
    if found:
        where = (
            f"{run.training_config_path} is not the configuration of {checkpoint.path.name}: {listed(found)}"
        )
    elif recorded["tokenizer_fingerprint"] != saved.tokenizer:
        where = f"{run.config_json} names another tokenizer than {manifest}"
    elif recorded["fingerprint"] != saved.data:
        where = f"{run.config_json} names another text than {manifest}"
    else:
        return
    raise CheckpointError(
        f"{where}; put back the file as the run wrote it, or the checkpoint that belongs to it"
    )
