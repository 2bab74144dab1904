"""Records in files: JSON, delimited text (CSV, TSV), lines, parquet. One record is one document.

A record that cannot be used stops with `file:line` and the reason, or, with `on_error = "skip"`, is left out and
counted by its reason. A record must fit in memory and is limited to 256 MiB; a file has no limit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import ConfigError, DataError
from .base import Piece, Source, Tally, whole_document
from .delimited import table_rows
from .files import InputFile, reading_options
from .finding import find_files
from .json_values import json_records
from .lines import text_lines
from .parquet import parquet_rows
from .rendering import Malformed, Reader, Record, Rendering, joined, parse_template

if TYPE_CHECKING:
    from ...config.schema.sources import CsvSource, JsonLinesSource, ParquetSource, RecordKeys

SUFFIXES = {
    "jsonl": (".jsonl", ".ndjson"),
    "csv": (".csv", ".tsv", ".tab"),
    "parquet": (".parquet",),
}
"""What a folder is searched for, compressed or not."""


class RecordFiles(Source):
    """Files of records, each rendered to one document.

    Args:
        read: the format.
        render: from fields to text or tokens.
        skip: leave malformed records out instead of stopping.
        max_records: stop after so many documents over all files.
    """

    def __init__(
        self,
        kind: str,
        files: Sequence[InputFile],
        *,
        read: Reader,
        render: Rendering,
        skip: bool = False,
        max_records: int | None = None,
        settings: Mapping[str, Any] | None = None,
        notes: Sequence[str] = (),
    ) -> None:
        own = {**render.settings(), "skip": skip, "max_records": max_records}
        super().__init__(kind, files, {**(settings or {}), **own}, notes)
        self._records = read
        self._render = render
        self._skip = skip
        self._limit = max_records

    def _read(self, tally: Tally) -> Iterator[Piece]:
        for file in self.files:
            for place, record in self._records(file, tally):
                if self._limit is not None and tally.documents >= self._limit:
                    tally.limit_reached = self._limit
                    return
                content = self._content(record)
                if not isinstance(content, Malformed):
                    yield from whole_document(content, tally, place)
                elif self._skip:
                    tally.skip(content.kind, f"{place}: {content}")
                else:
                    other = "name another field, " if content.kind.startswith("without field") else ""
                    raise DataError(
                        f"{place}: {content}; {other}correct the record, "
                        'or set dataset.on_error = "skip" to leave such records out'
                    )

    def _content(self, record: Record | Malformed) -> bytes | np.ndarray | Malformed:
        """The document of a record, or why there is none. What a reader gives for a million records is not raised:
        each time would add to its traceback.
        """
        if isinstance(record, Malformed):
            return record
        try:
            return self._render(record)
        except Malformed as reason:
            return reason


def open_records(config: JsonLinesSource | CsvSource | ParquetSource) -> Source:
    """The source of a `jsonl`, `csv` or `parquet` table."""
    render = rendering(config)
    read, settings = reader(config, config.type, render)
    files, notes = find_files(
        config.path,
        suffixes=SUFFIXES[config.type],
        chosen=config.suffixes,
        texts=config.type != "parquet",
        **reading_options(config),
    )
    return RecordFiles(
        config.type, files, read=read, render=render, settings=settings, notes=notes, **choices(config)
    )


def choices(config: RecordKeys) -> dict[str, Any]:
    """What a table says about its records, whatever their format."""
    return {"skip": config.on_error == "skip", "max_records": config.max_records}


def rendering(config: Any) -> Rendering:
    """How the records of a table become documents. Texts of a `hugging_face` table end with a line end.

    Args:
        config: a table with `RecordKeys`.

    Raises:
        ConfigError: no field is named, or the template is none.
    """
    hub = config.type == "hugging_face"
    sequence = getattr(config, "sequence_field", None)
    if sequence is not None:
        return Rendering([(False, sequence)], tokens=True)
    if config.template is not None:
        return Rendering(parse_template(config.template), end_line=hub)
    if config.field is not None:
        return Rendering([(False, config.field)], end_line=hub)
    if hub and config.text_fields:
        return Rendering(joined(config.text_fields, config.field_separator), end_line=True)
    key = "dataset.text_fields" if hub else "dataset.field"
    raise ConfigError(f"{key}: name the field that holds the text, or set dataset.template")


def reader(config: Any, kind: str, render: Rendering) -> tuple[Reader, dict[str, Any]]:
    """The reader of a format for the records of a table, and the settings that decide what it gives.

    Raises:
        ConfigError: an unknown format, or settings that do not go together.
        DataError: what the format needs is not installed.
    """
    if render.tokens and kind not in ("jsonl", "parquet"):
        raise ConfigError(f'dataset.sequence_field: lists are read from jsonl and parquet, not from "{kind}"')
    match kind:
        case "jsonl":
            return json_records(), {}
        case "csv":
            options = {"delimiter": config.delimiter, "quote": config.quote, "header": config.header}
            return table_rows(render.fields, **options), options
        case "parquet":
            return parquet_rows(render.fields), {}
        case "text":
            return text_lines(render.fields[0]), {}
        case _:
            raise ConfigError(f'dataset.format: "{kind}" is not one of jsonl, text, parquet, csv')
