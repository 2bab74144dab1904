"""Which files a path stands for: each once, whatever its names; nothing left out without a word, nothing waited for."""

from __future__ import annotations

import gzip
import os
import socket
from pathlib import Path

import numpy as np
import pytest
from text_helpers import documents, local, opened, records, refused

from wyrmling.errors import DataError

unix = pytest.mark.skipif(os.name == "nt", reason="links and pipes are made in the ways of Unix")


def texts(folder: Path, **names: str) -> None:
    for name, content in names.items():
        path = folder / name.replace("__", "/").replace("_txt", ".txt")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


def notes_on(path: object, **keys: object) -> str:
    return " ".join(opened(local(path, **keys)).notes)


@unix
def test_linked_folders_are_followed_and_circles_cut(tmp_path: Path) -> None:
    texts(tmp_path, disk__big_txt="big", disk__deep__x_txt="x", texts__a_txt="a", texts__sub__b_txt="b")
    folder = tmp_path / "texts"
    (folder / "linked").symlink_to("../disk")
    for place in (folder, folder / "sub", tmp_path / "disk" / "deep"):
        (place / "back").symlink_to(folder)
        (place / "self").symlink_to(place)
    for path in (folder, folder / "**", folder / "**" / "*.txt", f"{folder}/**/**/*.txt"):
        assert sorted(documents(opened(local(str(path))))) == [b"a", b"b", b"big", b"x"]
    assert "6 repeated folders" in notes_on(folder)
    (folder / "gone").symlink_to("nowhere")
    (folder / "circle").symlink_to("circle")
    assert "2 dangling links" in notes_on(folder)
    with refused("nowhere", "no such file", kind=DataError):
        opened(local(folder / "gone"))
    for path in (folder / "circle", folder / "a.txt" / "b.txt", folder / ("x" * 300)):
        with refused("is no path to a file", kind=DataError):
            opened(local(path))


@unix
def test_a_file_with_several_names_is_read_once_and_told(tmp_path: Path) -> None:
    texts(tmp_path, a_txt="a", b_txt="b", sub__c_txt="c")
    os.link(tmp_path / "a.txt", tmp_path / "hard.txt")
    (tmp_path / "soft.txt").symlink_to("b.txt")
    source = opened(local(tmp_path))
    assert documents(source) == [b"a", b"b", b"c"]
    assert any("2 files named more than once" in note and "hard.txt" in note for note in source.notes)
    spellings = [tmp_path / "a.txt", f"{tmp_path}/./a.txt", f"{tmp_path}/sub/../a.txt", f"{tmp_path}/*.txt"]
    assert documents(opened(local([str(path) for path in spellings]))) == [b"a", b"b"]


@unix
def test_what_is_no_file_is_left_out_of_a_folder_and_refused_where_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts(tmp_path, a_txt="a")
    os.mkfifo(tmp_path / "pipe.txt")
    (tmp_path / "null.txt").symlink_to("/dev/null")
    (tmp_path / "folder.txt").mkdir()
    with socket.socket(socket.AF_UNIX) as listening:
        monkeypatch.chdir(tmp_path)
        listening.bind("socket.txt")
        for path in (tmp_path, tmp_path / "*.txt"):
            source = opened(local(str(path)))
            assert documents(source) == [b"a"]
            assert all(word in " ".join(source.notes) for word in ("1 pipe", "1 device", "1 socket"))
        for name, word in (("pipe.txt", "pipe"), ("null.txt", "device"), ("socket.txt", "socket")):
            with refused(name, word, kind=DataError):
                opened(local(tmp_path / name))
    assert "1 folder" in notes_on(f"{tmp_path}/*.txt")
    file = tmp_path / "turns.txt"
    file.write_text("a")
    source = opened(local(file))
    file.unlink()
    os.mkfifo(file)
    with refused("turns.txt", "pipe", kind=DataError):
        documents(source)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="there is no /proc here")
def test_a_file_that_is_made_while_it_is_read_is_refused() -> None:
    with refused("/proc/self/status", "made while it is read", kind=DataError):
        documents(opened(local("/proc/self/status")))


