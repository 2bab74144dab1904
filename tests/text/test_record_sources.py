"""JSON lines, CSV and templates: strict, with file and line, or skipped and counted."""

from __future__ import annotations

import contextlib
import csv
import gzip
import json
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from text_helpers import documents, opened, records, refused

from wyrmling.errors import ConfigError, DataError
from wyrmling.text.sources.rendering import Rendering, parse_template


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
    compressed = tmp_path / "data.jsonl.gz"
    compressed.write_bytes(gzip.compress(content.encode("utf-8")))
    assert documents(opened(records("jsonl", compressed))) == documents(source)


BAD_RECORDS = [
    (b'{"text": "x"', "line ends before the object does", "not JSON"),
    (b'{"text": "x', "line ends before the object does", "not JSON"),
    (b'{"text": "x"},', "a comma follows", "not JSON"),
    (b'{"text": "x",}', "not valid JSON", "not JSON"),
    (b"text", "not valid JSON", "not JSON"),
    (b'["text"]', "not a JSON object", "not an object"),
    (b"null", "not a JSON object", "not an object"),
    (b'{"words": "x"}', 'no field "text" (there is: "words")', "without field text"),
    (b"{}", "there is: nothing", "without field text"),
    (b'{"text": null}', "is null", "null"),
    (b'{"text": ["x"]}', '"text.0"', "a list"),
    (b'{"text": [1, 2]}', "dataset.sequence_field", "a list"),
    (b'{"text": {"x": 1}}', '"text.x"', "an object"),
    (b'{"text": "\\ud800"}', "surrogate", "half of a surrogate pair"),
    (b'{"text": "\xff"}', "invalid UTF-8", "not UTF-8"),
    (b'{"text": NaN}', "is nan", "NaN or infinite"),
    (b'{"text": -Infinity}', "is -inf", "NaN or infinite"),
    (b"[" * 100_000, "nested too deeply", "not JSON"),
]


@pytest.mark.parametrize(("line", "reason", "kind"), BAD_RECORDS)
def test_a_malformed_record_stops_with_file_and_line_or_is_left_out_and_counted(
    tmp_path: Path, line: bytes, reason: str, kind: str
) -> None:
    file = jsonl(tmp_path, b'{"text": "good"}\n' + line + b'\n{"text": "after"}\n')
    with refused("data.jsonl:2: ", reason, 'on_error = "skip"', kind=DataError):
        documents(opened(records("jsonl", file)))
    source = opened(records("jsonl", file, on_error="skip"))
    assert documents(source) == [b"good", b"after"]
    assert len(source.notes) == 1
    assert source.notes[0].startswith(f"1 record skipped: 1 {kind}; the first: ")
    assert "data.jsonl:2: " in source.notes[0]


def test_records_left_out_are_counted_by_reason(tmp_path: Path) -> None:
    lines = ['{"text": "x"}', *['{"a": 1}'] * 9, *['{"text": null}'] * 2, "{", '{"text": ""}']
    source = opened(records("jsonl", jsonl(tmp_path, "\n".join(lines)), on_error="skip"))
    assert documents(source) == [b"x"]
    assert source.notes[0] == "1 empty document skipped"
    assert source.notes[1].startswith(
        "12 records skipped: 9 without field text, 2 null, 1 not JSON; the first: "
    )


