"""JSON lines, CSV and templates: strict, with file and line, or skipped and counted."""

from __future__ import annotations

import gzip
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from text_helpers import documents, opened, records, refused

from wyrmling.errors import ConfigError, DataError
from wyrmling.text.sources.rendering import parse_template, template_text


def jsonl(tmp_path: Path, content: bytes | str, name: str = "data.jsonl") -> Path:
    file = tmp_path / name
    file.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)
    return file


def test_json_lines_give_one_document_a_record_exactly_as_written(tmp_path: Path) -> None:
    content = '\ufeff{"text": "one\\r\\n\\u00e9"}\n\n  \t\r\n'
    content += '{"text": "two \\ud83d\\ude42", "id": 7}\r\n{"text": "\u2028"}'
    file = jsonl(tmp_path, content)
    source = opened(records("jsonl", file))
    assert documents(source) == ["one\r\né".encode(), "two \U0001f642".encode(), "\u2028".encode()]
    assert [piece.origin for piece in source.pieces()] == [f"{file}:1", f"{file}:4", f"{file}:5"]
    assert any("byte order mark" in note for note in source.notes)
    packed = tmp_path / "data.jsonl.gz"
    packed.write_bytes(gzip.compress(content.encode("utf-8")))
    assert documents(opened(records("jsonl", packed))) == documents(source)


BAD_RECORDS = [
    (b'{"text": "x"', "not valid JSON"),
    (b'["text"]', "not a JSON object"),
    (b'{"words": "x"}', 'no field "text"'),
    (b'{"text": null}', "is null"),
    (b'{"text": 5}', "is a number"),
    (b'{"text": true}', "is a boolean"),
    (b'{"text": ["x"]}', "is a list"),
    (b'{"text": {"x": 1}}', "is an object"),
    (b'{"text": "\\ud800"}', "surrogate"),
    (b'{"text": "\xff"}', "invalid UTF-8 at byte offset 10"),
    (b'{"text": NaN}', "NaN is no JSON number"),
    (b"[" * 100_000, "not valid JSON"),
    (b'{"text": ' + b"9" * 5000 + b"}", "is a number"),
]


@pytest.mark.parametrize(("line", "reason"), BAD_RECORDS)
def test_a_malformed_record_stops_with_file_and_line_or_is_dropped_and_counted(
    tmp_path: Path, line: bytes, reason: str
) -> None:
    file = jsonl(tmp_path, b'{"text": "good"}\n' + line + b'\n{"text": "after"}\n')
    with refused("data.jsonl:2: ", reason, 'on_error = "skip"', kind=DataError):
        documents(opened(records("jsonl", file)))
    source = opened(records("jsonl", file, on_error="skip"))
    assert documents(source) == [b"good", b"after"]
    assert len(source.notes) == 1
    assert source.notes[0].startswith("1 malformed record dropped, the first: ")
    assert "data.jsonl:2: " in source.notes[0]


def test_empty_texts_are_skipped_and_a_file_of_only_empty_texts_is_refused(tmp_path: Path) -> None:
    mixed = opened(records("jsonl", jsonl(tmp_path, '{"text": ""}\n{"text": "x"}\n{"text": ""}\n')))
    assert documents(mixed) == [b"x"]
    assert mixed.notes == ["2 empty documents skipped"]
    for content in ('{"text":""}\n' * 3, "", "\n\n"):
        with refused("data.jsonl", "nothing to train on", kind=DataError):
            documents(opened(records("jsonl", jsonl(tmp_path, content))))
    only_bad = records("jsonl", jsonl(tmp_path, "{\n"), on_error="skip")
    with refused("nothing to train on", "1 malformed record dropped", "data.jsonl:1", kind=DataError):
        documents(opened(only_bad))


def test_folders_of_records_are_read_and_others_refused(tmp_path: Path) -> None:
    jsonl(tmp_path, '{"text": "b"}\n', "b.jsonl")
    jsonl(tmp_path, '{"text": "a"}\n', "a.ndjson")
    assert documents(opened(records("jsonl", tmp_path))) == [b"a", b"b"]
    with refused("dataset.path", ".csv", kind=DataError):
        opened(records("csv", tmp_path))


def test_templates_take_strings_numbers_and_booleans(tmp_path: Path) -> None:
    file = jsonl(
        tmp_path, '{"q": "why?", "n": 1.50, "big": 123456789012345678901, "ok": false, "none": null}\n'
    )
    table = records("jsonl", file, template="{{{q}}} {n} {big} { ok }")
    assert documents(opened(table)) == [b"{why?} 1.50 123456789012345678901 false"]
    with refused("data.jsonl:1", '"none" is null', kind=DataError):
        documents(opened(records("jsonl", file, template="{none}")))
    with refused("data.jsonl:1", 'no field "nope"', '"q", "n"', kind=DataError):
        documents(opened(records("jsonl", file, template="{q} {nope}")))


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{a", "never closed"),
        ("x {a {b}", "never closed"),
        ("{}", "names no field"),
        ("{ }", "names no field"),
        ("a}", "never opened"),
        ("{{a}}", "no {field}"),
        ("", "no {field}"),
    ],
)
def test_a_wrong_template_is_refused_when_the_source_is_opened(
    tmp_path: Path, template: str, reason: str
) -> None:
    with refused("dataset.template", reason, kind=ConfigError):
        opened(records("jsonl", jsonl(tmp_path, "{}"), template=template))


