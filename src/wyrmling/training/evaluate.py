"""The evaluation of a trained model: on a split of its data, or on any text."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from ..data.building import store_in_memory
from ..data.dataset import prepare_dataset, where_paths_begin
from ..data.store import Split
from ..errors import CheckpointError, DataError
from ..text.sources import open_one_text
from .evaluation import Evaluation, documents_apart, evaluate_split
from .loading import LoadedRun
from .probing import Distance, probe_state


def evaluate(
    loaded: LoadedRun,
    *,
    text: str | Path | None = None,
    encoding: str | None = None,
    split: Literal["train", "validation"] = "validation",
    carry_state: bool = True,
    rows: int | None = None,
    block_size: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    note: Callable[[str], None] = lambda line: None,
) -> Evaluation:
    """The loss over every target of a text exactly once: every token but the first, which nothing predicts.

    A run that was trained document by document (`training.order = "streaming"`) is scored so: the state starts anew
    where a document does, and a document's first token is no target. `Evaluation.documents` says how many there were.

    Args:
        text: a file to evaluate on, with documents as in the run's own files of text; None takes a split of its data.
        encoding: what `text` is written in; None: what the run's texts are.
        carry_state: read on with a living state through the whole text, or document; False starts every block anew.
        rows: shares of the text, or documents, that are read side by side; default 1 for a file, the training batch
            for a split.
        block_size: tokens per block; default the training block.
        progress: told of targets done and in all.
        note: told what a person should know about the data, such as token files that were built anew.
    Raises:
        DataError: no such file or split, a text of fewer than two tokens, characters outside the vocabulary.
        CheckpointError: the loss is not finite: such weights are of no use.
    """
    training = loaded.config.training
    with loaded.machine.settings():
        chosen = (
            _file(loaded, Path(text), encoding, note) if text is not None else _split(loaded, split, note)
        )
        found = evaluate_split(
            loaded.model,
            chosen,
            loaded.tokenizer,
            loaded.machine,
            block_size=block_size or training.block_size,
            rows=rows or (1 if text is not None else training.batch_size),
            carry_state=carry_state,
            documents=documents_apart(chosen, training),
            progress=progress,
        )
    if not math.isfinite(found.loss):
        raise CheckpointError(
            f"{loaded.run.name}, step {loaded.step}: the loss on {chosen.where} is not finite: the weights have grown "
            "beyond what can be computed with; evaluate an earlier checkpoint (--checkpoint), and see "
            "`wyrmling train --fork` for the way on"
        )
    return found


def probe(
    loaded: LoadedRun,
    *,
    text: str | Path | None = None,
    encoding: str | None = None,
    split: Literal["train", "validation"] = "validation",
    rows: int | None = None,
    period: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    note: Callable[[str], None] = lambda line: None,
) -> list[Distance]:
    """What a living state is worth, by distance from the point where it would have been emptied; see `probing`.

    Args:
        text, encoding, split, rows, progress, note: as for `evaluate`.
        period: tokens between two such points, a multiple of 64; default: as long as leaves some 32 segments.
    Raises:
        ConfigError: another period.
        DataError: as `evaluate`, and a text that is too short.
    """
    training = loaded.config.training
    with loaded.machine.settings():
        chosen = (
            _file(loaded, Path(text), encoding, note) if text is not None else _split(loaded, split, note)
        )
        return probe_state(
            loaded.model,
            chosen,
            loaded.machine,
            rows=rows or (1 if text is not None else training.batch_size),
            period=period,
            documents=documents_apart(chosen, training),
            progress=progress,
        )


def _split(loaded: LoadedRun, name: str, note: Callable[[str], None]) -> Split:
    dataset = prepare_dataset(loaded.config, tokenizer=loaded.tokenizer, tell=note)
    for line in dataset.notes:
        note(line)
    recorded = loaded.run.record()["data"]["fingerprint"]
    if recorded and recorded != dataset.fingerprint:
        raise DataError(
            f"the text of {loaded.run.name} has changed since it was trained, so its splits are others now: put the "
            f"old text back, or evaluate a file with --text{where_paths_begin(loaded.config.dataset)}"
        )
    split = dataset.train if name == "train" else dataset.validation
    if split is None:
        raise DataError(
            f"{loaded.run.name} has no validation split (dataset.train_split_ratio is 1): give a text with --text, or "
            "evaluate the training split with --split train"
        )
    return split


def _file(loaded: LoadedRun, path: Path, encoding: str | None, note: Callable[[str], None]) -> Split:
    if not path.exists():
        raise DataError(f"there is no file {path} to evaluate on; check --text")
    source = open_one_text(loaded.config.dataset, path, encoding)
    store = store_in_memory(source.pieces(), loaded.tokenizer)
    for line in (*source.notes, *store.notes):
        note(line)
    if len(store) < 2:
        raise DataError(f"{path} holds {len(store)} tokens: nothing to predict; at least 2 are needed")
    return Split(store, 0, len(store), "text", str(path))