def test_what_nobody_asked_for_never_refuses_a_record(tmp_path: Path) -> None:
    others = [
        b"NaN",
        b"-Infinity",
        b"9" * 5000,
        b"1e999",
        b'"\\ud800"',
        b'"\xff"',
        b"null",
        b"[1, {}]",
        b'{"text": null}',
        b"[" * 200 + b"]" * 200,
    ]
    file = jsonl(tmp_path, b"".join(b'{"other": ' + other + b', "text": "x"}\n' for other in others))
    source = opened(records("jsonl", file))
    assert documents(source) == [b"x"] * len(others)
    assert source.notes == []


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("5", b"5"),
        ("1.50", b"1.50"),
        ("-0", b"-0"),
        ("1E400", b"1E400"),
        ("9" * 5000, b"9" * 5000),
        ("true", b"true"),
        ('"\\ud83d\\ude42 \\u0000"', "\U0001f642 \0".encode()),
    ],
)
def test_numbers_and_booleans_are_text_as_they_are_written(tmp_path: Path, value: str, text: bytes) -> None:
    assert documents(opened(records("jsonl", jsonl(tmp_path, f'{{"text": {value}}}')))) == [text]


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("a.b", b"inner"),
        ("a.list.1", b"two"),
        ("a.list.2.c", b"three"),
        ("x.y", b"dotted"),
        ("deep.x.y", b"half dotted"),
        ("n.0", b"key of a digit"),
    ],
)
def test_names_with_dots_lead_inside(tmp_path: Path, field: str, text: bytes) -> None:
    line = (
        '{"a": {"b": "inner", "list": ["one", "two", {"c": "three"}]}, "x.y": "dotted", "x": {"y": "hidden"}, '
        '"deep": {"x.y": "half dotted"}, "n": {"0": "key of a digit"}}'
    )
    file = jsonl(tmp_path, line)
    assert documents(opened(records("jsonl", file, field=field))) == [text]
    assert documents(opened(records("jsonl", file, template="<{" + field + "}>"))) == [b"<" + text + b">"]
    for wrong in ("a.c", "a.b.c", "a.list.3", "a.list.-1", "a.list.x", "a.", ".a", "nothing.b"):
        with refused("data.jsonl:1", f'no field "{wrong}"', "name another field", kind=DataError):
            documents(opened(records("jsonl", file, field=wrong)))


def test_what_lies_inside_of_null_is_null(tmp_path: Path) -> None:
    file = jsonl(tmp_path, '{"a": {"b": null}}\n{"a": null}\n{"a": {"b": {"c": "x"}}}\n')
    source = opened(records("jsonl", file, field="a.b.c", on_error="skip"))
    assert documents(source) == [b"x"]
    assert source.notes[0].startswith("2 records skipped: 2 null; ")


def test_a_list_of_ids_is_tokens_where_that_is_asked_for(tmp_path: Path) -> None:
    file = jsonl(tmp_path, '{"a": {"ids": [1, 2, 70000]}, "x": 1.5, "big": ' + "9" * 5000 + "}\n")
    table = records("jsonl", file, field=None, sequence_field="a.ids")
    assert [document.tolist() for document in documents(opened(table))] == [[1, 2, 70000]]
    with refused("data.jsonl:1", "not a list of whole numbers", kind=DataError):
        documents(opened(records("jsonl", file, sequence_field="x")))


@pytest.mark.parametrize(
    "content",
    [
        '[{"text": "a"}, {"text": "b"}]',
        '\ufeff\n [\r\n  {\r\n    "text": "a"\r\n  },\r\n  {"text": "b"},\r\n]\r\n',
        '{"text": "a"}{"text": "b"}',
        '{"text": "a"}\n\ufeff{"text": "b"}\n',
        '\x1e{"text": "a"}\n\x1e{"text": "b"}\n',
        '{"text": "a"} {"text": "b"}\r\n\r\n',
        '[{"n": [[1], "]"], "text": "a"},\n{"text": "b"}\n]\n\n',
        '{\n  "text": "a"\n}\n{\n  "text": "b"\n}',
        '\n{\r\n  "x": {\r\n},"text": "a"\r\n}{"text": "b"}\r\n',
    ],
)
def test_arrays_and_objects_laid_out_in_any_way_are_read_too(tmp_path: Path, content: str) -> None:
    assert documents(opened(records("jsonl", jsonl(tmp_path, content)))) == [b"a", b"b"]


