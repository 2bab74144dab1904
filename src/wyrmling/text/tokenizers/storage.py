"""Tokenizers in files: one JSON document that appears whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ...errors import DataError
from ...files import write_json_atomically
from ..sources.files import refusal, shown
from .base import FORMAT, Tokenizer
from .bpe import BpeTokenizer


def save_tokenizer(path: Path, tokenizer: Tokenizer) -> None:
    """Write a tokenizer.

    Raises:
        StorageError: the file system refused; what was there before is untouched.
    """
    write_json_atomically(path, tokenizer.to_json())


def load_tokenizer(path: Path) -> Tokenizer:
    """Read what `save_tokenizer` wrote.

    Raises:
        DataError: the file is missing, damaged, of a newer version, or something else.
        StorageError: the system refuses to let it be read.
    """
    document = _read_json(path)
    try:
        return Tokenizer.from_json(document)
    except DataError as error:
        raise DataError(f"{shown(path)}: {error}") from error


def load_vocabulary(path: Path, *, normalize: tuple[str, ...]) -> Tokenizer:
    """Read a vocabulary that a configuration names: one of ours, or a `tokenizer.json` of the tokenizers
    library.

    Args:
        normalize: goes with a foreign file; ours say themselves what is normalized.

    Raises:
        DataError, StorageError: as `load_tokenizer`.
    """
    document = _read_json(path)
    try:
        if isinstance(document, dict) and document.get("format") == FORMAT:
            return Tokenizer.from_json(document)
        return BpeTokenizer(document, normalize=normalize)
    except DataError as error:
        raise DataError(f"{shown(path)}: {error}") from error


def _read_json(path: Path) -> Any:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise refusal(shown(path), error) from error
    try:
        return json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise DataError(f"{shown(path)}: damaged tokenizer file (not JSON: {reason})") from error
