"""Files of token ids: exact, mapped, in pieces; everything that is no row of integers is refused."""

from __future__ import annotations

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


def table(path: object, dtype: str | None = None) -> SimpleNamespace:
    return SimpleNamespace(type="pretokenized", path=path, dtype=dtype, suffixes=None)


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
    with refused("pickle.npy", "not a .npy file", kind=DataError):
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
    with refused("no file in", ".npy", kind=DataError):
        opened(table(tmp_path))
    source = opened(table(file, "uint8"))
    file.unlink()
    with refused("a.bin", "no such file", kind=DataError):
        documents(source)