@pytest.mark.parametrize("size", [1, 7, 1 << 18])
def test_an_array_may_be_cut_anywhere_while_it_is_read(
    tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wyrmling.text.sources.files.CHUNK_BYTES", size)
    texts = ["é\U0001f642", 'quote " and \\ and ]', "x" * 300, "\n", "last"]
    items = [{"n": [-1.5e3, True, None, {}], "text": text} for text in texts]
    content = (
        "[\n"
        + ",\n".join(json.dumps(item, ensure_ascii=index % 2 == 0) for index, item in enumerate(items))
        + "\n]"
    )
    file = jsonl(tmp_path, content)
    source = opened(records("jsonl", file))
    assert documents(source) == [text.encode() for text in texts]
    assert [piece.origin for piece in source.pieces()] == [f"{file}:{number}" for number in range(2, 7)]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('[{"text": "a"},\n{"text": "b"', ["data.jsonl:2", "the file ends inside it"]),
        ('[{"text": "a"},\n', ["data.jsonl:2", "the file ends inside it"]),
        ('[{"text": "a"}', ["data.jsonl:1", "the file ends inside it"]),
        ('[{"text": "a"}\n{"text": "b"}]' + " " * 40, ["data.jsonl:2", "a comma is missing"]),
        ('[{"text": "a"},\n{text: "b"}]' + " " * 40, ["data.jsonl:2", "property name"]),
        ('[{"text": "a"}]\n[{"text": "b"}]\n', ["data.jsonl:2", "something follows the array"]),
        ('{\n"text": "a"\n}\n{\n"text": "b"\n', ["data.jsonl:4", "the file ends inside it"]),
    ],
)
@pytest.mark.parametrize("on_error", ["error", "skip"])
def test_an_array_that_is_damaged_is_refused_where_it_is(
    tmp_path: Path, content: str, words: list[str], on_error: str
) -> None:
    with refused(*words, kind=DataError):
        documents(opened(records("jsonl", jsonl(tmp_path, content), on_error=on_error)))


def test_a_key_twice_is_told_and_the_last_value_counts(tmp_path: Path) -> None:
    source = opened(records("jsonl", jsonl(tmp_path, '{"text": "x"}\n' + '{"text": "a", "text": "b"}\n' * 3)))
    assert documents(source) == [b"x", b"b", b"b", b"b"]
    assert len(source.notes) == 1
    assert "twice" in source.notes[0]
    assert "3" in source.notes[0]
    assert 'data.jsonl:2 ("text")' in source.notes[0]


def test_empty_texts_are_skipped_and_a_file_of_only_empty_texts_is_refused(tmp_path: Path) -> None:
    mixed = opened(records("jsonl", jsonl(tmp_path, '{"text": ""}\n{"text": "x"}\n{"text": ""}\n')))
    assert documents(mixed) == [b"x"]
    assert mixed.notes == ["2 empty documents skipped"]
    for content in ('{"text":""}\n' * 3, "", "\n\n"):
        with refused("data.jsonl", "nothing to train on", kind=DataError):
            documents(opened(records("jsonl", jsonl(tmp_path, content))))
    only_bad = records("jsonl", jsonl(tmp_path, "{x\n"), on_error="skip")
    with refused("nothing to train on", "1 not JSON", "data.jsonl:1", kind=DataError):
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
    assert Rendering(parse_template(template))(record) == expected.encode()
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
    ("row", "reason", "kind"),
    [
        (b"only", "number 2 of 1", "without field text"),
        (b"1,\xff", 'invalid UTF-8 in field "text": byte 0xff', "not UTF-8"),
        (b'1,"a"b', "not valid CSV", "not valid CSV"),
        (b"1,a\rb", "not valid CSV", "not valid CSV"),
    ],
)
def test_a_malformed_csv_row_stops_with_file_and_line_or_is_left_out(
    tmp_path: Path, row: bytes, reason: str, kind: str
) -> None:
    file = csv_file(tmp_path, b"id,text\n1,one\n" + row + b"\n2,after\n")
    with refused("data.csv:3: ", reason, kind=DataError):
        documents(opened(records("csv", file)))
    source = opened(records("csv", file, on_error="skip"))
    assert documents(source) == [b"one", b"after"]
    assert source.notes[0].startswith(f"1 record skipped: 1 {kind}; the first: ")


