"""Where text comes from. `open_source` turns a dataset table into a `Source`; a source gives `Piece`s.

| type | documents |
|---|---|
| `local_text` | text files, compressed or not; a file, a block between blank lines, or a line each |
| `jsonl`, `csv`, `parquet` | records, rendered by a field or a template |
| `shakespeare` | Tiny Shakespeare, downloaded once |
| `package_text` | text files that an installed Python distribution carries |
| `hugging_face` | records of a dataset repository, or of a folder with its files |
| `pretokenized` | files of token ids |
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, BinaryIO

from ...config.schema.sources import checked_encoding
from ...errors import ConfigError
from .base import PIECE_TOKENS, Piece, Source
from .cutting import PIECE_BYTES
from .files import InputFile, reading_options, shared_file, shown
from .hugging_face import open_hugging_face
from .local import TextFiles, open_local_text
from .opening import text_of
from .package import open_package_text
from .pretokenized import TokenFiles, layout_of, open_pretokenized
from .records import open_records
from .shakespeare import open_shakespeare
from .tally import Tally

__all__ = [
    "PIECE_BYTES",
    "PIECE_TOKENS",
    "Piece",
    "Source",
    "open_one_text",
    "open_source",
    "open_validation_source",
    "read_prompt",
    "shared_file",
]


def open_source(config: Any, *, cache_dir: Path, separator: bytes = b"") -> Source:
    """The source of a dataset table (or of its validation table).

    Args:
        config: the table; read are `type`, the keys of that type and, if there is one, `tokenizer.type`
            (the byte tokenizer takes invalid UTF-8 as it is, so nothing is replaced for it).
        cache_dir: where downloads are kept; created when needed.
        separator: what stands between documents, as UTF-8.

    Raises:
        ConfigError, DataError, StorageError: one line that says what is wrong, where, and what to do.
    """
    source = _open(config, cache_dir, getattr(config, "tokenizer", None))
    source.separator = separator
    return source


def open_validation_source(config: Any, *, cache_dir: Path, separator: bytes = b"") -> Source | None:
    """The source of validation text that the dataset names itself: its `validation` table, else the
    validation files of a `hugging_face` repository. None when there is neither, and the text must be split.

    Raises:
        ConfigError, DataError, StorageError: as `open_source`.
    """
    table = getattr(config, "validation", None) or config
    if table.type == "hugging_face" and table.validation_files:
        source = open_hugging_face(table, cache_dir=cache_dir, validation=True)
    elif table is not config:
        source = _open(table, cache_dir, getattr(config, "tokenizer", None))
    else:
        return None
    source.separator = separator
    return source


def open_one_text(config: Any, path: Path, encoding: str | None = None) -> Source:
    """The source of one file that is named on its own: opened as the files of the dataset table are, and cut into
    documents as they are where they are text files, else one document. Where tokens come ready-made, it may hold
    token ids, or a text of them.

    Args:
        encoding: of this file; None: as the table says.

    Raises:
        ConfigError: an encoding that is none.
        DataError: there is no such file, or it is none.
    """
    file = InputFile(path, shown(path), **_options(config, encoding))
    if config.tokenizer.type == "pretokenized" and not file.is_text():
        return TokenFiles([file], layout_of(config) if config.type == "pretokenized" else None)
    options = {"documents": config.documents} if config.type == "local_text" else {}
    return TextFiles("local_text", [file], replace_invalid=_replaces(config, config.tokenizer), **options)


def read_prompt(config: Any, source: Path | BinaryIO, name: str, encoding: str | None = None) -> bytes:
    """The UTF-8 of a prompt, from a file or a stream (standard input), opened as a dataset's files are.

    Args:
        encoding: as for `open_one_text`.

    Raises:
        ConfigError, DataError, StorageError: as for any file of text.
    """
    options = _options(config, encoding)
    if isinstance(source, Path):
        with InputFile(source, shown(name), **options).open_text(Tally()) as (stream, _):
            return stream.read()
    return text_of(source.read(), name, options["encoding"])


def _options(config: Any, encoding: str | None) -> dict[str, Any]:
    """How one file is read: as the table's files are, but for an encoding of its own."""
    options = reading_options(config)
    if encoding is not None:
        try:
            options["encoding"] = checked_encoding(encoding)
        except ValueError as error:
            raise ConfigError(f"--encoding: {encoding!r} {error}") from None
    return options


def _replaces(config: Any, tokenizer: Any) -> bool:
    """Whether invalid bytes become U+FFFD. For bytes as tokens they are as good as others, unless decoded."""
    keeps_bytes = (
        getattr(tokenizer, "type", None) == "byte" and getattr(config, "encoding", "utf-8") == "utf-8"
    )
    return getattr(config, "invalid_utf8", "error") == "replace" and not keeps_bytes


def _open(config: Any, cache_dir: Path, tokenizer: Any) -> Source:
    match config.type:
        case "local_text":
            return open_local_text(config, replace_invalid=_replaces(config, tokenizer))
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
