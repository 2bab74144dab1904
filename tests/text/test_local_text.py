"""Text files: which are read, in which order, cut into which documents, and what a person is told."""

from __future__ import annotations

import gzip
import itertools
import json
import tracemalloc
from pathlib import Path
from types import SimpleNamespace as Table
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from text_helpers import documents, local, opened, pieces_alone, refused

from wyrmling.errors import DataError, StorageError
from wyrmling.text.sources import PIECE_BYTES, open_validation_source
from wyrmling.text.sources.base import Tally
from wyrmling.text.sources.cutting import cut
from wyrmling.text.sources.local import _SPLITTERS


def test_a_folder_is_read_in_the_order_of_posix_paths(tmp_path: Path) -> None:
    for name in [
        "b.txt",
        "a/z.md",
        "a.txt",
        "Ä x.text",
        "a/b c/y.TXT",
        "skip.py",
        ".hidden.txt",
        ".git/x.txt",
    ]:
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(name.encode())
    (tmp_path / "n.txt.gz").write_bytes(gzip.compress(b"compressed"))
    source = opened(local(tmp_path))
    expected = [b"a.txt", b"a/b c/y.TXT", b"a/z.md", b"b.txt", b"compressed", "Ä x.text".encode()]
    assert documents(source) == expected
    assert [Path(file.name).name for file in source.files][:2] == ["a.txt", "y.TXT"]
    assert source.total_bytes is None
    assert opened(local([tmp_path / "b.txt", tmp_path / "a.txt"])).total_bytes == 10


def test_lists_keep_their_order_and_globs_are_sorted_and_nothing_is_read_twice(tmp_path: Path) -> None:
    for name in ["c.log", "a.log", "b.log", "d[1].log"]:
        (tmp_path / name).write_text(name)
    source = opened(local([str(tmp_path / "c.log"), str(tmp_path / "*.log"), str(tmp_path / "d[1].log")]))
    assert documents(source) == [b"c.log", b"a.log", b"b.log", b"d[1].log"]
    assert any("2 files named more than once" in note for note in source.notes)


def test_paths_that_lead_nowhere_are_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "notes.py").write_text("x")
    for path, words in [
        (tmp_path / "missing.txt", ["missing.txt", "no such file"]),
        (tmp_path / "sub", ["sub", ".txt, .md"]),
        (tmp_path / "*.nothing", ["no file matches", "*.nothing"]),
        ("", ["empty string"]),
        ([], ["no file is named"]),
        (f"{tmp_path}/new\nline.txt", ["new\\nline.txt"]),
        ("nul\0.txt", ["nul\\x00.txt"]),
    ]:
        with refused("dataset.path", *words, kind=DataError):
            opened(local(path))


def test_files_that_cannot_be_opened_are_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "secret.txt"
    file.write_text("x")
    source = opened(local(file))

    def deny(path: str, flags: int) -> int:
        raise PermissionError(13, "Permission denied", path)

    with monkeypatch.context() as patch:
        patch.setattr("os.open", deny)
        with refused("secret.txt", "permission denied", kind=StorageError):
            documents(source)
    file.unlink()
    with refused("secret.txt", "no such file", kind=DataError):
        documents(source)
    file.mkdir()
    with refused("secret.txt", "is a folder", kind=DataError):
        documents(source)


@pytest.mark.parametrize("name", ["only.txt", "only.txt.gz"])
@pytest.mark.parametrize("content", [b"", b"\xef\xbb\xbf"])
def test_a_wholly_empty_source_is_refused_naming_the_file(tmp_path: Path, name: str, content: bytes) -> None:
    file = tmp_path / name
    file.write_bytes(gzip.compress(content) if name.endswith(".gz") and content else content)
    for mode in ("file", "block", "line"):
        with refused(name, "nothing to train on", kind=DataError):
            documents(opened(local(file, documents=mode)))


def test_empty_files_among_good_ones_are_skipped_and_counted(tmp_path: Path) -> None:
    for index in range(5):
        (tmp_path / f"{index}.txt").write_bytes(b"" if index in (1, 3) else b"text")
    source = opened(local(tmp_path))
    assert len(documents(source)) == 3
    assert source.notes == ["2 empty documents skipped"]
    documents(source)
    assert source.notes == ["2 empty documents skipped"], "a second pass must not count on"


def test_one_empty_line_among_a_hundred_is_skipped_and_counted(tmp_path: Path) -> None:
    file = tmp_path / "lines.txt"
    file.write_bytes(b"".join(b"\n" if index == 42 else b"line %d\n" % index for index in range(100)))
    source = opened(local(file, documents="line"))
    found = documents(source)
    assert len(found) == 99
    assert found[0] == b"line 0\n"
    assert source.notes == ["1 empty document skipped"]


