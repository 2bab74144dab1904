"""Token files hold what the source gave, whole or not at all, however it was cut and whoever was killed."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data_fakes import FakeSource, FakeTokenizer
from hypothesis import given, settings
from hypothesis import strategies as st

from wyrmling.data.building import build_store, locked, store_in_memory
from wyrmling.data.format import (
    CHUNK_BYTES,
    HASH_BYTES,
    HEADER_BYTES,
    ChunkHashes,
    documents_offset,
    hash_of,
    token_dtype,
)
from wyrmling.data.store import Split, TokenStore, open_store
from wyrmling.errors import DataError, StorageError
from wyrmling.text.sources import Piece
from wyrmling.text.tokenizers import ByteTokenizer, PretokenizedTokenizer

DOCUMENTS = st.lists(st.binary(max_size=30), min_size=1, max_size=8)
HERE = Path(__file__).parent


def documents_of(store: TokenStore) -> list[list[int]]:
    borders = [*store.document_starts.tolist(), len(store)]
    return [store.tokens[a:b].tolist() for a, b in pairwise(borders)]


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def start(code: str, *arguments: object, **options: Any) -> subprocess.Popen[str]:
    """A process that runs `code` with the fakes at hand."""
    environment = {**os.environ, "PYTHONPATH": str(HERE)}
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE, **options)


@given(DOCUMENTS, st.integers(1, 12), st.booleans())
def test_a_store_holds_every_document_and_eos_after_it(
    documents: list[bytes], cut: int, has_eos: bool
) -> None:
    """Empty documents are left out, and counted in one note."""
    tokenizer = FakeTokenizer(257, eos_id=256 if has_eos else None)
    filled = [list(document) + [256] * has_eos for document in documents if document]
    if not filled:
        with pytest.raises(DataError, match="nothing to train on"):
            store_in_memory(FakeSource(documents, cut=cut).pieces(), tokenizer)
        return
    store = store_in_memory(FakeSource(documents, cut=cut).pieces(), tokenizer)
    assert documents_of(store) == filled
    assert store.header["count"] == len(store) == sum(map(len, filled))
    assert store.header["documents"] == len(filled)
    assert store.header["text_bytes"] == sum(map(len, documents))
    empty = len(documents) - len(filled)
    assert store.notes == ([f"{empty} documents without a token skipped"] if empty else [])


@given(DOCUMENTS, DOCUMENTS, st.integers(1, 12), st.integers(1, 12))
def test_the_text_fingerprint_tells_documents_and_borders_but_not_pieces(
    first: list[bytes], second: list[bytes], cut: int, other_cut: int
) -> None:
    def fingerprint(documents: list[bytes], cut: int) -> str:
        return store_in_memory(FakeSource([b"x", *documents], cut=cut).pieces(), FakeTokenizer()).header[
            "fingerprint_text"
        ]

    assert fingerprint(first, cut) == fingerprint(first, other_cut)
    same = [d for d in first if d] == [d for d in second if d]
    assert (fingerprint(first, cut) == fingerprint(second, cut)) == same


@pytest.mark.parametrize(
    ("vocab_size", "name"),
    [(2, "uint8"), (256, "uint8"), (257, "uint16"), (1 << 16, "uint16"), ((1 << 16) + 1, "uint32"),
     (1 << 32, "uint32"), ((1 << 32) + 1, "int64")],
)  # fmt: skip
def test_the_smallest_width_that_holds_the_vocabulary_is_used(
    tmp_path: Path, vocab_size: int, name: str
) -> None:
    """And an opened file gives back the ids, the largest included, and the document starts, at odd counts."""
    ids = [np.array([0, vocab_size - 1, 1]), np.array([vocab_size - 1] * 4)]
    store = build_store(tmp_path / "a.tokens", FakeSource(ids), FakeTokenizer(vocab_size))
    assert token_dtype(vocab_size).name == store.header["dtype"] == name
    again = open_store(tmp_path / "a.tokens")
    assert documents_of(again) == [document.tolist() for document in ids]
    assert again.tokens.dtype == np.dtype(name)
    assert again.document_starts.tolist() == [0, 3]
    assert again.header == store.header
    assert again.header["text_bytes"] is None
    assert not again.tokens.flags.writeable


def test_notes_of_the_source_and_unknown_tokens_are_kept(tmp_path: Path) -> None:
    source = FakeSource([b"abcb"], notes=["one", "two"])
    build_store(tmp_path / "a.tokens", source, FakeTokenizer(unk_id=ord("b")))
    store = open_store(tmp_path / "a.tokens")
    assert store.notes == ["one", "two", "2 of 4 tokens are unknown to the vocabulary"]
    assert store.header["unknown"] == 2


def test_more_notes_than_the_header_holds_are_counted(tmp_path: Path) -> None:
    build_store(tmp_path / "a.tokens", FakeSource([b"a"], notes=["x" * 100] * 500), FakeTokenizer())
    store = open_store(tmp_path / "a.tokens")
    assert 50 < len(store.notes) < 500
    assert store.notes[-1] == f"{500 - (len(store.notes) - 1)} more notes left out"


@pytest.mark.parametrize("bad", [-1, 300, 1 << 40])
def test_an_id_outside_the_vocabulary_is_named_with_file_and_position(tmp_path: Path, bad: int) -> None:
    """The position counts from the start of the file, not of the piece."""
    ids = np.arange(20) % 7
    ids[13] = bad
    source = FakeSource([ids], cut=5, name="data/ids.npy")
    with pytest.raises(
        DataError, match=rf"data/ids\.npy: token id {bad} at position 13 .*outside the vocabulary of 300"
    ) as caught:
        build_store(tmp_path / "a.tokens", source, PretokenizedTokenizer(300))
    assert "\n" not in str(caught.value)
    assert names_in(tmp_path) == ["a.tokens.lock"]


def test_ids_are_no_food_for_a_tokenizer_of_text(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"ids\.npy: holds token ids"):
        build_store(tmp_path / "a", FakeSource([np.arange(9)], name="ids.npy"), ByteTokenizer())


@given(DOCUMENTS, st.booleans(), st.integers(0, 3))
def test_documents_that_come_many_in_a_piece_are_those_that_come_alone(
    documents: list[bytes], has_eos: bool, inside: int
) -> None:
    """Tokens, starts, fingerprint and counts; also where the first and last document reach beyond the piece. The
    fingerprint is what the class says, for files of tokens and runs that were made before.
    """
    documents = [b"first", *filter(None, documents)]
    borders = np.cumsum([len(document) for document in documents])
    whole = b"".join(documents)
    cut = inside if inside < len(documents[-1]) else 0
    pieces = [
        Piece(whole[:2], True, "a", 0),
        Piece(whole[2 : len(whole) - cut], False, "a", 2, borders[:-1] - 2),
        *([Piece(whole[-cut:], False, "a", len(whole) - cut)] if cut else []),
    ]
    tokenizer = FakeTokenizer(257, eos_id=256 if has_eos else None)
    together = store_in_memory(iter(pieces), tokenizer)
    alone = store_in_memory(FakeSource(documents).pieces(), tokenizer)
    assert documents_of(together) == documents_of(alone)
    assert together.header == alone.header
    assert b"".join(part.data for piece in pieces for part in piece.alone()) == whole
    digest = hashlib.sha256()
    for document in documents:
        digest.update(document + b"text" + len(document).to_bytes(8, "little"))
    assert together.header["fingerprint_text"] == digest.hexdigest()


@given(
    st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=20), min_size=1, max_size=4), st.integers(1, 9)
)
def test_an_end_of_text_ends_a_document_wherever_ids_are_cut(files: list[list[int]], cut: int) -> None:
    """4 is the end: what a file holds is split after each, and a file ends with one, given or added."""
    expected = []
    for file in files:
        document: list[int] = []
        for token in [*file, *([4] if file[-1] != 4 else [])]:
            document.append(token)
            if token == 4:
                expected.append(document)
                document = []
    source = FakeSource([np.array(file) for file in files], cut=cut)
    assert documents_of(store_in_memory(source.pieces(), FakeTokenizer(5, eos_id=4))) == expected
    glued = documents_of(store_in_memory(source.pieces(), FakeTokenizer(5)))
    assert glued == files


def test_ids_hold_as_many_documents_as_ends_of_text() -> None:
    """However they are cut into pieces; an end that is missing at the end of a source's document is added."""
    store = store_in_memory(
        FakeSource([np.array([5, 9]), np.array([9]), np.array([9, 5])]).pieces(), FakeTokenizer(10, eos_id=9)
    )
    assert documents_of(store) == [[5, 9], [9], [9], [5, 9]]


