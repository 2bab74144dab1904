"""Dataset repositories: from a folder, from the hub, from its cache; jsonl, text, csv and parquet."""

from __future__ import annotations

import builtins
import csv
import json
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from text_helpers import documents, opened, refused

from wyrmling.errors import ConfigError, DataError
from wyrmling.text.sources import open_source, open_validation_source

pyarrow = pytest.importorskip("pyarrow")
ROWS: list[dict[str, Any]] = [
    {"text": "one", "n": 1},
    {"text": "two\n", "n": 2},
    {"text": "", "n": 3},
    {"text": "é", "n": 4},
]


def table(local_dir: Path | None, **keys: Any) -> SimpleNamespace:
    defaults = {
        "type": "hugging_face",
        "repo_id": "owner/name",
        "revision": None,
        "token": None,
        "format": "jsonl",
        "train_files": ("train.jsonl",),
        "validation_files": (),
        "text_fields": ("text",),
        "sequence_field": None,
        "field_separator": "\n",
        "field": None,
        "template": None,
        "on_error": "error",
        "delimiter": None,
        "quote": '"',
        "header": True,
        "max_records": None,
        "local_dir": local_dir,
    }
    return SimpleNamespace(**{**defaults, **keys})


def write_rows(folder: Path, kind: str, rows: list[dict[str, Any]], name: str = "train") -> str:
    file = folder / f"{name}.{kind}"
    if kind == "jsonl":
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif kind == "csv":
        with file.open("w", newline="", encoding="utf-8") as stream:
            writer = csv.DictWriter(stream, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    elif kind == "text":
        file.write_text("".join(row["text"].rstrip("\n") + "\n" for row in rows), encoding="utf-8")
    else:
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), file, row_group_size=2)
    return file.name


@pytest.mark.parametrize("kind", ["jsonl", "csv", "text", "parquet"])
def test_every_format_gives_the_same_documents_each_with_a_line_end(tmp_path: Path, kind: str) -> None:
    name = write_rows(tmp_path, kind, ROWS)
    source = opened(table(tmp_path, format=kind, train_files=[name]))
    assert documents(source) == [b"one\n", b"two\n", "é\n".encode()]
    if kind != "text":
        assert source.notes[0] == "1 empty document skipped"


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_fields_are_joined_or_put_into_a_template(tmp_path: Path, kind: str) -> None:
    name = write_rows(tmp_path, kind, ROWS[:2])
    joined = table(tmp_path, format=kind, train_files=[name], text_fields=["n", "text"], field_separator=": ")
    assert documents(opened(joined)) == [b"1: one\n", b"2: two\n"]
    template = table(tmp_path, format=kind, train_files=[name], template="{text}|{n}")
    assert documents(opened(template)) == [b"one|1\n", b"two\n|2\n"]


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_lists_of_integers_are_tokens(tmp_path: Path, kind: str) -> None:
    rows = [{"ids": [1, 2, 3]}, {"ids": []}, {"ids": [70000]}]
    name = write_rows(tmp_path, kind, rows)
    source = opened(table(tmp_path, format=kind, train_files=[name], sequence_field="ids"))
    assert [document.tolist() for document in documents(source)] == [[1, 2, 3], [70000]]
    assert source.notes == ["1 empty document skipped"]


@pytest.mark.parametrize(
    "row", [{"ids": [1, 2.5]}, {"ids": [1, None]}, {"ids": "1 2"}, {"ids": None}, {"ids": [True]}, {"x": [1]}]
)
@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_what_is_no_list_of_integers_is_refused(tmp_path: Path, kind: str, row: dict[str, Any]) -> None:
    name = write_rows(tmp_path, kind, [row])
    with refused(name, kind=DataError):
        documents(opened(table(tmp_path, format=kind, train_files=[name], sequence_field="ids")))


def test_an_id_beyond_all_vocabularies_is_refused(tmp_path: Path) -> None:
    write_rows(tmp_path, "jsonl", [{"ids": [2**64]}])
    with refused("train.jsonl:1", "beyond 18 digits", kind=DataError):
        documents(opened(table(tmp_path, sequence_field="ids")))


