"""Parquet files, read a few rows at a time. Needs pyarrow, of the extra `hub`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ...errors import DataError
from .base import Tally
from .files import InputFile
from .records import Reader, Records
from .rendering import Malformed, Record

_ROWS = 256


def parquet_rows(columns: Sequence[str] | None = None) -> Reader:
    """A reader of parquet files: one row is a record, a list of integers in it an int64 array.

    Args:
        columns: the columns to read; None reads all.

    Raises:
        DataError: pyarrow is missing; a file is damaged or lacks a column.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise DataError('format = "parquet" needs pyarrow; run: pip install "wyrmling[hub]"') from None

    def read(file: InputFile, tally: Tally) -> Records:
        number = 0
        try:
            with file.open() as stream, pyarrow.parquet.ParquetFile(stream) as table:
                names = table.schema_arrow.names
                for column in columns or ():
                    if column not in names:
                        raise DataError(
                            f'{file.name}: there is no column "{column}" (there is: {", ".join(names)})'
                        )
                chosen = list(columns) if columns is not None else None
                for batch in table.iter_batches(batch_size=_ROWS, columns=chosen):
                    for record in _rows(batch):
                        number += 1
                        yield f"{file.name}: row {number}", record
        except pyarrow.ArrowException as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise DataError(f"{file.name}: damaged or not a parquet file ({reason})") from error

    return read


def _rows(batch: Any) -> Iterator[Record | Malformed]:
    names = batch.schema.names
    columns = [batch.column(index) for index in range(batch.num_columns)]
    for row in range(batch.num_rows):
        try:
            yield {name: _value(column[row]) for name, column in zip(names, columns, strict=True)}
        except Malformed as reason:
            yield reason


def _value(scalar: Any) -> Any:
    """A cell as text, number, boolean, None, or int64 [n]; anything else as pyarrow gives it."""
    import pyarrow.types as types

    kind = scalar.type
    if (types.is_list(kind) or types.is_large_list(kind)) and types.is_integer(kind.value_type):
        if not scalar.is_valid:
            return None
        if scalar.values.null_count:
            raise Malformed("a list of tokens holds null")
        return scalar.values.to_numpy(zero_copy_only=False).astype(np.int64)
    try:
        return scalar.as_py()
    except UnicodeDecodeError:
        raise Malformed("a text is not valid UTF-8") from None