@pytest.mark.parametrize("documents", [[], [b""], [b"", b""]])
def test_an_empty_source_is_refused_and_leaves_nothing(tmp_path: Path, documents: list[bytes]) -> None:
    """D2: wholly empty input is an error that names the file, and no half-made file stays."""
    with pytest.raises(DataError, match=r"e\.txt: nothing to train on"):
        build_store(tmp_path / "a.tokens", FakeSource(documents, name="e.txt"), FakeTokenizer())
    assert names_in(tmp_path) == ["a.tokens.lock"]


def test_only_nul_bytes_or_only_newlines_are_text(tmp_path: Path) -> None:
    """D2: they are legal bytes."""
    assert len(build_store(tmp_path / "a", FakeSource([bytes(40)]), FakeTokenizer())) == 40
    assert len(build_store(tmp_path / "b", FakeSource([b"\n" * 40]), FakeTokenizer())) == 40


def test_progress_counts_bytes_up_to_the_total(tmp_path: Path) -> None:
    calls: list[tuple[int, int | None]] = []
    source = FakeSource([b"x" * 25, b"y" * 5], cut=10)
    build_store(tmp_path / "a", source, FakeTokenizer(), progress=lambda *c: calls.append(c))
    assert calls == [(10, 30), (20, 30), (25, 30), (30, 30)]
    ids = FakeSource([np.zeros(25, dtype=np.int64)], cut=10)
    ids.total_bytes = None
    build_store(tmp_path / "b", ids, FakeTokenizer(300), progress=lambda *c: calls.append(c))
    assert calls[4:] == [(20, None), (40, None), (50, None)]


