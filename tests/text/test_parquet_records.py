"""Parquet through the layer of records: any column that holds text, whatever lies beside it."""

from __future__ import annotations

import datetime
import decimal
import gzip
from pathlib import Path
from typing import Any

import pytest
from text_helpers import documents, opened, records, refused

from wyrmling.errors import DataError

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


def write(folder: Path, columns: Any, name: str = "t.parquet") -> Path:
    table = pyarrow.table(columns) if isinstance(columns, dict) else columns
    parquet.write_table(table, folder / name, row_group_size=2)
    return folder / name


def texts(values: list[Any], kind: Any = None) -> Any:
    return pyarrow.array(values, kind)


COLUMNS = [
    (texts(["a", "é", ""]), [b"a", "é".encode()]),
    (texts(["a", "b"], pyarrow.large_string()), [b"a", b"b"]),
    (texts(["a", "b", "a"]).dictionary_encode(), [b"a", b"b", b"a"]),
    (texts([b"a", "é".encode()]), [b"a", "é".encode()]),
    (texts([b"abc"], pyarrow.binary(3)), [b"abc"]),
    (texts([1, -2]), [b"1", b"-2"]),
    (texts([1.5]), [b"1.5"]),
    (texts([True, False]), [b"true", b"false"]),
    (texts([decimal.Decimal("1.50")]), [b"1.50"]),
    (texts([datetime.date(2020, 1, 2)]), [b"2020-01-02"]),
    (texts([datetime.datetime(2020, 1, 2, 3)]), [b"2020-01-02T03:00:00"]),
]


@pytest.mark.parametrize(("column", "found"), COLUMNS, ids=lambda value: str(getattr(value, "type", "")))
def test_every_type_that_holds_text_or_a_value_is_read(
    tmp_path: Path, column: Any, found: list[bytes]
) -> None:
    odd = pyarrow.array([5] * len(column), pyarrow.duration("s"))
    never = pyarrow.array([9 * 10**18] * len(column), pyarrow.timestamp("us"))
    file = write(tmp_path, {"odd": odd, "text": column, "never": never})
    assert documents(opened(records("parquet", file))) == found


@pytest.mark.parametrize(
    ("value", "kind", "reason"),
    [
        (None, pyarrow.string(), "null"),
        (b"\xff", pyarrow.binary(), "not UTF-8"),
        (float("nan"), pyarrow.float32(), "NaN or infinite"),
        (["x"], pyarrow.list_(pyarrow.string()), "a list"),
        ([1], pyarrow.list_(pyarrow.int64()), "a list"),
        ({"a": "x"}, pyarrow.struct([("a", pyarrow.string())]), "an object"),
        (5, pyarrow.duration("s"), "a timedelta"),
    ],
)
def test_what_is_no_text_is_refused_or_counted(tmp_path: Path, value: Any, kind: Any, reason: str) -> None:
    write(tmp_path, {"text": ["x"], "n": ["0"]}, "a.parquet")
    write(tmp_path, {"text": pyarrow.array([value], kind), "n": ["1"]}, "b.parquet")
    with refused("b.parquet: row 1", 'on_error = "skip"', kind=DataError):
        documents(opened(records("parquet", tmp_path)))
    source = opened(records("parquet", tmp_path, field=None, template="{n}: {text}", on_error="skip"))
    assert documents(source) == [b"0: x"]
    assert source.notes[0].startswith(f"1 record skipped: 1 {reason}; the first: ")


@pytest.mark.parametrize(
    ("columns", "field", "found"),
    [
        ({"a": [{"b": {"c": "x"}}]}, "a.b.c", b"x"),
        ({"a.b": ["dotted"], "a": [{"b": "nested"}]}, "a.b", b"dotted"),
        ({"a.b": ["dotted"], "a": [{"c": "nested"}]}, "a.c", b"nested"),
        ({"a.b": [{"c": "half"}]}, "a.b.c", b"half"),
        ({"m": [[{"content": "first"}, {"content": "second"}]]}, "m.1.content", b"second"),
        ({"m": [["one", "two"]]}, "m.0", b"one"),
    ],
)
def test_names_with_dots_lead_inside(
    tmp_path: Path, columns: dict[str, list[Any]], field: str, found: bytes
) -> None:
    file = write(tmp_path, {name: pyarrow.array(values) for name, values in columns.items()})
    assert documents(opened(records("parquet", file, field=field))) == [found]


@pytest.mark.parametrize(
    "kind",
    [
        pyarrow.list_(pyarrow.uint16()),
        pyarrow.large_list(pyarrow.int64()),
        pyarrow.list_(pyarrow.int32(), 2),
    ],
)
def test_lists_of_ids_are_tokens(tmp_path: Path, kind: Any) -> None:
    file = write(tmp_path, {"a": pyarrow.array([{"ids": [1, 2]}], pyarrow.struct([("ids", kind)]))})
    (found,) = documents(opened(records("parquet", file, field=None, sequence_field="a.ids")))
    assert list(found) == [1, 2]


def test_an_id_beyond_63_bits_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path, {"ids": pyarrow.array([[2**63]], pyarrow.list_(pyarrow.uint64()))})
    with refused("row 1", "beyond 63 bits", kind=DataError):
        documents(opened(records("parquet", file, field=None, sequence_field="ids")))


def test_a_column_that_is_missing_in_one_file_or_there_twice(tmp_path: Path) -> None:
    write(tmp_path, {"text": ["x"]}, "a.parquet")
    write(tmp_path, {"body": ["y", "z"]}, "b.parquet")
    with refused("b.parquet: row 1", 'no field "text"', '"body"', kind=DataError):
        documents(opened(records("parquet", tmp_path)))
    source = opened(records("parquet", tmp_path, on_error="skip"))
    assert documents(source) == [b"x"]
    assert "2 without field text" in source.notes[0]
    twice = pyarrow.Table.from_arrays([texts(["x"]), texts(["y"])], ["text", "text"])
    with refused('more than one column "text"', kind=DataError):
        documents(opened(records("parquet", write(tmp_path, twice))))


def test_damaged_files_are_the_users_mistake_not_the_systems(tmp_path: Path) -> None:
    file = write(tmp_path, {"text": ["word " * 100]})
    whole = file.read_bytes()
    for content in (b"", b"text", whole[:-20], whole[:20] + b"\xff" * 40 + whole[60:]):
        file.write_bytes(content)
        with refused("t.parquet", "damaged or not a parquet file", kind=DataError):
            documents(opened(records("parquet", file)))
    file.write_bytes(gzip.compress(whole))
    with refused("t.parquet", "is compressed", "unpack it", kind=DataError):
        documents(opened(records("parquet", file)))


def test_a_large_row_group_is_read_in_bounded_memory(tmp_path: Path) -> None:
    rows = pyarrow.table({"text": [f"{n} " + "word " * 400 for n in range(4000)]})
    parquet.write_table(rows, tmp_path / "t.parquet", compression="none", use_dictionary=False)
    source = opened(records("parquet", tmp_path / "t.parquet"))
    before = pyarrow.total_allocated_bytes()
    most = max(pyarrow.total_allocated_bytes() for _ in source.pieces()) - before
    assert most < 4 << 20