def test_what_a_folder_holds_and_is_not_read_is_told_with_numbers(tmp_path: Path) -> None:
    texts(tmp_path, a_txt="a" * 5000)
    for name, content in {
        "b.log": b"b" * 30,
        "c.rst.gz": gzip.compress(b"c"),
        "d.rst": b"d",
        "LICENSE": b"e",
        "f.png": b"\x89PNG\r\n\x1a\n" + bytes(90_000),
        ".hidden.txt": b"g",
        ".git/h.txt": b"h",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    note = notes_on(tmp_path)
    for word in (
        "1 .log (30 bytes)",
        "2 .rst",
        "1 without suffix",
        "1 .png (90,008 bytes)",
        "2 hidden names",
    ):
        assert word in note
    source = opened(local(tmp_path, suffixes=(".TXT", "*.rst")))
    assert documents(source) == [b"a" * 5000, b"c", b"d"]
    assert ".rst" not in " ".join(source.notes)


def test_a_folder_of_which_most_texts_would_be_left_out_is_refused_with_the_key(tmp_path: Path) -> None:
    texts(tmp_path, a_txt="a" * 100)
    (tmp_path / "b.rst").write_text("b" * 101)
    with refused("most of", "1 .rst (101 bytes)", "dataset.suffixes", '".rst"', kind=DataError):
        opened(local(tmp_path))
    assert len(documents(opened(local(tmp_path, suffixes=(".txt",))))) == 1, "who names suffixes means them"
    assert len(documents(opened(local(f"{tmp_path}/*")))) == 2
    (tmp_path / "b.rst").write_text("b" * 90)
    assert "1 .rst" in notes_on(tmp_path)
    (tmp_path / "c.log").write_text("c" * 9)
    with refused("1 .rst", "1 .log", kind=DataError):
        opened(local(tmp_path))
    for name in ("b.rst", "c.log"):
        (tmp_path / name).write_bytes(bytes(range(250)) * 9)
    assert "1 .rst" in notes_on(tmp_path), "what is no text does not count"


def test_a_folder_of_what_another_type_reads_names_that_type(tmp_path: Path) -> None:
    texts(tmp_path, README_txt="about the data")
    (tmp_path / "README.txt").rename(tmp_path / "README.md")
    (tmp_path / "0.jsonl").write_text('{"text": "a"}\n' * 9)
    with refused("most of", 'dataset.type = "jsonl"', kind=DataError):
        opened(local(tmp_path))
    (tmp_path / "0.jsonl").write_text("")
    np.save(tmp_path / "ids.npy", np.arange(99))
    with refused("most of", 'dataset.type = "pretokenized"', kind=DataError):
        opened(local(tmp_path))


def test_compressed_records_are_found_in_a_folder(tmp_path: Path) -> None:
    (tmp_path / "0.jsonl").write_text('{"text": "a"}\n')
    (tmp_path / "1.jsonl.gz").write_bytes(gzip.compress(b'{"text": "b"}\n'))
    assert documents(opened(records("jsonl", tmp_path))) == [b"a", b"b"]
    (tmp_path / "2.jsonl.zst").write_bytes(bytes(1000))
    with refused("2.jsonl.zst", "zstd", kind=DataError):
        documents(opened(records("jsonl", tmp_path)))
    with refused("no file", ".jsonl", "dataset.suffixes", kind=DataError):
        opened(local(tmp_path))


def test_files_without_permission_are_left_out_of_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts(tmp_path, a_txt="a", b_txt="b")
    monkeypatch.setattr("os.access", lambda path, mode: Path(path).name != "b.txt")
    assert documents(opened(local(tmp_path))) == [b"a"]
    assert "1 unreadable file" in notes_on(tmp_path)


def test_folders_of_runs_beside_the_texts_are_passed_over(tmp_path: Path) -> None:
    texts(tmp_path, a_txt="a")
    run = tmp_path / "runs" / "brave-dragon"
    run.mkdir(parents=True)
    for name in ("training_config.json", "events.jsonl", "notes.txt"):
        (run / name).write_text("{}" * 1000)
    assert documents(opened(local(tmp_path))) == [b"a"]
    assert "1 run folder" in notes_on(tmp_path)