def test_a_good_file_is_opened_and_not_built_again(tmp_path: Path) -> None:
    log = tmp_path / "log"
    for _ in range(3):
        store = build_store(tmp_path / "a", FakeSource([b"abc"], log=log), FakeTokenizer())
        assert store.notes == []
    assert log.read_text() == "pass\n"


def test_another_tokenizer_or_source_builds_anew_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "a.tokens"
    build_store(path, FakeSource([b"abc"]), FakeTokenizer(256))
    other = build_store(path, FakeSource([b"abc"]), FakeTokenizer(300))
    assert other.tokens.dtype == np.uint16
    assert other.notes == [f"tokens built anew: {path} was made by another tokenizer"]
    other = build_store(path, FakeSource([b"abcd"]), FakeTokenizer(300))
    assert other.notes == [f"tokens built anew: {path} was made from another source"]
    assert len(other) == 4


@pytest.fixture(scope="module")
def good_file(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("good") / "a.tokens"
    build_store(path, FakeSource([b"some text", b"more"]), FakeTokenizer())
    return path.read_bytes()


@settings(max_examples=60)
@given(st.data())
def test_a_damaged_file_is_refused_in_one_line(
    tmp_path_factory: pytest.TempPathFactory, good_file: bytes, data: st.DataObject
) -> None:
    """Cut short anywhere, made longer, zeroed, or with any byte that means something changed."""
    used = 48 + int.from_bytes(good_file[12:16], "little")
    kind = data.draw(st.sampled_from(["cut", "longer", "header", "content", "zeroed"]))
    if kind == "cut":
        content = good_file[: data.draw(st.integers(0, len(good_file) - 1))]
    elif kind == "longer":
        content = good_file + bytes(data.draw(st.integers(1, 100)))
    elif kind == "zeroed":
        content = good_file[:HEADER_BYTES] + bytes(len(good_file) - HEADER_BYTES)
    else:
        first = HEADER_BYTES if kind == "content" else 0
        last = len(good_file) if kind == "content" else used
        position = data.draw(st.integers(first, last - 1))
        altered = bytearray(good_file)
        altered[position] ^= data.draw(st.integers(1, 255))
        content = bytes(altered)
    path = tmp_path_factory.mktemp("bad") / "a.tokens"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"a\.tokens is damaged \(.*\): delete it") as caught:
        open_store(path)
    assert "\n" not in str(caught.value)
    rebuilt = build_store(path, FakeSource([b"some text", b"more"]), FakeTokenizer())
    assert path.read_bytes() == good_file
    assert len(rebuilt.notes) == 1
    assert rebuilt.notes[0].startswith(f"tokens built anew: token file {path} is damaged (")


