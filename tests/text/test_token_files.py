"""Files of token ids: exact, mapped, in pieces; everything that is no row of integers is refused."""

from __future__ import annotations

import gzip
import os
import pickle
import tracemalloc
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from text_helpers import documents, opened, refused

from wyrmling.errors import DataError
from wyrmling.text.sources import PIECE_TOKENS


def table(path: object, dtype: str | None = None, **keys: object) -> SimpleNamespace:
    defaults = {"byte_order": "little", "header_bytes": None, "suffixes": None}
    return SimpleNamespace(**{"type": "pretokenized", "path": path, "dtype": dtype, **defaults, **keys})


@given(
    st.sampled_from(["uint8", "uint16", "uint32", "int32", "int64", ">u2", ">i8"]),
    st.lists(st.integers(0, 127), min_size=1),
)
def test_npy_and_raw_files_give_their_tokens_whatever_the_type(
    tmp_path: Path, dtype: str, ids: list[int]
) -> None:
    array = np.array(ids, dtype=dtype)
    np.save(tmp_path / "a.npy", array)
    array.astype(array.dtype.newbyteorder("<")).tofile(tmp_path / "b.bin")
    raw = None if dtype.startswith(">") else dtype
    assert documents(opened(table(tmp_path / "a.npy")))[0].tolist() == ids
    if raw is not None:
        both = opened(table([tmp_path / "b.bin", tmp_path / "a.npy"], raw))
        assert [document.tolist() for document in documents(both)] == [ids, ids]
        assert all(piece.data.dtype == np.int64 for piece in both.pieces())


def test_a_long_file_comes_in_pieces_and_bounded_memory(tmp_path: Path) -> None:
    count = 3 * PIECE_TOKENS + 5
    np.arange(count, dtype=np.uint32).tofile(tmp_path / "long.bin")
    source = opened(table(tmp_path / "long.bin", "uint32"))
    tracemalloc.start()
    expected = 0
    for piece in source.pieces():
        assert piece.starts_document == (expected == 0)
        assert piece.offset == piece.data[0] == expected
        expected += len(piece.data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert expected == count
    assert peak < 24 * PIECE_TOKENS


def test_empty_files_are_skipped_or_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros(0, np.uint16))
    (tmp_path / "b.bin").touch()
    np.save(tmp_path / "c.npy", np.ones(2, np.uint16))
    source = opened(table(tmp_path, "uint16"))
    assert [document.tolist() for document in documents(source)] == [[1, 1]]
    assert source.notes == ["2 empty documents skipped"]
    (tmp_path / "c.npy").unlink()
    with refused("a.npy", "b.bin", "nothing to train on", kind=DataError):
        documents(opened(table(tmp_path, "uint16")))