@pytest.mark.parametrize("on_error", ["error", "skip"])
def test_a_quote_that_is_never_closed_always_stops(tmp_path: Path, on_error: str) -> None:
    file = csv_file(tmp_path, b'text\nfine\n"open\nand all\nthe rest\n')
    with refused("data.csv:3: ", "never closed", 'dataset.quote = "off"', kind=DataError):
        documents(opened(records("csv", file, on_error=on_error)))


def test_records_over_several_lines_are_told_with_the_longest(tmp_path: Path) -> None:
    content = b'id\ttext\n1\t"two\nlines"\n2\tplain\n3\t"swallows\n4\tfour\n5\tand five"\n6\tlast\n'
    file = jsonl(tmp_path, content, "data.tsv")
    source = opened(records("csv", file))
    assert documents(source) == [b"two\nlines", b"plain", b"swallows\n4\tfour\n5\tand five", b"last"]
    assert len(source.notes) == 1
    assert source.notes[0].startswith("2 records carried over several lines by quotes, the longest over 3 (")
    assert "data.tsv:5" in source.notes[0]
    assert 'dataset.quote = "off"' in source.notes[0]
    plain = opened(records("csv", file, quote=None, on_error="skip"))
    assert documents(plain) == [b'"two', b"plain", b'"swallows', b"four", b'and five"', b"last"]
    assert plain.notes[0].startswith("1 record skipped: 1 without field text; ")


def test_columns_that_nobody_asked_for_may_be_unnamed_doubled_missing_or_damaged(tmp_path: Path) -> None:
    content = b"v1,v2,,,\xff,v1\nham,one,,,\xff,x\nham,two\nham,three,,,,,,\nspam,four,a,b,c,d,e,f\n"
    source = opened(records("csv", csv_file(tmp_path, content), field="v2"))
    assert documents(source) == [b"one", b"two", b"three", b"four"]
    assert len(source.notes) == 1
    assert "more fields than the header: 1, the first: " in source.notes[0]
    assert "data.csv:5" in source.notes[0]
    with refused("data.csv:1", '"v1" more than once', '"1" or "6"', kind=DataError):
        documents(opened(records("csv", csv_file(tmp_path, content), field="v1")))
    assert documents(opened(records("csv", csv_file(tmp_path, content), field="1")))[-1] == b"spam"


def test_a_file_without_a_header_has_numbered_columns(tmp_path: Path) -> None:
    file = csv_file(tmp_path, b"ham,one\nspam,two,more\n")
    table = records("csv", file, header=False, template="{2} is {1}")
    source = opened(table)
    assert documents(source) == [b"one is ham", b"two is spam"]
    assert "more fields than the first row: 1" in source.notes[0]
    with refused("dataset.field", "header = false", '"text"', kind=ConfigError):
        opened(records("csv", file, header=False))


@pytest.mark.parametrize(
    ("name", "content", "keys"),
    [
        ("data.tsv", b'text\tn\n"a, b"\t1\n', {}),
        ("data.TAB", b"n\ttext\r\n1\ta, b\r\n", {}),
        ("data.csv", b'n\ttext\n1\t"a, b"\n', {"delimiter": "\t"}),
        ("data.csv", b"sep=;\r\nn;text\r\n1;a, b\r\n", {}),
        ("data.csv", b'\xef\xbb\xbf"sep=;"\nn;text\n1;a, b\n', {}),
        ("data.csv", b"sep=,\nn;text\n1;a, b\n", {"delimiter": ";"}),
        ("data.csv", b"\n\r\nn|text\n\n1|'a, b'\n", {"delimiter": "|", "quote": "'"}),
    ],
)
def test_delimiters_come_from_the_key_the_first_line_or_the_name(
    tmp_path: Path, name: str, content: bytes, keys: dict[str, str]
) -> None:
    assert documents(opened(records("csv", jsonl(tmp_path, content, name), **keys))) == [b"a, b"]


