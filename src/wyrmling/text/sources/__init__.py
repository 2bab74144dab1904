"""Where text comes from. `open_source` turns a dataset table into a `Source`; a source gives `Piece`s.

| type | documents |
|---|---|
| `local_text` | text files, packed or not; a file, a block between blank lines, or a line each |
| `jsonl`, `csv`, `parquet` | records, rendered by a field or a template |
| `shakespeare` | Tiny Shakespeare, downloaded once |
| `package_text` | text files that an installed Python distribution carries |
| `hugging_face` | records of a dataset repository, or of a folder with its files |
| `pretokenized` | files of token ids |
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...errors import ConfigError
from .base import PIECE_TOKENS, Piece, Source
from .cutting import PIECE_BYTES
from .hugging_face import open_hugging_face
from .local import open_local_text
from .package import open_package_text
from .pretokenized import open_pretokenized
from .records import open_records
from .shakespeare import open_shakespeare

__all__ = ["PIECE_BYTES", "PIECE_TOKENS", "Piece", "Source", "open_source", "open_validation_source"]


def open_source(config: Any, *, cache_dir: Path) -> Source:
    """The source of a dataset table (or of its validation table).

    Args:
        config: the table; read are `type`, the keys of that type and, if there is one, `tokenizer.type`
            (the byte tokenizer takes invalid UTF-8 as it is, so nothing is replaced for it).
        cache_dir: where downloads are kept; created when needed.

    Raises:
        ConfigError, DataError, StorageError: one line that says what is wrong, where, and what to do.
    """
    return _open(config, cache_dir, getattr(config, "tokenizer", None))


def open_validation_source(config: Any, *, cache_dir: Path) -> Source | None:
    """The source of validation text that the dataset names itself: its `validation` table, else the
    validation files of a `hugging_face` repository. None when there is neither, and the text must be split.

    Raises:
        ConfigError, DataError, StorageError: as `open_source`.
    """
    table = getattr(config, "validation", None)
    if table is not None:
        return _open(table, cache_dir, getattr(config, "tokenizer", None))
    if config.type == "hugging_face" and config.validation_files:
        return open_hugging_face(config, cache_dir=cache_dir, validation=True)
    return None


def _open(config: Any, cache_dir: Path, tokenizer: Any) -> Source:
    match config.type:
        case "local_text":
            keeps_bytes = getattr(tokenizer, "type", None) == "byte" and config.encoding == "utf-8"
            replace = config.invalid_utf8 == "replace" and not keeps_bytes
            return open_local_text(config, replace_invalid=replace)
        case "jsonl" | "csv" | "parquet":
            return open_records(config)
        case "shakespeare":
            return open_shakespeare(config, cache_dir=cache_dir)
        case "package_text":
            return open_package_text(config)
        case "hugging_face":
            return open_hugging_face(config, cache_dir=cache_dir)
        case "pretokenized":
            return open_pretokenized(config)
        case unknown:
            raise ConfigError(f'dataset.type: "{unknown}" is not a source of text')