@given(st.lists(st.tuples(st.booleans(), st.text("ab{}\n ", min_size=1, max_size=5))))
def test_escaped_braces_come_out_as_braces(parts: list[tuple[bool, str]]) -> None:
    names = [text for is_field, text in parts if is_field and text.strip(" \n{}")]
    template, expected = "{x}", "1"
    record = {"x": "1"}
    for is_field, text in parts:
        if is_field and text.strip(" \n{}"):
            name = "".join(c for c in text if c not in "{} \n")
            template += f"{{{name}}}"
            record[name] = f"<{name}>"
            expected += record[name]
        else:
            template += text.replace("{", "{{").replace("}", "}}")
            expected += text
    assert template_text(template)(record) == expected.encode()
    assert len([1 for literal, _ in parse_template(template) if not literal]) == len(names) + 1


def csv_file(tmp_path: Path, content: bytes) -> Path:
    return jsonl(tmp_path, content, "data.csv")


def test_csv_fields_may_hold_delimiters_quotes_and_line_ends(tmp_path: Path) -> None:
    file = csv_file(
        tmp_path, b'\xef\xbb\xbfid,text\r\n1,"a, ""b""\r\nc"\r\n\r\n2,' + "é\u2028".encode() + b"\r\n3,last"
    )
    source = opened(records("csv", file))
    assert documents(source) == [b'a, "b"\r\nc', "é\u2028".encode(), b"last"]
    assert [piece.origin for piece in source.pieces()] == [f"{file}:2", f"{file}:5", f"{file}:6"]
    semicolons = csv_file(tmp_path, b"a;b\n1;2\n")
    assert documents(opened(records("csv", semicolons, delimiter=";", template="{b}{a}"))) == [b"21"]


def test_csv_takes_fields_longer_than_the_module_does_by_itself(tmp_path: Path) -> None:
    file = csv_file(tmp_path, b"text\n" + b"w" * 300_000 + b"\n")
    assert documents(opened(records("csv", file))) == [b"w" * 300_000]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (b"only", "1 fields, the header names 2"),
        (b"1,2,3", "3 fields, the header names 2"),
        (b"1,\xff", 'invalid UTF-8 in field "text"'),
        (b'1,"a"b', "not valid CSV"),
        (b"1,a\rb", "not valid CSV"),
    ],
)
def test_a_malformed_csv_row_stops_with_file_and_line_or_is_dropped(
    tmp_path: Path, row: bytes, reason: str
) -> None:
    file = csv_file(tmp_path, b'id,text\n1,"two\nlines"\n' + row + b"\n2,after\n")
    with refused("data.csv:4: ", reason, kind=DataError):
        documents(opened(records("csv", file)))
    source = opened(records("csv", file, on_error="skip"))
    assert documents(source) == [b"two\nlines", b"after"]
    assert "1 malformed record dropped" in source.notes[0]


@pytest.mark.parametrize("on_error", ["stop", "skip"])
def test_a_quote_that_is_never_closed_always_stops(tmp_path: Path, on_error: str) -> None:
    file = csv_file(tmp_path, b'text\nfine\n"open\nand all\nthe rest\n')
    with refused("data.csv:3: ", "never closed", kind=DataError):
        documents(opened(records("csv", file, on_error=on_error)))


def test_a_csv_header_must_make_sense(tmp_path: Path) -> None:
    with refused("data.csv:1", "more than once", '"text"', kind=DataError):
        documents(opened(records("csv", csv_file(tmp_path, b"text,text\n1,2\n"))))
    with refused("data.csv:2", 'no field "text"', '"body"', kind=DataError):
        documents(opened(records("csv", csv_file(tmp_path, b"body\nx\n"))))
    with refused("data.csv:1", "invalid UTF-8", kind=DataError):
        documents(opened(records("csv", csv_file(tmp_path, b"te\xffxt\nx\n"))))
    for content in (b"", b"text\n"):
        with refused("data.csv", "nothing to train on", kind=DataError):
            documents(opened(records("csv", csv_file(tmp_path, content))))
    with refused("dataset.delimiter", kind=ConfigError):
        opened(records("csv", csv_file(tmp_path, b"text\n1\n"), delimiter=";;"))


def test_many_records_are_read_in_bounded_memory(tmp_path: Path) -> None:
    file = jsonl(tmp_path, b'{"text": "' + b"word " * 2000 + b'"}\n')
    one = file.read_bytes()
    with file.open("ab") as stream:
        for _ in range(1500):
            stream.write(one)
    source = opened(records("jsonl", file))
    tracemalloc.start()
    count = sum(piece.starts_document for piece in source.pieces())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 1501
    assert peak < 2 << 20


def test_a_record_longer_than_the_limit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wyrmling.text.sources.records.RECORD_BYTES", 100)
    file = jsonl(tmp_path, b'{"text": "ok"}\n{"text": "' + b"w" * 200 + b'"}\n')
    with refused("data.jsonl:2", "longer than", kind=DataError):
        documents(opened(records("jsonl", file)))
