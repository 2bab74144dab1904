"""From a run back to a model, ready for evaluation and generation."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..checkpoint import Checkpoint, locate_checkpoint, read_checkpoint
from ..checkpoint.contents import load_model_tensors
from ..config import Config
from ..errors import CheckpointError
from ..model import Model
from ..runs import RunDirectory, find_run
from ..text.tokenizers import Tokenizer, load_tokenizer
from .autotune import as_recorded
from .launch import refuse_other_surroundings
from .machine import Machine, machine_for_reading


def own_tokenizer(run: RunDirectory) -> Tokenizer:
    """The tokenizer that a run was trained with.

    Raises:
        CheckpointError: the file holds another one; as many tokens in another order would fail nowhere else.
    """
    tokenizer = load_tokenizer(run.tokenizer_path)
    if tokenizer.fingerprint() != run.record()["data"]["tokenizer_fingerprint"]:
        raise CheckpointError(
            f"{run.tokenizer_path} is not the tokenizer that {run.name} was trained with; put the run's own file back"
        )
    return tokenizer


@contextlib.contextmanager
def naming(checkpoint: Checkpoint) -> Iterator[None]:
    """Let what is wrong with a checkpoint's tensors name the checkpoint."""
    try:
        yield
    except CheckpointError as error:
        raise CheckpointError(f"{checkpoint.path}: {error}") from error


@dataclass(frozen=True)
class LoadedRun:
    """A run's model, ready for evaluation and generation.

    `config` is the run's own, with the rows of a micro-batch that were found for it.
    """

    model: Model
    tokenizer: Tokenizer
    config: Config
    machine: Machine
    step: int
    path: Path
    run: RunDirectory


_TRIES = 5


def _read(directory: RunDirectory, checkpoint: int | Literal["latest", "best"]) -> Checkpoint:
    """The checkpoint that is meant; looked for again where the run that is training took it away meanwhile."""
    for _ in range(_TRIES):
        place = locate_checkpoint(directory.checkpoints, checkpoint)
        try:
            return read_checkpoint(place, ["model"])
        except CheckpointError:
            if place.exists():
                raise
    return read_checkpoint(locate_checkpoint(directory.checkpoints, checkpoint), ["model"])


def load_run(
    run: str | Path = "latest",
    *,
    checkpoint: int | Literal["latest", "best"] = "latest",
    root: Path | None = None,
) -> LoadedRun:
    """Load the model of a run.

    Args:
        run: a name, a run directory, or "latest".
        checkpoint: a step, "latest" or "best".
    Raises:
        CheckpointError: no such run or checkpoint, or a damaged one.
    """
    directory = find_run(str(run), root)
    config = directory.training_config()
    tokenizer = own_tokenizer(directory)
    found = _read(directory, checkpoint)
    refuse_other_surroundings(directory, found)
    recorded = {choice["name"]: choice["value"] for choice in directory.record().get("choices", [])}
    config = as_recorded(config, recorded)
    machine = machine_for_reading(config, recorded)
    with machine.settings():
        model = Model(config.effective_model, tokenizer.vocab_size, seed=config.training.seed)
        model.to(machine.device, machine.weight_dtype)
        with naming(found):
            load_model_tensors(model, found.parts["model"])
        model.eval()
    return LoadedRun(model, tokenizer, config, machine, found.step, found.path, directory)