@pytest.mark.parametrize("content", [b"\0" * 5000, b"\n" * 5000])
def test_a_file_of_only_nul_or_newlines_is_text(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "odd.txt"
    file.write_bytes(content)
    assert documents(opened(local(file))) == [content]
    assert documents(opened(local(file, documents="block"))) == [content]


def test_a_byte_order_mark_is_stripped_and_said_and_line_ends_are_kept_and_counted(tmp_path: Path) -> None:
    text = b"one\ntwo\nthree\n"
    (tmp_path / "a-lf.txt").write_bytes(text)
    (tmp_path / "b-crlf.txt").write_bytes(text.replace(b"\n", b"\r\n"))
    (tmp_path / "c-mixed.txt").write_bytes(b"\xef\xbb\xbf" + text.replace(b"\n", b"\r\n", 1))
    source = opened(local(tmp_path))
    assert documents(source) == [text, text.replace(b"\n", b"\r\n"), text.replace(b"\n", b"\r\n", 1)]
    notes = " ".join(source.notes)
    assert "byte order mark from the start of" in notes
    assert "c-mixed.txt" in notes
    assert "a-lf.txt" not in notes
    assert "4 CR LF line ends" in notes
    pieces = pieces_alone(source)
    assert [piece.offset for piece in pieces] == [0, 0, 3], "offsets count in the file, mark included"


def test_invalid_utf8_is_handed_on_or_replaced_but_never_for_the_byte_tokenizer(tmp_path: Path) -> None:
    file = tmp_path / "bad.txt"
    bad = b"ok\xff\xfe\n\xc3(\nend\n"
    file.write_bytes(bad)
    assert documents(opened(local(file))) == [bad]
    source = opened(local(file, invalid_utf8="replace"))
    assert documents(source) == ["ok\ufffd\ufffd\n\ufffd(\nend\n".encode()]
    assert source.notes == ["3 invalid byte sequences replaced by U+FFFD"]
    kept = opened(local(file, invalid_utf8="replace", tokenizer=Table(type="byte")))
    assert documents(kept) == [bad]
    outer = Table(
        type="local_text", tokenizer=Table(type="byte"), validation=local(file, invalid_utf8="replace")
    )
    validation = open_validation_source(outer, cache_dir=tmp_path)
    assert validation is not None
    assert documents(validation) == [bad]
    assert open_validation_source(local(file, validation=None), cache_dir=tmp_path) is None


@pytest.mark.parametrize("damage", ["cut", "flipped", "not gzip", "garbage after"])
def test_a_damaged_gz_is_refused_in_one_line(tmp_path: Path, damage: str) -> None:
    compressed = bytearray(gzip.compress(b"some text, long enough to lose a part of " * 50))
    if damage == "cut":
        compressed = compressed[: len(compressed) // 2]
    elif damage == "flipped":
        compressed[-6] ^= 0xFF
    elif damage == "not gzip":
        compressed = bytearray(b"plain text")
    else:
        compressed += b"garbage"
    file = tmp_path / "bad.txt.gz"
    file.write_bytes(compressed)
    with refused("bad.txt.gz", "gzip", kind=DataError):
        documents(opened(local(file)))


def test_the_signature_is_json_and_follows_content_and_settings(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("one")
    before = opened(local(file)).signature()
    assert json.loads(json.dumps(before)) == before
    assert opened(local(file)).signature() == before
    assert opened(local(file, documents="line")).signature() != before
    assert opened(local(file, invalid_utf8="replace")).signature() != before
    file.write_text("more")
    assert opened(local(file)).signature() != before


def test_a_large_file_is_read_in_bounded_memory(tmp_path: Path) -> None:
    size = 24 << 20
    plain, compressed = tmp_path / "plain.txt", tmp_path / "compressed.txt.gz"
    row = b"x" * 79 + b"\n"
    with plain.open("wb") as file, gzip.open(compressed, "wb", compresslevel=1) as zipped:
        for _ in range(size >> 20):
            block = row * ((1 << 20) // len(row))
            file.write(block)
            zipped.write(block)
    for path in (plain, compressed):
        source = opened(local(path))
        tracemalloc.start()
        longest = max(len(piece.data) for piece in source.pieces())
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert longest <= PIECE_BYTES
        assert peak < 6 << 20


def split(mode: str, data: bytes, limit: int = 1 << 20) -> tuple[list[Any], Tally]:
    tally = Tally()
    pieces = _SPLITTERS[mode](cut([data], limit), tally, "file", 0)
    return [part for piece in pieces for part in piece.alone()], tally


paragraphs = st.lists(st.sampled_from([b"a", b"bcd", b"\n", b"\r\n", b" ", b"\n\n", b"\t\n", b"e" * 40])).map(
    b"".join
)


@given(paragraphs, st.integers(8, 40), st.sampled_from(["file", "block", "line"]))
def test_documents_hold_every_byte_once_and_pieces_know_their_offsets(
    data: bytes, limit: int, mode: str
) -> None:
    pieces, tally = split(mode, data, limit)
    for piece in pieces:
        assert data[piece.offset : piece.offset + len(piece.data)] == piece.data
        assert 0 < len(piece.data) <= limit
    if mode != "line":
        assert b"".join(piece.data for piece in pieces) == data
    if pieces:
        assert pieces[0].starts_document
    else:
        assert tally.empty_documents or not data
    if mode == "line":
        kept = [line for line in data.split(b"\n") if line not in (b"", b"\r")]
        assert sum(piece.starts_document for piece in pieces) == len(kept)
        assert b"".join(piece.data for piece in pieces).replace(b"\n", b"") == b"".join(kept)


@given(paragraphs)
def test_a_block_starts_after_every_blank_line(data: bytes) -> None:
    starts, blank_before = [0] if data else [], False
    at = 0
    for line in data.split(b"\n"):
        if line.strip():
            if blank_before and at not in starts:
                starts.append(at)
            blank_before = False
        elif at + len(line) < len(data):
            blank_before = True
        at += len(line) + 1
    pieces, _ = split("block", data)
    assert [piece.offset for piece in pieces if piece.starts_document] == starts


def test_a_line_longer_than_a_piece_is_one_document() -> None:
    data = b"short\n" + b"w" * 100 + b"\nlast"
    pieces, _ = split("line", data, 16)
    assert [piece.starts_document for piece in pieces].count(True) == 3
    joined = [b"".join(p.data for p in group) for group in _grouped(pieces)]
    assert joined == [b"short\n", b"w" * 100 + b"\n", b"last"]


def _grouped(pieces: list[Any]) -> list[list[Any]]:
    starts = [index for index, piece in enumerate(pieces) if piece.starts_document]
    return [pieces[a:b] for a, b in itertools.pairwise([*starts, len(pieces)])]