class Payload:
    """Runs a command when it is unpickled."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[object, ...]:
        return os.system, (self.command,)


def test_python_objects_in_an_array_are_refused_and_never_run(tmp_path: Path) -> None:
    trap = tmp_path / "sprung"
    np.save(tmp_path / "evil.npy", np.array([Payload(f"touch {trap}")], dtype=object), allow_pickle=True)
    (tmp_path / "pickle.npy").write_bytes(pickle.dumps(Payload(f"touch {trap}")))
    with refused("evil.npy", "Python objects", kind=DataError):
        documents(opened(table(tmp_path / "evil.npy")))
    with refused("pickle.npy", "pickle", "never loaded", kind=DataError):
        documents(opened(table(tmp_path / "pickle.npy")))
    assert not trap.exists()


@pytest.mark.parametrize(
    ("array", "word"),
    [
        (np.zeros(3), "float64"),
        (np.zeros((2, 2), np.int64), "(2, 2)"),
        (np.array(5), "shape ()"),
        (np.array(["a"]), "one-dimensional array of integers"),
        (np.array([True]), "bool"),
        (np.array([2**63], np.uint64), "beyond 63 bits"),
    ],
)
def test_arrays_that_are_no_row_of_integers_are_refused(tmp_path: Path, array: np.ndarray, word: str) -> None:
    np.save(tmp_path / "a.npy", array)
    with refused("a.npy", word, kind=DataError):
        documents(opened(table(tmp_path / "a.npy")))


@pytest.mark.parametrize("kept", [0.0, 0.03, 0.5, 0.99])
def test_a_cut_short_npy_is_refused(tmp_path: Path, kept: float) -> None:
    file = tmp_path / "a.npy"
    np.save(file, np.arange(100))
    content = file.read_bytes()
    file.write_bytes(content[: int(len(content) * kept)])
    with refused("a.npy", kind=DataError):
        documents(opened(table(file)))


def test_raw_files_need_a_type_and_whole_tokens(tmp_path: Path) -> None:
    file = tmp_path / "a.bin"
    file.write_bytes(b"123")
    with refused("a.bin", "dataset.dtype", kind=DataError):
        documents(opened(table(file)))
    with refused("a.bin", "3 bytes", "uint16", kind=DataError):
        documents(opened(table(file, "uint16")))
    with refused("a.bin", "dataset.dtype", kind=DataError):
        documents(opened(table(tmp_path)))
    source = opened(table(file, "uint8"))
    file.unlink()
    with refused("a.bin", "no such file", kind=DataError):
        documents(source)


def save_all(path: Path, *arrays: np.ndarray) -> None:
    with path.open("wb") as stream:
        for array in arrays:
            np.save(stream, array)


@given(st.lists(st.lists(st.integers(0, 99)), min_size=1, max_size=4).filter(any))
def test_several_arrays_in_one_file_are_all_read_as_documents(tmp_path: Path, parts: list[list[int]]) -> None:
    save_all(tmp_path / "ids.npy", *(np.array(part, dtype=np.uint16) for part in parts))
    source = opened(table(tmp_path / "ids.npy"))
    assert [list(document) for document in documents(source)] == [part for part in parts if part]
    assert [piece.offset for piece in source.pieces()] == np.cumsum([0, *(len(p) for p in parts if p)])[
        :-1
    ].tolist()


def test_arrays_hold_no_more_and_no_less_than_their_headers_say(tmp_path: Path) -> None:
    file = tmp_path / "ids.npy"
    np.save(file, np.arange(100, dtype=np.uint16))
    whole = file.read_bytes()
    for more in (b"\0", b"\0" * 200, np.arange(100, dtype=np.uint16).tobytes()):
        file.write_bytes(whole + more)
        with refused("ids.npy", f"{len(more)} bytes follow", "dataset.header_bytes", kind=DataError):
            documents(opened(table(file)))
    file.write_bytes(whole[:-2])
    with refused("ids.npy", "cut short", kind=DataError):
        documents(opened(table(file)))
    file.write_bytes(whole + np.arange(100, 300, dtype=np.uint16).tobytes())
    read = documents(opened(table(file, "uint16", header_bytes=128)))
    assert list(read[0]) == list(range(300))


def llm_c(ids: list[int], magic: int = 20240520, version: int = 1, dtype: str = "<u2") -> bytes:
    return np.array([magic, version, len(ids), *[0] * 253], "<i4").tobytes() + np.array(ids, dtype).tobytes()


def litgpt(ids: list[int], code: int = 8, dtype: str = "<u2") -> bytes:
    header = b"LITPKDS" + (1).to_bytes(8, "little") + bytes([code]) + len(ids).to_bytes(8, "little")
    return header + np.array(ids, dtype).tobytes()


def megatron(path: Path, documents: list[list[list[int]]], code: int = 8, dtype: str = "<u2") -> None:
    """The two files of a corpus: documents of sequences of ids."""
    sequences = [sequence for document in documents for sequence in document]
    lengths = np.array([len(sequence) for sequence in sequences], "<i4")
    starts = (np.cumsum([0, *lengths[:-1]]) * np.dtype(dtype).itemsize).astype("<i8")
    borders = np.cumsum([0, *(len(document) for document in documents)]).astype("<i8")
    counts = len(lengths).to_bytes(8, "little") + len(borders).to_bytes(8, "little")
    header = b"MMIDIDX\0\0" + (1).to_bytes(8, "little") + bytes([code]) + counts
    path.with_suffix(".idx").write_bytes(header + lengths.tobytes() + starts.tobytes() + borders.tobytes())
    path.write_bytes(np.concatenate([np.array(sequence, dtype) for sequence in sequences]).tobytes())


IDS = [50_000, 1, 2, 0, 0, 3, 65_535] * 40
SHARDS = {
    "llm.c": llm_c(IDS),
    "llm.c of Llama 3": llm_c([128_000, *IDS], 20240801, 7, "<u4"),
    "LitGPT": litgpt(IDS),
    "LitGPT of int32": litgpt([70_000, *IDS], 4, "<i4"),
}


@pytest.mark.parametrize("name", SHARDS)
def test_shards_of_public_programs_are_read_by_their_headers(tmp_path: Path, name: str) -> None:
    wanted = [*([128_000] if "Llama" in name else [70_000] if "int32" in name else []), *IDS]
    for dtype in (None, "uint16", "uint32"):
        for compressed in (False, True):
            file = tmp_path / "shard_000.bin"
            file.write_bytes(gzip.compress(SHARDS[name]) if compressed else SHARDS[name])
            assert [list(document) for document in documents(opened(table(file, dtype)))] == [wanted]
    for damaged in (SHARDS[name][:-4], SHARDS[name] + b"\0\0\0\0", SHARDS[name][:-1]):
        file.write_bytes(damaged)
        with refused("shard_000.bin", kind=DataError):
            documents(opened(table(file)))


def test_an_index_beside_a_file_says_its_type_and_documents(tmp_path: Path) -> None:
    corpus = [[[5, 6], [7]], [[8]], [[], []], [[9, 10, 11]]]
    megatron(tmp_path / "a_text_document.bin", corpus)
    megatron(tmp_path / "b.bin", [[[70_000], [1, 2]]], 4, "<i4")
    wanted = [[5, 6, 7], [8], [9, 10, 11], [70_000, 1, 2]]
    for path in (tmp_path, f"{tmp_path}/*", [tmp_path / "a_text_document.bin", tmp_path / "b.bin"]):
        source = opened(table(path))
        assert [list(document) for document in documents(source)] == wanted
        assert len(source.files) == 4, "the indexes belong to what is read"
    signature = opened(table(tmp_path)).signature()
    megatron(tmp_path / "b.bin", [[[70_000]], [[1, 2]]], 4, "<i4")
    assert opened(table(tmp_path)).signature() != signature
    (tmp_path / "b.bin").write_bytes((tmp_path / "b.bin").read_bytes()[:-4])
    with refused("b.bin", "cut short", kind=DataError):
        documents(opened(table(tmp_path / "b.bin")))
    index = tmp_path / "a_text_document.idx"
    index.write_bytes(index.read_bytes()[:-8])
    with refused("a_text_document.idx", "does not describe", kind=DataError):
        documents(opened(table(tmp_path / "a_text_document.bin")))
    (tmp_path / "b.bin").unlink()
    with refused("b.idx", ".bin", kind=DataError):
        opened(table(tmp_path / "b.idx"))


def test_raw_numbers_are_read_under_any_name_in_either_byte_order(tmp_path: Path) -> None:
    ids = np.arange(5000) % 300
    for name in ("part-0-00000.npy", "tokens", "train.u16", "train.bin"):
        for order, dtype in (("little", "<u2"), ("big", ">u2")):
            (tmp_path / name).write_bytes(ids.astype(dtype).tobytes())
            read = documents(opened(table(tmp_path / name, "uint16", byte_order=order)))
            assert list(read[0]) == ids.tolist()
        with refused(name, "dataset.dtype", kind=DataError):
            documents(opened(table(tmp_path / name)))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"word " * 100, ["is text"]),
        (
            np.array([7, 1, 3, *[0] * 253], "<i4").tobytes() + np.arange(1, 3000, dtype="<u2").tobytes(),
            ["header"],
        ),
        (np.arange(3000, dtype="<u4").tobytes(), ["every second number is 0", "wider than uint16"]),
        (np.arange(3000, dtype=">u4").tobytes(), ["every second number is 0"]),
        (np.arange(3000, dtype="<i8").tobytes(), ["every second number is 0"]),
        (b"TOKS\1\0\0\0" + (3000).to_bytes(8, "little") + np.arange(3000, dtype="<u2").tobytes(), ["= 16"]),
        (pickle.dumps(np.arange(3000, dtype="<u2")), ["pickle"]),
        (np.array([2, 16, 20, 24], "<u4").tobytes() + b"abcdefgh", ["MosaicML"]),
        (np.array([20240520, 9, 3, *[0] * 253], "<i4").tobytes() + bytes(6), ["llm.c", "version 9"]),
        (np.array([20240522, 1, 3, *[0] * 253], "<i4").tobytes() + bytes(6), ["llm.c"]),
        (litgpt([1, 2], 6), ["LitGPT", "type 6"]),
        (b"PK\x03\x04\x14\0\0\0\0\0" + bytes(20) + b"ids.npy", ["zip"]),
        (b"ARROW1\0\0" + bytes(60), ["Arrow"]),
    ],
)
def test_what_is_no_row_of_such_numbers_is_refused_with_the_key_that_reads_it(
    tmp_path: Path, content: bytes, words: list[str]
) -> None:
    file = tmp_path / "ids.bin"
    file.write_bytes(content[: len(content) // 2 * 2])
    with refused("ids.bin", *words, kind=DataError):
        documents(opened(table(file, "uint16")))
    raw = documents(opened(table(file, "uint16", header_bytes=0)))
    assert list(raw[0]) == np.frombuffer(file.read_bytes(), "<u2").tolist(), (
        "who asks for it gets all numbers"
    )


@given(st.integers(0, 1 << 30), st.sampled_from([300, 50_257, 65_536]), st.sampled_from(["<u2", "<u4"]))
def test_ids_are_never_taken_for_something_else(
    tmp_path: Path, seed: int, vocabulary: int, dtype: str
) -> None:
    ids = np.random.default_rng(seed).integers(0, vocabulary, 2000)
    ids[0] = np.random.default_rng(seed).choice([640, 896, 1152, 19778, 23117, 0])
    ids.astype(dtype).tofile(tmp_path / "ids.bin")
    read = documents(opened(table(tmp_path / "ids.bin", "uint16" if dtype == "<u2" else "uint32")))
    assert list(read[0]) == ids.tolist()
