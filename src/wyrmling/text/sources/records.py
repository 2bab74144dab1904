"""Records in files: JSON lines and CSV. One record is one document.

Both are strict: what cannot be used stops with `file:line` and the reason, unless `on_error = "skip"`,
which leaves such records out and counts them. A record must fit in memory and is limited to 256 MiB; a file
has no limit.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO

from ...errors import ConfigError, DataError
from ..utf8 import find_invalid
from .base import Piece, Source, Tally, whole_document
from .files import InputFile, find_files
from .rendering import Malformed, Number, Record, Render, field_text, template_text

if TYPE_CHECKING:
    from ...config.schema.sources import CsvSource, JsonLinesSource, RecordSource

RECORD_BYTES = 1 << 28
JSONL_SUFFIXES = (".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz")
CSV_SUFFIXES = (".csv", ".csv.gz")
Records = Iterator[tuple[str, Record | Malformed]]
Reader = Callable[[InputFile, Tally], Records]
"""Gives (place, record or the reason why it is none) for each record of a file."""


class RecordFiles(Source):
    """Files of records, each rendered to one document.

    Args:
        read: the format.
        render: from fields to text or tokens.
        skip: leave malformed records out instead of stopping.
        hint: what to do about a malformed record, at the end of the error.
        max_records: stop after so many documents over all files.
    """

    def __init__(
        self,
        kind: str,
        files: Sequence[InputFile],
        *,
        read: Reader,
        render: Render,
        skip: bool = False,
        hint: str = "",
        max_records: int | None = None,
        settings: Mapping[str, Any] | None = None,
        notes: Sequence[str] = (),
    ) -> None:
        super().__init__(kind, files, {**(settings or {}), "skip": skip, "max_records": max_records}, notes)
        self._records = read
        self._render = render
        self._skip = skip
        self._hint = hint
        self._limit = max_records

    def _read(self, tally: Tally) -> Iterator[Piece]:
        for file in self.files:
            for place, record in self._records(file, tally):
                if self._limit is not None and tally.documents >= self._limit:
                    tally.limit_reached = self._limit
                    return
                try:
                    if isinstance(record, Malformed):
                        raise record
                    content = self._render(record)
                except Malformed as reason:
                    if not self._skip:
                        raise DataError(f"{place}: {reason}{self._hint}") from None
                    tally.drop(f"{place}: {reason}")
                    continue
                yield from whole_document(content, tally, place)


def open_jsonl(config: JsonLinesSource) -> Source:
    """The source of a `jsonl` table."""
    files, notes = find_files(config.path, suffixes=JSONL_SUFFIXES)
    return RecordFiles("jsonl", files, read=json_lines(), notes=notes, **_options(config))


def open_csv(config: CsvSource) -> Source:
    """The source of a `csv` table."""
    files, notes = find_files(config.path, suffixes=CSV_SUFFIXES)
    options = _options(config)
    options["settings"]["delimiter"] = config.delimiter
    return RecordFiles("csv", files, read=csv_rows(config.delimiter), notes=notes, **options)


def _options(config: RecordSource) -> dict[str, Any]:
    if config.template is not None:
        render, settings = template_text(config.template), {"template": config.template}
    elif config.field is not None:
        render, settings = field_text(config.field), {"field": config.field}
    else:
        raise ConfigError("dataset.field: name the field that holds the text, or set dataset.template")
    return {
        "render": render,
        "skip": config.on_error == "skip",
        "hint": '; correct the record, or set dataset.on_error = "skip" to leave such records out',
        "settings": settings,
    }


def json_lines(*, numbers_as_written: bool = True) -> Reader:
    """A reader of JSON lines: one object a line, lines of only white space are passed over.

    Args:
        numbers_as_written: give numbers as `Number` (their very text) instead of int and float.
    """
    number = Number if numbers_as_written else None

    def parse(line: bytes) -> Record | Malformed:
        invalid = find_invalid(line)
        if invalid is not None:
            return Malformed(f"invalid UTF-8 at byte offset {invalid} of the line: 0x{line[invalid]:02x}")
        try:
            value = json.loads(
                line.decode("utf-8"), parse_int=number, parse_float=number, parse_constant=_refuse_constant
            )
        except json.JSONDecodeError as error:
            return Malformed(f"not valid JSON: {error.msg} at column {error.colno}")
        except (ValueError, RecursionError) as error:
            return Malformed(f"not valid JSON: {error}")
        if not isinstance(value, dict):
            return Malformed("not a JSON object in braces")
        return value

    def read(file: InputFile, tally: Tally) -> Records:
        with file.open_text(tally.byte_order_marks, tally.utf16) as (stream, _):
            for number, line in _numbered_lines(stream, file.name):
                if line.strip(b" \t\r\n"):
                    yield f"{file.name}:{number}", parse(line)

    return read


def text_lines(field: str) -> Reader:
    """A reader of plain text: each line that is not blank is a record of one field, its line end left out."""

    def read(file: InputFile, tally: Tally) -> Records:
        with file.open_text(tally.byte_order_marks, tally.utf16) as (stream, _):
            for number, line in _numbered_lines(stream, file.name):
                if not line.strip(b" \t\r\n"):
                    continue
                invalid = find_invalid(line)
                place = f"{file.name}:{number}"
                if invalid is not None:
                    yield place, Malformed(f"invalid UTF-8 at byte offset {invalid} of the line")
                else:
                    yield place, {field: line.rstrip(b"\r\n").decode("utf-8")}

    return read


def csv_rows(delimiter: str = ",") -> Reader:
    """A reader of CSV with a header: quoted fields may hold the delimiter and line ends; blank lines are
    passed over.

    Raises:
        ConfigError: the delimiter is not one character.
    """
    if len(delimiter) != 1 or delimiter in '"\r\n':
        raise ConfigError(f"dataset.delimiter: one character is needed, not {delimiter!r}")

    def read(file: InputFile, tally: Tally) -> Records:
        csv.field_size_limit(max(csv.field_size_limit(), RECORD_BYTES))
        with file.open_text(tally.byte_order_marks, tally.utf16) as (stream, _):
            lines = (
                line.decode("utf-8", "surrogateescape") for _, line in _numbered_lines(stream, file.name)
            )
            rows = csv.reader(lines, delimiter=delimiter, strict=True)
            header: list[str] | None = None
            for place, row in _csv_records(rows, file.name):
                if header is None:
                    header = _csv_header(row, place)
                else:
                    yield place, _csv_record(row, header)

    return read


def _csv_records(rows: Any, name: str) -> Iterator[tuple[str, list[str] | Malformed]]:
    """(place of the first line, fields or reason) of every row that is not blank."""
    while True:
        place = f"{name}:{rows.line_num + 1}"
        try:
            row = next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            if "unexpected end of data" in str(error):
                raise DataError(f"{place}: a quote in the record that starts here is never closed") from None
            if "field larger than" in str(error):
                raise DataError(
                    f"{place}: a field is longer than 256 MiB; is a quote never closed?"
                ) from None
            yield place, Malformed(f"not valid CSV: {error}")
            continue
        if row:
            yield place, row


def _csv_header(row: list[str] | Malformed, place: str) -> list[str]:
    if isinstance(row, Malformed):
        raise DataError(f"{place}: the header is {row}")
    if _undecodable("".join(row)):
        raise DataError(f"{place}: the header holds invalid UTF-8")
    repeated = sorted({name for name in row if row.count(name) > 1})
    if repeated:
        raise DataError(f'{place}: the header names the field "{repeated[0]}" more than once')
    return row


def _csv_record(row: list[str] | Malformed, header: list[str]) -> Record | Malformed:
    if isinstance(row, Malformed):
        return row
    if len(row) != len(header):
        return Malformed(f"{len(row)} fields, the header names {len(header)}")
    for name, value in zip(header, row, strict=True):
        if _undecodable(value):
            return Malformed(f'invalid UTF-8 in field "{name}"')
    return dict(zip(header, row, strict=True))


def _undecodable(text: str) -> bool:
    """Whether invalid bytes were smuggled through decoding as lone surrogates."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return True
    return False


def _numbered_lines(stream: BinaryIO, name: str) -> Iterator[tuple[int, bytes]]:
    number = 0
    while line := stream.readline(RECORD_BYTES + 1):
        number += 1
        if len(line) > RECORD_BYTES:
            raise DataError(f"{name}:{number}: a line is longer than 256 MiB; one record a line is expected")
        yield number, line


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")