@pytest.mark.parametrize("what", ["folder", "pipe", "link to nothing", "another token file", "empty"])
def test_whatever_stands_in_the_place_of_a_token_file_is_replaced(tmp_path: Path, what: str) -> None:
    """Also a sound token file of another text and the same tokenizer, and a pipe, which nobody waits for."""
    path = tmp_path / "a.tokens"
    if what == "folder":
        (path / "inside").mkdir(parents=True)
    elif what == "pipe":
        os.mkfifo(path)
    elif what == "link to nothing":
        path.symlink_to("nothing")
    elif what == "empty":
        path.touch()
    else:
        build_store(path, FakeSource([b"another"]), FakeTokenizer())
    store = build_store(path, FakeSource([b"some text", b"more"]), FakeTokenizer())
    assert documents_of(store) == [list(b"some text"), list(b"more")]
    assert len(store.notes) == (what != "link to nothing")
    assert build_store(path, FakeSource([b"some text", b"more"]), FakeTokenizer()).notes == []


@pytest.mark.parametrize("position", [0, 70_000, 120_000])
def test_a_large_file_is_checked_where_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, position: int
) -> None:
    """What is sound is read; the damaged part never is; the file makes room for one that is built anew."""
    monkeypatch.setattr("wyrmling.data.store._CHECKED_AT_ONCE", 1000)
    path, source = tmp_path / "a.tokens", FakeSource([bytes(100_000)] * 2)
    build_store(path, source, FakeTokenizer())
    with path.open("r+b") as file:
        file.seek(HEADER_BYTES + position)
        file.write(b"\1")
    store = build_store(path, source, FakeTokenizer())
    assert store.notes == []
    split, chunk = Split(store, 50, 200_000, "train"), position // CHUNK_BYTES * CHUNK_BYTES
    split.read((chunk + CHUNK_BYTES) % 131_072, 1000)
    with pytest.raises(DataError, match=r"a\.tokens is damaged \(.*\): it is set aside; run again"):
        split.read(max(chunk - 50, 0), 10)
    assert names_in(tmp_path) == ["a.tokens.damaged", "a.tokens.lock"]
    again = build_store(path, source, FakeTokenizer())
    assert not again.tokens.any()
    with pytest.raises(DataError, match="is damaged"):  # and keeps clear of the new file
        split.read(max(chunk - 50, 0), 10)
    assert path.exists()


@pytest.mark.parametrize(
    "changes",
    [{"count": "x"}, {"count": 0}, {"documents": 99}, {"dtype": "float64"}, {"vocab_size": 70_000}, {"hashes": None},
     {"notes": [1]}, {"named": {"a": "b"}}, {"unknown": True}, "named", "no JSON"],
)  # fmt: skip
def test_a_header_that_contradicts_itself_is_damage(tmp_path: Path, good_file: bytes, changes: Any) -> None:
    """Also where its own hash was made to fit."""
    size = int.from_bytes(good_file[12:16], "little")
    header = json.loads(good_file[48 : 48 + size])
    if isinstance(changes, dict):
        header |= changes
    else:
        header.pop(changes, None)
    content = b"{" if changes == "no JSON" else json.dumps(header).encode()
    start = good_file[:12] + len(content).to_bytes(4, "little") + hashlib.sha256(content).digest() + content
    path = tmp_path / "a.tokens"
    path.write_bytes(start.ljust(HEADER_BYTES, b"\0") + good_file[HEADER_BYTES:])
    with pytest.raises(DataError, match="is damaged"):
        open_store(path)


def test_document_starts_are_checked_when_a_file_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wyrmling.data.store._CHECKED_AT_ONCE", 0)
    path = tmp_path / "a.tokens"
    store = build_store(path, FakeSource([b"some text", b"more"]), FakeTokenizer())
    with path.open("r+b") as file:
        file.seek(documents_offset(store.header) + 8)
        file.write(b"\3")
    with pytest.raises(DataError, match="is damaged"):
        open_store(path)


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="No such file"):
        open_store(tmp_path / "none.tokens")


