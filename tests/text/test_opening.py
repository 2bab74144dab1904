"""Files are known by what they hold: what is compressed is decompressed, texts are decoded, the rest refused."""

from __future__ import annotations

import bz2
import gzip
import io
import itertools
import lzma
import pickle
import random
import sqlite3
import struct
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace as Table

import numpy as np
import pytest
from backports import zstd
from hypothesis import given, settings
from hypothesis import strategies as st
from text_helpers import documents, local, opened, refused

from wyrmling.errors import DataError
from wyrmling.text.sources import opening
from wyrmling.text.sources.opening import text_of

TEXT = b"".join(b"line %d of a text that is worth compressing\n" % index for index in range(400))
COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "lzma": lambda data: lzma.compress(data, lzma.FORMAT_ALONE),
    "zstd": lambda data: zstd.compress(data, options={zstd.CompressionParameter.checksum_flag: True}),
}
compressors = pytest.mark.parametrize("compression", COMPRESSORS)


@compressors
def test_compressed_text_is_unpacked_whatever_its_name(tmp_path: Path, compression: str) -> None:
    for name in ("plain.txt", "of.no.kind", "nothing"):
        file = tmp_path / name
        file.write_bytes(COMPRESSORS[compression](TEXT))
        assert documents(opened(local(file))) == [TEXT]
        assert documents(opened(local(file, tokenizer=Table(type="byte")))) == [TEXT]
        assert opened(local(file)).total_bytes is None


@compressors
@settings(max_examples=20)
@given(cuts=st.lists(st.integers(0, len(TEXT)), max_size=4), zeros=st.integers(0, 3))
def test_all_members_are_read_and_zeros_behind_them_are_padding(
    compression: str, cuts: list[int], zeros: int
) -> None:
    borders = [0, *sorted(cuts), len(TEXT)]
    parts = [TEXT[a:b] for a, b in itertools.pairwise(borders)]
    if compression == "lzma":
        parts = [TEXT]  # this format has one member
    compressed = b"".join(COMPRESSORS[compression](part) for part in parts) + b"\0" * 4 * zeros
    assert text_of(compressed, "file") == TEXT