def test_max_records_counts_over_all_files_and_per_split(tmp_path: Path) -> None:
    names = [write_rows(tmp_path, "jsonl", ROWS[:2], name) for name in ("a", "b")]
    keys = table(tmp_path, train_files=names, validation_files=names[:1], max_records=3)
    source = opened(keys)
    assert len(documents(source)) == 3
    assert source.notes == ["stopped after max_records = 3"]
    validation = open_validation_source(keys, cache_dir=tmp_path)
    assert validation is not None
    assert len(documents(validation)) == 2
    assert validation.notes == []
    assert open_validation_source(table(tmp_path), cache_dir=tmp_path) is None


def test_a_validation_table_of_its_own_reads_its_validation_files(tmp_path: Path) -> None:
    names = [write_rows(tmp_path, "jsonl", [{"text": name}], name) for name in ("train", "valid")]
    own = table(tmp_path, train_files=names[0], validation_files=names[1])
    for keys in (own, table(tmp_path, validation=own), SimpleNamespace(type="jsonl", validation=own)):
        validation = open_validation_source(keys, cache_dir=tmp_path)
        assert validation is not None
        assert documents(validation) == [b"valid\n"]
    assert documents(opened(own)) == [b"train\n"]


def test_settings_that_do_not_go_together_are_refused(tmp_path: Path) -> None:
    write_rows(tmp_path, "jsonl", ROWS)
    for keys, words in [
        ({"train_files": ()}, ["dataset.train_files"]),
        ({"text_fields": ()}, ["dataset.text_fields"]),
        ({"format": "csv", "sequence_field": "ids"}, ["dataset.sequence_field", "csv"]),
        ({"format": "xml"}, ["dataset.format", "xml"]),
        ({"template": "{"}, ["dataset.template"]),
    ]:
        with refused(*words, kind=ConfigError):
            opened(table(tmp_path, **keys))


def test_missing_files_folders_and_columns_are_refused(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").mkdir()
    with refused("dataset.train_files", "train.jsonl", "is a folder", kind=DataError):
        opened(table(tmp_path))
    with refused("dataset.train_files", "other.jsonl", "no such file", kind=DataError):
        opened(table(tmp_path, train_files=["other.jsonl"]))
    with refused("dataset.local_dir", "nowhere", kind=DataError):
        opened(table(tmp_path / "nowhere"))
    name = write_rows(tmp_path, "parquet", ROWS)
    with refused(name, 'no field "body"', '"text", "n"', kind=DataError):
        documents(opened(table(tmp_path, format="parquet", train_files=[name], text_fields=["body"])))
    (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:-20])
    with refused(name, "not a parquet file", kind=DataError):
        documents(opened(table(tmp_path, format="parquet", train_files=[name])))


def test_a_parquet_file_of_many_row_groups_is_read_in_bounded_memory(tmp_path: Path) -> None:
    name = write_rows(tmp_path, "parquet", [{"text": "word " * 400, "n": n} for n in range(64)])
    source = opened(table(tmp_path, format="parquet", train_files=[name]))
    before = pyarrow.total_allocated_bytes()
    tracemalloc.start()
    most = max(pyarrow.total_allocated_bytes() for _ in source.pieces()) - before
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 1 << 18
    assert peak < 1 << 20


