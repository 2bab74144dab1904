"""What a run that goes on must agree with, and what is mended before it does."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Literal

from ..checkpoint import list_checkpoints, read_pointer, write_pointer
from ..checkpoint.transfer import refuse_other_memory
from ..config import Config
from ..data.dataset import Dataset, where_paths_begin
from ..errors import CheckpointError
from ..files import sealed, write_json_atomically
from ..runs import Choice, RunDirectory
from ..text.tokenizers import differences
from ..watch.events import Broadcaster, Callback, Message
from .geometry import RWKV8_CHOICE
from .loading import own_tokenizer
from .progress import Progress
from .versions import arithmetic_differs, versions


class Told(Broadcaster):
    """What is said before a run's record is open: shown at once, and written into the record afterwards."""

    def __init__(self, callbacks: Iterable[Callback]) -> None:
        super().__init__(callbacks)
        self._messages: list[Message] = []

    def on_message(self, report: Message) -> None:
        self._messages.append(report)
        super().on_message(report)

    def replay(self, log: Callback) -> None:
        """Write what was said so far."""
        for message in self._messages:
            log.on_message(message)


def stored_choices(
    run: RunDirectory,
    config: Config,
    dataset: Dataset,
    allow_inexact: bool,
    tell: Callable[[Message], None],
) -> dict[str, str]:
    """The recorded choices of a run that goes on, after checking that data and software are the recorded ones.

    Raises:
        CheckpointError: another text, tokenizer or memory (always); another torch (unless inexact is allowed).
    """
    record = run.record()
    if not record["data"]["fingerprint"]:
        raise CheckpointError(
            f"{run.name} was imported, not trained: it has nothing to go on with; start a new run from its weights "
            "with training.launch_mode = init_from_checkpoint"
        )
    refuse_other_memory(run.name, run.training_config().effective_model, config.effective_model)
    different = differences(own_tokenizer(run), dataset.tokenizer)
    if different is not None:
        raise CheckpointError(f"{run.name} was trained with another tokenizer: {different}")
    if record["data"]["fingerprint"] != dataset.fingerprint:
        remedy = "put the old text back"
        separator = run.training_config().dataset.document_separator
        if separator != config.dataset.document_separator:
            was = "unset" if separator is None else json.dumps(separator)
            remedy += f" (dataset.document_separator was {was}: set it so)"
        raise CheckpointError(
            f"{run.name} was trained on another text: the fingerprint is {dataset.fingerprint[:12]}, it was "
            f"{record['data']['fingerprint'][:12]}; {remedy}, or start a new run"
            f"{where_paths_begin(config.dataset)}"
        )
    made, here = record["versions"], versions()
    text = None
    if made["torch"] != here["torch"]:
        text = f"{run.name} was trained with torch {made['torch']}, this is {here['torch']}"
    elif arithmetic_differs(made.get("arithmetic", "1"), config.effective_model):
        text = f"{run.name} was trained before decays and angles were computed as exactly as now"
    if text is not None:
        text += ": its numbers may differ in the last bits"
        if not allow_inexact:
            raise CheckpointError(f"{text}; pass --allow-inexact to go on all the same")
        tell(Message("warning", "inexact", text))
    choices = {choice["name"]: choice["value"] for choice in record["choices"]}
    if allow_inexact:  # what the caller sets anew is chosen anew, the rest stays
        before = run.training_config().runtime
        wide = choices.get("dtype") == "float64"
        if config.runtime.dtype != before.dtype and (config.runtime.dtype == "float64") != wide:
            raise CheckpointError(
                f"{run.name} has {'float64' if wide else 'float32'} weights and moments, which runtime.dtype = "
                f"{config.runtime.dtype} cannot go on with: start a new run with init_from_checkpoint"
            )
        choices.pop("executor", None)
        choices.pop(RWKV8_CHOICE, None)
        for key in ("device", "dtype", "threads", "activation_memory", "compile"):
            if getattr(config.runtime, key) != getattr(before, key):
                choices.pop("kernels" if key == "compile" else key, None)
    return choices


def mend_pointers(run: RunDirectory, progress: Progress, tell: Callable[[Message], None]) -> None:
    """Let `latest` and `best` name what the run's progress names, and say where they did not.

    A kill may have come between two writes, or somebody has changed them.
    """
    steps = list_checkpoints(run.checkpoints)
    wanted: tuple[tuple[Literal["latest", "best"], int | None], ...] = (
        ("latest", progress.step),
        ("best", progress.best.step),
    )
    for name, step in wanted:
        if step is not None and step in steps and read_pointer(run.checkpoints, name) != step:
            write_pointer(run.checkpoints, name, step)
            tell(Message("info", "checkpoint", f"{name} did not name step {step} and does so again"))


def rewrite_choices(run: RunDirectory, choices: Iterable[Choice], made_with: Mapping[str, str]) -> None:
    """Record what an inexact continuation runs with, so that the next one is compared with that."""
    record = {
        **run.record(),
        "choices": [choice.to_json() for choice in choices],
        "versions": dict(made_with),
    }
    write_json_atomically(run.config_json, sealed(record))