@pytest.mark.parametrize("delimiter", [";", "\t", "|"])
@pytest.mark.parametrize("quote", ['"', None])
def test_another_delimiter_than_the_files_is_guessed_in_the_error(
    tmp_path: Path, delimiter: str, quote: str | None
) -> None:
    file = csv_file(tmp_path, f"id{delimiter}text\n1{delimiter}one\n".encode())
    with refused("data.csv:2", f"is dataset.delimiter {json.dumps(delimiter)}?", kind=DataError):
        documents(opened(records("csv", file, quote=quote)))


def test_a_csv_header_must_have_the_columns_that_are_used(tmp_path: Path) -> None:
    with refused("data.csv:1", "more than once", '"text"', kind=DataError):
        documents(opened(records("csv", csv_file(tmp_path, b"text,text\n1,2\n"))))
    with refused("data.csv:2", 'no field "text"', '"body"', kind=DataError):
        documents(opened(records("csv", csv_file(tmp_path, b"body\nx\n"))))
    with refused("data.csv:1", "first row is not valid CSV", kind=DataError):
        documents(opened(records("csv", csv_file(tmp_path, b"a,text\r1,x\r2,y\r"))))
    with refused("data.csv:1", 'no field "text"', '"id"', kind=DataError):
        documents(opened(records("csv", csv_file(tmp_path, b"id\n"))))
    for content in (b"", b"text\n"):
        with refused("data.csv", "nothing to train on", kind=DataError):
            documents(opened(records("csv", csv_file(tmp_path, content))))
    for keys in ({"delimiter": ";;"}, {"quote": "''"}, {"delimiter": '"'}):
        with refused("dataset.", kind=ConfigError):
            opened(records("csv", csv_file(tmp_path, b"text\n1\n"), **keys))


@pytest.mark.parametrize("quote", ['"', None])
def test_a_nul_and_other_control_characters_are_text(tmp_path: Path, quote: str | None) -> None:
    file = csv_file(tmp_path, "text\na\0b\x01\u0085\u2028\n".encode())
    assert documents(opened(records("csv", file, quote=quote))) == ["a\0b\x01\u0085\u2028".encode()]


def test_the_limit_of_the_csv_module_is_the_hosts(tmp_path: Path) -> None:
    file = csv_file(tmp_path, b"text\n" + b"w" * 300_000 + b"\nx\n")
    before = csv.field_size_limit()
    pieces = opened(records("csv", file)).pieces()
    next(pieces)
    assert csv.field_size_limit() == before


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


def test_many_records_are_left_out_in_bounded_memory(tmp_path: Path) -> None:
    file = csv_file(tmp_path, b"id,text\n0,x\n" + b"1\n" * 20_000)
    for field in ("text", "body"):
        source = opened(records("csv", file, field=field, on_error="skip"))
        tracemalloc.start()
        with contextlib.suppress(DataError):
            documents(source)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert "without field" in source.notes[0]
        assert peak < 1 << 20


def test_a_record_longer_than_the_limit_is_refused_or_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("lines", "json_values", "delimited"):
        monkeypatch.setattr(f"wyrmling.text.sources.{module}.RECORD_BYTES", 100)
    long = b'{"text": "' + b"w" * 200 + b'"}\n'
    for content, line in ((b'{"text": "ok"}\n' + long, 2), (long + b'{"text": "ok"}\n', 1)):
        file = jsonl(tmp_path, content)
        with refused(f"data.jsonl:{line}", "longer than", kind=DataError):
            documents(opened(records("jsonl", file)))
        source = opened(records("jsonl", file, on_error="skip"))
        assert documents(source) == [b"ok"]
        assert "1 too long" in source.notes[0]
    with refused("data.jsonl:1", "longer than", kind=DataError):
        documents(opened(records("jsonl", jsonl(tmp_path, b"[" + long.strip() + b"]"))))