def test_patterns_of_a_folder_stand_for_its_files_sorted_and_once(tmp_path: Path) -> None:
    folder = tmp_path / "x[1]"
    (folder / "data" / "deep").mkdir(parents=True)
    for name in ("b", "a", "data/c", "data/deep/d", ".hidden"):
        (folder / f"{name}.jsonl").write_text(json.dumps({"text": name}) + "\n")
    (folder / "a[0].jsonl").write_text('{"text": "literal"}\n')

    def found(*names: str) -> list[bytes]:
        return documents(opened(table(folder, train_files=names)))

    assert found("*.jsonl") == [b"a\n", b"literal\n", b"b\n"]
    assert found("data/*.jsonl", "[ab].jsonl") == [b"data/c\n", b"a\n", b"b\n"]
    assert found("**/*.jsonl") == [b"a\n", b"literal\n", b"b\n", b"data/c\n", b"data/deep/d\n"]
    assert found("a[0].jsonl") == [b"literal\n"]
    twice = opened(table(folder, train_files=["b.jsonl", "?.jsonl"]))
    assert documents(twice) == [b"b\n", b"a\n"]
    assert any("more than once" in note for note in twice.notes)
    with refused("dataset.train_files", "*.txt", "no file matches", kind=DataError):
        opened(table(folder, train_files=["*.txt"]))


def test_what_cannot_be_used_is_left_out_and_counted_where_that_is_asked_for(tmp_path: Path) -> None:
    rows = [{"text": "x"}, {"text": None}, {"other": 1}, {"text": "y"}]
    for kind in ("jsonl", "parquet"):
        name = write_rows(tmp_path, kind, rows)
        keys = table(tmp_path, format=kind, train_files=[name])
        with refused(name, "null", 'on_error = "skip"', kind=DataError):
            documents(opened(keys))
        keys.on_error = "skip"
        source = opened(keys)
        assert documents(source) == [b"x\n", b"y\n"]
        assert source.notes[0].startswith("2 records skipped: ")


def test_one_field_with_dots_serves_as_the_list_of_fields(tmp_path: Path) -> None:
    name = write_rows(tmp_path, "jsonl", [{"a": {"b": "deep"}, "text": "flat"}])
    assert documents(opened(table(tmp_path, train_files=[name], field="a.b"))) == [b"deep\n"]
    two = table(tmp_path, train_files=[name], text_fields=["text", "a.b"])
    assert documents(opened(two)) == [b"flat\ndeep\n"]


Hub = Callable[..., None]


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Hub:
    """Puts functions in the place of the hub's download and its other functions."""

    def install(download: Callable[..., str], **others: Callable[..., Any]) -> None:
        module = ModuleType("huggingface_hub")
        vars(module).update(others, hf_hub_download=download)
        monkeypatch.setitem(sys.modules, "huggingface_hub", module)

    return install


