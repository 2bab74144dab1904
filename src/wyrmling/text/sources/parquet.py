"""Parquet files, read a few rows at a time. Needs pyarrow, of the extra `hub`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ...errors import DataError, to_install
from .base import Tally
from .files import InputFile, shown
from .rendering import Malformed, Reader, Records, named, no_field

_ROWS = 64
_READ_BYTES = 1 << 20


def parquet_rows(fields: Sequence[str]) -> Reader:
    """A reader of parquet files: one row is a record, a list of integers in it an int64 array.

    Args:
        fields: names of fields, with dots for what lies deeper; no other column is read.

    Raises:
        DataError: pyarrow is missing; a file is damaged.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise DataError(f"reading parquet needs pyarrow; {to_install('pyarrow')}") from None

    def read(file: InputFile, tally: Tally) -> Records:
        if file.compressed:
            raise DataError(
                f"{file.name}: is compressed, and parquet is not read from its start on; unpack it first"
            )
        with file.open() as stream:
            try:
                with pyarrow.parquet.ParquetFile(stream, buffer_size=_READ_BYTES) as table:
                    yield from _records(table, fields, file.name)
            except (pyarrow.ArrowException, OSError) as error:
                if isinstance(error, OSError) and error.errno is not None:
                    raise  # of the file system; pyarrow's own have no number
                reason = shown((str(error) or type(error).__name__).splitlines()[0])
                raise DataError(f"{file.name}: damaged or not a parquet file ({reason})") from error

    return read


def _records(table: Any, fields: Sequence[str], name: str) -> Records:
    names = table.schema_arrow.names
    columns = {field: _column(field, names) for field in fields}
    for field, column in columns.items():
        if not column:
            reason = f"{no_field(field)} (there is: {named(names)})"
            for number in range(table.metadata.num_rows):
                yield f"{name}: row {number + 1}", Malformed(reason, f"without field {shown(field)}")
            return
        if names.count(column) > 1:
            raise DataError(f'{name}: there is more than one column "{shown(column)}"')
    number = 0
    for batch in table.iter_batches(batch_size=_ROWS, columns=sorted(set(columns.values()))):
        for record in _rows(batch):
            number += 1
            yield f"{name}: row {number}", record


def _column(field: str, names: Sequence[str]) -> str:
    """The column that a name with dots leads into, the longest that fits; empty if there is none."""
    while field and field not in names:
        field = field.rpartition(".")[0]
    return field


def _rows(batch: Any) -> Iterator[dict[str, Any] | Malformed]:
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
            raise Malformed("a list of tokens holds null", "no list of whole numbers")
        ids = scalar.values.to_numpy(zero_copy_only=False)
        if ids.dtype == np.uint64 and ids.max(initial=0) > np.iinfo(np.int64).max:
            raise Malformed("a list of tokens holds a number beyond 63 bits", "no token id")
        return ids.astype(np.int64)
    try:
        return scalar.as_py()
    except UnicodeDecodeError:
        raise Malformed("a text is not valid UTF-8", "not UTF-8") from None