def test_a_source_that_fails_half_way_leaves_nothing(tmp_path: Path) -> None:
    class Broken(FakeSource):
        def pieces(self) -> Any:
            yield from super().pieces()
            raise DataError("b.txt: broken")

    with pytest.raises(DataError, match=r"b\.txt: broken"):
        build_store(tmp_path / "a.tokens", Broken([b"abc"]), FakeTokenizer())
    assert names_in(tmp_path) == ["a.tokens.lock"]


def test_leftovers_of_this_file_are_removed_and_others_stay(tmp_path: Path) -> None:
    """Another token file may be under construction in the same folder."""
    (tmp_path / ".tmp-a[1].tokens-123").write_bytes(b"half")
    (tmp_path / ".tmp-a1.tokens-123").write_bytes(b"half")
    build_store(tmp_path / "a[1].tokens", FakeSource([b"abc"]), FakeTokenizer())
    assert names_in(tmp_path) == [".tmp-a1.tokens-123", "a[1].tokens", "a[1].tokens.lock"]


BUILD = """
import sys
from pathlib import Path
from data_fakes import FakeSource, FakeTokenizer
from wyrmling.data.building import build_store
path, log, pause, pieces = Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
source = FakeSource([b"0123456789" * pieces], cut=10, log=log, pause=pause)
store = build_store(path, source, FakeTokenizer())
print(store.header["fingerprint_text"], len(store))
"""


def test_processes_that_build_at_once_build_once(tmp_path: Path) -> None:
    """The others wait and read what the first one made."""
    log = tmp_path / "log"
    processes = [start(BUILD, tmp_path / "a.tokens", log, 0.01, 40) for _ in range(3)]
    outputs = {process.communicate(timeout=60)[0] for process in processes}
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert len(outputs) == 1
    assert outputs.pop().endswith(" 400\n")
    assert log.read_text() == "pass\n"


def test_a_killed_build_leaves_no_file_that_opens_half(tmp_path: Path) -> None:
    """SIGKILL at moments drawn from the whole life of the process; then a build that succeeds."""
    path, log = tmp_path / "a.tokens", tmp_path / "log"
    started = time.monotonic()
    process = start(BUILD, tmp_path / "timing.tokens", log, 0.01, 20)
    process.communicate(timeout=60)
    life = time.monotonic() - started
    moments = random.Random(5)
    for _ in range(12):
        process = start(BUILD, path, log, 0.01, 20)
        time.sleep(moments.uniform(0, life * 1.1))
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=60)
        if path.exists():
            assert len(open_store(path)) == 200
            path.unlink()
    process = start(BUILD, path, log, 0, 20)
    assert process.communicate(timeout=60)[0].endswith(" 200\n")
    assert [name for name in names_in(tmp_path) if name.startswith(".tmp")] == []


PEAK = """
import resource, sys
from pathlib import Path
from data_fakes import FakeSource, FakeTokenizer
from wyrmling.data.building import build_store
repeat, size = int(sys.argv[2]), 1 << 19
source = FakeSource([b"a" * size, *[b"b"] * 2000], cut=1 << 18, repeat=repeat)
store = build_store(Path(sys.argv[1]), source, FakeTokenizer())
assert len(store) == repeat * (size + 2000)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss has the unit of Linux")
def test_memory_does_not_grow_with_the_source(tmp_path: Path) -> None:
    """Peak resident set of a process that builds 0.5 MB and of one that builds 40 times as much."""
    peaks = []
    for repeat in (1, 40):
        output = start(PEAK, tmp_path / f"{repeat}.tokens", repeat).communicate(timeout=60)[0]
        peaks.append(int(output) / 1024)
    assert peaks[1] - peaks[0] < 6


FULL = """
import resource, sys
from pathlib import Path
from data_fakes import FakeSource, FakeTokenizer
from wyrmling.data.building import build_store
from wyrmling.errors import StorageError
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
try:
    build_store(Path(sys.argv[1]), FakeSource([bytes(1 << 16)], repeat=40), FakeTokenizer())
except StorageError as error:
    print(error)