@compressors
@pytest.mark.parametrize("damage", ["cut", "cut at the end", "flipped", "garbage after", "another after"])
def test_damaged_compressed_files_are_refused_in_one_line(compression: str, damage: str) -> None:
    noise = random.Random(1).randbytes(3000).hex().encode()
    compressed = bytearray(COMPRESSORS[compression](noise))
    if damage == "cut":
        compressed = compressed[: len(compressed) // 2]
    elif damage == "cut at the end":
        compressed = compressed[:-1]
    elif damage == "flipped":
        compressed[len(compressed) // 2] ^= 0xFF
    elif damage == "garbage after":
        compressed += b"something else that follows"
    else:
        compressed += noise
    with refused("file", compression, kind=DataError):
        text_of(bytes(compressed), "file")


def test_compressed_twice_is_unpacked_twice_and_an_archive_in_it_is_refused() -> None:
    assert text_of(gzip.compress(zstd.compress(TEXT)), "file") == TEXT
    with refused("file", "compressed more than", kind=DataError):
        text_of(gzip.compress(gzip.compress(gzip.compress(gzip.compress(TEXT)))), "file")
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as tar:
        member = tarfile.TarInfo("a.txt")
        member.size = len(TEXT)
        tar.addfile(member, io.BytesIO(TEXT))
    with refused("file", "tar archive", kind=DataError):
        text_of(archive.getvalue(), "file")


@compressors
def test_what_unpacks_to_far_too_much_is_refused(
    tmp_path: Path, compression: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "bomb.txt"
    file.write_bytes(COMPRESSORS[compression](b"a" * (8 << 20)))
    with refused("bomb.txt", "1 MiB", "dataset.max_decompressed_mb", kind=DataError):
        documents(opened(local(file, max_decompressed_mb=1)))
    assert sum(map(len, documents(opened(local(file, max_decompressed_mb=8))))) == 8 << 20
    monkeypatch.setattr(opening, "_SMALL_ENOUGH", 1 << 20)
    with refused("bomb.txt", "200 times", "dataset.max_decompressed_mb", kind=DataError):
        documents(opened(local(file)))


def test_zstd_without_its_package_is_one_line_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("compression.zstd", "backports.zstd", "backports"):
        monkeypatch.setitem(sys.modules, module, None)
    with refused("file", "zstd", "pip install backports.zstd", kind=DataError):
        text_of(zstd.compress(TEXT), "file")


def test_a_name_that_promises_a_packing_is_held_to_it(tmp_path: Path) -> None:
    for end, compression in ((".gz", "gzip"), (".bz2", "bzip2"), (".xz", "xz"), (".zst", "zstd")):
        file = tmp_path / f"page.txt{end}"
        file.write_bytes(b"<html>404: not found</html>")
        with refused(file.name, compression, kind=DataError):
            documents(opened(local(file)))


def _zip(*members: tuple[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, content in members:
            archive.writestr(name, content)
    return stream.getvalue()


def _saved(save: Callable[[io.BytesIO], None]) -> bytes:
    stream = io.BytesIO()
    save(stream)
    return stream.getvalue()


def _database() -> bytes:
    base = sqlite3.connect(":memory:")
    base.execute("create table texts (text)")
    base.execute("insert into texts values (?)", (TEXT.decode(),))
    return base.serialize()


FORMATS = {
    "zip archive": _zip(("a.txt", TEXT)),
    "Office document": _zip(("[Content_Types].xml", b"<x/>"), ("word/document.xml", TEXT)),
    "OpenDocument": _zip(("mimetype", b"application/vnd.oasis.opendocument.text"), ("content.xml", TEXT)),
    "EPUB": _zip(("mimetype", b"application/epub+zip"), ("text.html", TEXT)),
    "PyTorch": _zip(("archive/data.pkl", pickle.dumps({})), ("archive/data/0", bytes(400))),
    ".npz": _saved(lambda stream: np.savez(stream, ids=np.arange(9))),
    'dataset.type = "pretokenized"': _saved(lambda stream: np.save(stream, np.arange(9))),
    "llm.c": np.array([20240520, 1, 9, *[0] * 253], "<i4").tobytes() + np.arange(9, dtype="<u2").tobytes(),
    "pickle": pickle.dumps([TEXT, 1]),
    "Python pickle": pickle.dumps({"text": TEXT.decode()}, 0),
    "(which is never loaded)": pickle.dumps({"text": TEXT.decode()}, 1),
    "ar or cpio": b"!<arch>\n" + b"a.txt/".ljust(58) + b"`\n" + TEXT,
    "safetensors": struct.pack("<Q", 60)
    + b'{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}      '
    + bytes(8),
    "PDF": b"%PDF-1.4\n1 0 obj\n<< /Type /Catalog >>\nendobj\n",
    "SQLite": _database(),
    "ELF": b"\x7fELF\x02\x01\x01" + bytes(60),
    "Windows": b"MZ\x90\0\x03\0\0\0\x04\0\0\0\xff\xff\0\0"
    + bytes(60)
    + b"This program cannot be run in DOS mode",
    "PNG": b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + bytes(40),
    "JPEG": b"\xff\xd8\xff\xe0\0\x10JFIF\0" + bytes(40),
    "GIF": b"GIF89a\x01\0\x01\0\x80\0\0" + bytes(40),
    "7-Zip": b"7z\xbc\xaf\x27\x1c\0\x04" + bytes(40),
    "RAR": b"Rar!\x1a\x07\x01\0" + bytes(40),
    "HDF5": b"\x89HDF\r\n\x1a\n" + bytes(40),
    "Feather": b"ARROW1\0\0" + bytes(40),
    "parquet": b"PAR1\x15\x04\x15\0\x15\x02\x4c\x15\x02\x15\0\x12\0\0\0\0" + TEXT + b"PAR1",
    "binary data": random.Random(0).randbytes(4000),
    "control characters": bytes(range(16)) * 9,
}


@pytest.mark.parametrize("name", FORMATS)
def test_what_is_no_text_is_refused_by_name(tmp_path: Path, name: str) -> None:
    file = tmp_path / "corpus.txt"
    for content in (FORMATS[name], gzip.compress(FORMATS[name])):
        file.write_bytes(content)
        with refused("corpus.txt", name, "not plain text", kind=DataError):
            documents(opened(local(file, tokenizer=Table(type="byte"))))
    file.write_bytes(FORMATS[name])
    raw = opened(local(file, encoding="raw", tokenizer=Table(type="byte")))
    assert documents(raw) == [FORMATS[name]], "who asks for raw bytes gets them"


BEGINNINGS = (
    "BZh,BZh9 begins bzip2,PK,PAR1,MZ,BM,GIF89a,%PDF-1.4 is a format,RIFF,Rar!,%!PS-Adobe,ID3,ORC,7z,\x1f\x8b"
)
BEGINNINGS += (
    ",\x1b[1m,{\\rtf1,NUMPY,\ufeff,abcdftyp,ÿþ,\ufffd\ufffd,(\x80,!<arch>\n,LITPKDS,\x08,MMIDIDX,LZIP"
)


@pytest.mark.parametrize("beginning", [*BEGINNINGS.split(","), "ustar".rjust(262)])
def test_a_text_may_begin_with_anything(beginning: str) -> None:
    text = (beginning + " and then it goes on as any text does.\n" * 20).encode()
    assert text_of(text, "file") == text.removeprefix(b"\xef\xbb\xbf")
    for odd in (b"\xff\xfe", b"\x80\x04", b"\x1f\x8b", b"\0", b"\xef\xbb", b"\x28\xb5"):
        assert text_of(odd + text, "file") == odd + text


def test_nul_between_texts_is_no_utf16() -> None:
    with refused("binary data", kind=DataError):
        text_of(b"path/to/file\0" * 100, "file")


SAMPLES = {
    "English": "It was the best of times, it was the worst of times.\nIt was the age of wisdom…\n" * 40,
    "Russian": "Все счастливые семьи похожи друг на друга.\n" * 40,
    "Chinese": "学而时习之，不亦说乎？有朋自远方来，不亦乐乎？\n" * 40,
    "Japanese": "吾輩は猫である。名前はまだ無い。\n" * 40,
    "Korean": "죽는 날까지 하늘을 우러러 한 점 부끄럼이 없기를\n" * 40,
    "astral": "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 😀 text\n" * 40,
}
wide = pytest.mark.parametrize(
    "encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be"]
)


@pytest.mark.parametrize("sample", SAMPLES)
@wide
def test_utf16_and_utf32_are_named_with_the_remedy_and_read_by_it(
    tmp_path: Path, sample: str, encoding: str
) -> None:
    file = tmp_path / "wide.txt"
    text = SAMPLES[sample]
    for compressed in (False, True):
        data = text.encode(encoding)
        file.write_bytes(gzip.compress(data) if compressed else data)
        for other in ("utf-8", "cp1252"):
            with refused("wide.txt", f'dataset.encoding = "{encoding}"', kind=DataError):
                documents(opened(local(file, encoding=other)))
        assert documents(opened(local(file, encoding=encoding))) == [text.encode()]


def test_a_byte_order_mark_decides_the_order_and_is_no_text() -> None:
    for order in ("le", "be"):
        marked = ("\ufeff" + SAMPLES["English"]).encode(f"utf-16-{order}")
        assert text_of(marked, "file", "utf-16") == SAMPLES["English"].encode()
        assert text_of(marked, "file", f"utf-16-{order}") == SAMPLES["English"].encode()
    with refused("UTF-16-BE", kind=DataError):
        text_of(SAMPLES["English"].encode("utf-16-be"), "file", "utf-16")
    with refused("UTF-8", "dataset.encoding", kind=DataError):
        text_of(SAMPLES["English"].encode(), "file", "utf-16")


@given(
    st.sampled_from(
        ["latin-1", "cp1252", "cp1251", "koi8-r", "utf-16-le", "utf-32-be", "shift_jis", "gb18030", "cp037"]
    ),
    st.integers(1, 9),
    st.integers(0, 3),
)
def test_decoding_does_not_depend_on_how_the_stream_is_cut(encoding: str, chunk: int, shift: int) -> None:
    alphabet = "aé ж я\n日本 x" if encoding in ("utf-16-le", "utf-32-be", "gb18030") else "ab c\n"
    extra = {
        "cp1251": "Вж",
        "koi8-r": "Вж",
        "shift_jis": "日本",
        "latin-1": "éü",
        "cp1252": "€é",
        "cp037": "é",
    }
    text = "x" * shift + (alphabet + extra.get(encoding, "")) * 50
    stream = io.BufferedReader(opening._Decoding(io.BytesIO(text.encode(encoding)), "file", encoding, True))  # type: ignore[arg-type]
    before = opening.CHUNK_BYTES
    try:
        opening.CHUNK_BYTES = chunk
        assert stream.read() == text.encode()
    finally:
        opening.CHUNK_BYTES = before


def test_bytes_outside_the_encoding_are_refused_with_their_place_or_replaced(tmp_path: Path) -> None:
    file = tmp_path / "old.txt"
    file.write_bytes(b"caf\xe9 \x81 bar\n" * 3)
    with refused("old.txt", "0x81", "offset 5", "cp1252", "invalid_utf8", kind=DataError):
        documents(opened(local(file, encoding="cp1252")))
    for tokenizer in ("char", "byte"):
        source = opened(
            local(file, encoding="cp1252", invalid_utf8="replace", tokenizer=Table(type=tokenizer))
        )
        assert documents(source) == ["café \ufffd bar\n".encode() * 3]
        assert any("3 invalid byte sequences replaced" in note for note in source.notes)
    assert documents(opened(local(file, encoding="latin-1"))) == ["café \x81 bar\n".encode() * 3]


def test_utf8_that_is_read_as_something_else_is_told(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes("café\n".encode())
    source = opened(local(file, encoding="latin-1"))
    assert documents(source) == ["cafÃ©\n".encode()]
    assert any("a.txt" in note and "UTF-8" in note and "dataset.encoding" in note for note in source.notes)
    file.write_bytes(b"cafe\n")
    documents(source)
    assert not source.notes