def test_files_come_from_the_hub_with_the_token_of_the_settings_or_the_environment(
    tmp_path: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_rows(tmp_path, "jsonl", ROWS)
    asked: list[dict[str, Any]] = []

    def download(**request: Any) -> str:
        asked.append(request)
        return str(tmp_path / request["filename"])

    hub(download)
    monkeypatch.setenv("HF_TOKEN", "  ")
    source = open_source(table(None, revision="v1"), cache_dir=tmp_path / "cache")
    assert len(documents(source)) == 3
    monkeypatch.setenv("HF_TOKEN", "from-environment")
    open_source(table(None), cache_dir=tmp_path)
    secret = open_source(table(None, token=" secret "), cache_dir=tmp_path)
    assert [request["token"] for request in asked] == [None, "from-environment", "secret"]
    assert asked[0]["repo_id"] == "owner/name"
    assert asked[0]["repo_type"] == "dataset"
    assert asked[0]["revision"] == "v1"
    assert asked[0]["cache_dir"] == str(tmp_path / "cache" / "huggingface")
    assert "secret" not in json.dumps(secret.signature()) + " ".join(secret.notes)


def test_without_a_network_the_cache_serves_and_says_so(tmp_path: Path, hub: Hub) -> None:
    write_rows(tmp_path, "jsonl", ROWS)

    def offline(**request: Any) -> str:
        if request.get("local_files_only"):
            return str(tmp_path / request["filename"])
        raise ConnectionError("no route to host")

    hub(offline)
    source = open_source(table(None), cache_dir=tmp_path)
    assert len(documents(source)) == 3
    assert any("taken from the cache: owner/name/train.jsonl" in note for note in source.notes)


def test_a_hub_that_refuses_and_an_empty_cache_are_one_line(tmp_path: Path, hub: Hub) -> None:
    def refuse(**request: Any) -> str:
        raise RuntimeError("404 Client Error.\n\nRepository Not Found for url ...")

    hub(refuse)
    with refused("train.jsonl", "owner/name", "404 Client Error.", "dataset.local_dir", kind=DataError):
        open_source(table(None), cache_dir=tmp_path)


LISTING = [
    "README.md",
    "a.jsonl",
    "data/b.jsonl",
    "data/more/c.jsonl",
    ".x/d.jsonl",
    "data/.e.jsonl",
    "f[1].jsonl",
]


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("*.jsonl", ["a.jsonl", "f[1].jsonl"]),
        ("data/*", ["data/b.jsonl"]),
        ("**/*.jsonl", ["a.jsonl", "data/b.jsonl", "data/more/c.jsonl", "f[1].jsonl"]),
        ("data/**", ["data/b.jsonl", "data/more/c.jsonl"]),
        ("data/**/c.jsonl", ["data/more/c.jsonl"]),
        ("**/.e.jsonl", ["data/.e.jsonl"]),
        ("f[1].jsonl", ["f[1].jsonl"]),
        ("[!f].jsonl", ["a.jsonl"]),
    ],
)
def test_patterns_of_the_hub_are_matched_as_those_of_a_folder(
    tmp_path: Path, hub: Hub, pattern: str, found: list[str]
) -> None:
    for name in LISTING:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(json.dumps({"text": name}) + "\n")
    asked: list[dict[str, Any]] = []

    def listing(**request: Any) -> list[str]:
        asked.append(request)
        return LISTING

    hub(lambda **request: str(tmp_path / request["filename"]), list_repo_files=listing)
    remote = open_source(table(None, train_files=[pattern], revision="v1"), cache_dir=tmp_path)
    assert documents(remote) == [f"{name}\n".encode() for name in found]
    assert asked == [{"repo_id": "owner/name", "repo_type": "dataset", "revision": "v1", "token": None}]
    local = opened(table(tmp_path, train_files=[pattern]))
    assert sorted(documents(local)) == sorted(documents(remote))


def test_patterns_without_a_match_or_without_a_list_are_refused(tmp_path: Path, hub: Hub) -> None:
    def offline(**request: Any) -> str:
        raise ConnectionError("no route to host")

    hub(offline, list_repo_files=lambda **_: ["a.json"])
    with refused("dataset.train_files", "owner/name", "*.jsonl", "a.json", kind=DataError):
        open_source(table(None, train_files=["*.jsonl"]), cache_dir=tmp_path)
    hub(offline, list_repo_files=offline, snapshot_download=offline)
    with refused("owner/name", "no route to host", "dataset.local_dir", kind=DataError):
        open_source(table(None, train_files=["*.jsonl"]), cache_dir=tmp_path)


def test_without_a_network_patterns_are_matched_against_the_cache(tmp_path: Path, hub: Hub) -> None:
    write_rows(tmp_path, "jsonl", ROWS)

    def cached(**request: Any) -> str:
        if not request.get("local_files_only"):
            raise ConnectionError("no route to host")
        return str(tmp_path / request.get("filename", ""))

    hub(cached, list_repo_files=cached, snapshot_download=cached)
    source = open_source(table(None, train_files=["*.jsonl"]), cache_dir=tmp_path)
    assert len(documents(source)) == 3
    assert any("patterns were matched against what is in the cache" in note for note in source.notes)


def test_missing_extras_say_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    genuine = builtins.__import__

    def absent(name: str, *rest: Any, **more: Any) -> Any:
        if name.split(".")[0] in ("huggingface_hub", "pyarrow"):
            raise ImportError(name)
        return genuine(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", absent)
    with refused("pip install huggingface_hub pyarrow", "dataset.local_dir", kind=DataError):
        open_source(table(None), cache_dir=tmp_path)
    with refused("pip install pyarrow", kind=DataError):
        open_source(table(tmp_path, format="parquet"), cache_dir=tmp_path)