"""


@pytest.mark.skipif(os.name == "nt", reason="no limits on file size there")
def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    output = start(FULL, tmp_path / "a.tokens").communicate(timeout=60)[0]
    assert output.startswith("cannot write ")
    assert "limit on file size" in output
    assert output.count("\n") == 1
    assert names_in(tmp_path) == ["a.tokens.lock"]


def test_a_file_where_the_cache_should_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file" / "a.tokens", tmp_path / "file" / "tokens" / "a.tokens"):
        with pytest.raises(StorageError, match=r"not a folder.*cache_dir"):
            build_store(path, FakeSource([b"a"]), FakeTokenizer())


def test_a_folder_that_refuses_is_a_storage_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(tmp_path))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(StorageError, match="permission denied"):
        build_store(tmp_path / "a.tokens", FakeSource([b"a"]), FakeTokenizer())


@given(st.integers(0, 20), st.integers(0, 20))
def test_a_split_counts_from_its_own_start(start_at: int, length: int) -> None:
    store = store_in_memory(FakeSource([bytes(range(15)), bytes(range(15, 40))]).pieces(), FakeTokenizer())
    split = Split(store, start_at, start_at + length, "train", "a.txt")
    assert len(split) == length
    assert split.read(0, length).tolist() == list(range(start_at, start_at + length))
    assert split.read(0, length).dtype == np.int64
    inside = [15 - start_at] if start_at < 15 < start_at + length else []
    assert split.document_starts.tolist() == [0, *inside]
    for bad in [(-1, 1), (0, length + 1), (length + 1, 0), (0, -1)]:
        with pytest.raises(IndexError, match="train split"):
            split.read(*bad)


@pytest.mark.parametrize("tokens", [0, 1, 16])
def test_a_split_shorter_than_a_block_and_its_target_is_refused(tokens: int) -> None:
    """D1: one line with the file, the split, the tokens found and the tokens needed."""
    store = store_in_memory(FakeSource([bytes(40)]).pieces(), FakeTokenizer())
    with pytest.raises(
        DataError,
        match=rf"^s\.txt: the train split has {tokens} tokens, but .*block_size = 16 needs at least 17",
    ):
        Split(store, 0, tokens, "train", "s.txt").check(16)
    Split(store, 0, 17, "train", "s.txt").check(16)


def test_token_files_need_no_torch() -> None:
    """Data can be prepared, and commands can start, without the seconds that importing torch takes."""
    output = start("import sys, wyrmling.data; print('torch' in sys.modules)").communicate(timeout=60)[0]
    assert output == "False\n"


def test_the_header_is_at_the_start_of_the_file_and_readable(good_file: bytes) -> None:
    """The layout that the format module documents."""
    assert good_file[:8] == b"WYRMTOKS"
    assert good_file[HEADER_BYTES : HEADER_BYTES + 13] == b"some textmore"
    content = good_file[HEADER_BYTES:-HASH_BYTES]
    assert content[-16:] == (0).to_bytes(8, "little") + (9).to_bytes(8, "little")
    assert len(content) == 16 + 16
    assert good_file[-HASH_BYTES:] == hash_of(content)


@given(st.lists(st.integers(0, 3 * CHUNK_BYTES), max_size=6))
def test_hashes_do_not_depend_on_how_bytes_come(sizes: list[int]) -> None:
    content = bytes(range(251)) * 3200
    content = content[: sum(sizes)]
    hashes, at = ChunkHashes(), 0
    for size in sizes:
        hashes.update(content[at : at + size])
        at += size
    chunks = [content[start : start + CHUNK_BYTES] for start in range(0, len(content), CHUNK_BYTES)]
    assert hashes.table() == b"".join(map(hash_of, chunks))


def test_waiting_for_another_process_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds the lock for longer than a moment; what it built meanwhile is opened."""
    monkeypatch.setattr("wyrmling.data.building._PATIENCE_SECONDS", 0.05)
    path, source = tmp_path / "a.tokens", FakeSource([b"some text"])
    told: list[str] = []
    waits = threading.Event()

    def tell(line: str) -> None:
        told.append(line)
        waits.set()

    thread = threading.Thread(target=lambda: build_store(path, source, FakeTokenizer(), tell=tell))
    with locked(path):
        thread.start()
        assert waits.wait(30)
    thread.join(30)
    assert not thread.is_alive()
    build_store(path, source, FakeTokenizer(), tell=tell)
    (line,) = told
    assert line.startswith("waiting for ")
