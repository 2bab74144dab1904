"""Delimited text (CSV, TSV) as records: rows of values under the names of a header, or numbered."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Iterator, Sequence

from ...errors import ConfigError, DataError
from .base import Tally
from .files import InputFile, shown
from .lines import RECORD_BYTES, first_line, numbered_lines, too_long
from .rendering import Malformed, Reader, Record, Records, named, no_field

_DELIMITERS = ",;\t|"
_TAB_SEPARATED = re.compile(r"\.(tsv|tab)(\.\w+)?$", re.IGNORECASE)
_EXCEL_DELIMITER = re.compile(rb'"?sep=(.)"?\s*', re.IGNORECASE)


def table_rows(
    fields: Sequence[str], *, delimiter: str | None = None, quote: str | None = '"', header: bool = True
) -> Reader:
    """A reader of delimited text: only the columns that are named are looked at, blank lines are passed over.

    Args:
        fields: the columns, by their name in the header or by their number from 1.
        delimiter: one character; None: a tab where the file's name ends in `.tsv` or `.tab`, else a comma. A first
            line `sep=;`, as Excel writes it, says what is used if nothing is given.
        quote: what stands around fields that hold the delimiter or line ends; None: quotes are plain characters.
        header: the first line names the columns; False: they have only their numbers.

    Raises:
        ConfigError: delimiter or quote are not one character, or a name where there are only numbers.
    """
    for key, value in (("delimiter", delimiter), ("quote", quote)):
        if value is not None and (len(value) != 1 or value in "\r\n"):
            raise ConfigError(f"dataset.{key}: one character is needed, not {value!r}")
    if delimiter is not None and delimiter == quote:
        raise ConfigError(f"dataset.delimiter and dataset.quote are both {delimiter!r}")
    unnumbered = [name for name in fields if not _is_number(name)]
    if unnumbered and not header:
        raise ConfigError(
            f'dataset.field: with header = false columns have numbers (the first is "1"), not "{unnumbered[0]}"'
        )

    def read(file: InputFile, tally: Tally) -> Records:
        with file.open_text(tally, strict=False) as (stream, _):
            number, head = first_line(stream)
            used = delimiter or ("\t" if _TAB_SEPARATED.search(file.path.name) else ",")
            said = _EXCEL_DELIMITER.fullmatch(head)
            if said:
                used = delimiter or said[1].decode("utf-8", "replace")
                tally.remark("files whose first line names the delimiter", f'{file.name} ("{shown(used)}")')
                number, head = number + 1, b""
            lines = numbered_lines(stream, number, head)
            rows = _quoted_rows(lines, used, quote, file.name, tally) if quote else _plain_rows(lines, used)
            columns: list[int | Malformed] | None = None
            width = found = 0
            for line, row in rows:
                found += 1
                place = f"{file.name}:{line}"
                if columns is None:
                    if isinstance(row, Malformed):
                        raise DataError(f"{place}: the first row is {row}")
                    width = len(row)
                    columns = _columns(fields, row if header else None, place)
                    if header:
                        continue
                if isinstance(row, Malformed):
                    yield place, row
                    continue
                if len(row) > width and any(row[width:]):
                    tally.remark(
                        f"rows with more fields than the {'header' if header else 'first row'}", place
                    )
                yield place, _chosen(row, fields, columns)
            if header and columns is not None and found == 1:
                for column in columns:
                    if isinstance(column, Malformed):
                        yield place, column

    return read


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdigit() and len(name) < 10 and int(name) > 0


def _columns(fields: Sequence[str], header: list[str] | None, place: str) -> list[int | Malformed]:
    """The position of each field's column, or what is wrong with each record because it has none."""
    found: list[int | Malformed] = []
    for field in fields:
        places = [index for index, name in enumerate(header or ()) if name == field]
        if len(places) > 1:
            numbers = " or ".join(f'"{index + 1}"' for index in places)
            raise DataError(
                f'{place}: the header names the field "{shown(field)}" more than once; use its number, {numbers}'
            )
        if places or _is_number(field):
            found.append(places[0] if places else int(field) - 1)
        else:
            assert header is not None
            found.append(_missing(field, f"there is: {named(header)}", header))
    return found


def _chosen(row: list[str], fields: Sequence[str], columns: Sequence[int | Malformed]) -> Record | Malformed:
    record = {}
    for field, column in zip(fields, columns, strict=True):
        if isinstance(column, Malformed):
            return column
        if column >= len(row):
            return _missing(field, f"it would be number {column + 1} of {len(row)}", row)
        record[field] = row[column]
    return record


def _missing(field: str, reason: str, row: Sequence[str]) -> Malformed:
    advice = ""
    if len(row) == 1:
        other = max(_DELIMITERS, key=row[0].count)
        if other in row[0]:
            advice = f"; is dataset.delimiter {json.dumps(other)}?"
    return Malformed(f"{no_field(field)} ({reason}){advice}", f"without field {shown(field)}")


def _plain_rows(
    lines: Iterable[tuple[int, bytes | None]], delimiter: str
) -> Iterator[tuple[int, list[str] | Malformed]]:
    for number, line in lines:
        if line is None:
            yield number, too_long()
            continue
        text = line.rstrip(b"\r\n").decode("utf-8", "surrogateescape")
        if text:
            yield number, text.split(delimiter)


def _quoted_rows(
    lines: Iterable[tuple[int, bytes | None]], delimiter: str, quote: str, name: str, tally: Tally
) -> Iterator[tuple[int, list[str] | Malformed]]:
    """(first line, fields) of every row that is not blank, as the csv module reads them."""
    first = last = 0

    def texts() -> Iterator[str]:
        nonlocal first, last
        for last, line in lines:
            first = first or last
            if line is None:
                raise DataError(f"{name}:{last}: a line is longer than 256 MiB")
            yield line.decode("utf-8", "surrogateescape")

    try:
        rows = csv.reader(texts(), delimiter=delimiter, quotechar=quote, strict=True)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"dataset.delimiter: {delimiter!r} with quote {quote!r}: {error}") from None
    as_text = 'if quotes are plain characters here, set dataset.quote = "off"'
    while True:
        first = 0
        limit = csv.field_size_limit(RECORD_BYTES)  # of the whole process: put back before anyone else reads
        try:
            row: list[str] | Malformed = next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            place = f"{name}:{first}"
            if "unexpected end of data" in str(error):
                raise DataError(f"{place}: a quote in this record is never closed; {as_text}") from None
            if "field larger than" in str(error):
                raise DataError(f"{place}: a field is longer than 256 MiB; {as_text}") from None
            reason = f"{error}; {as_text}"
            if "new-line character" in str(error):
                reason = "a carriage return outside of quotes; where it ends the lines, convert them to LF"
            row = Malformed(f"not valid CSV: {reason}", "not valid CSV")
        finally:
            csv.field_size_limit(limit)
        if last > first:
            tally.span(last - first + 1, f"{name}:{first}")
        if row:
            yield first, row
