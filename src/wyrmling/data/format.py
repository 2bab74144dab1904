"""The token file: how the tokens of one corpus lie on disk.

    offset 0             magic, version, length and SHA-256 of the header (little-endian, 48 bytes)
    offset 48            the header, UTF-8 JSON, then zeros up to HEADER_BYTES
    offset HEADER_BYTES  `count` tokens, little-endian, of the smallest width that holds vocab_size - 1,
                         then zeros up to a multiple of 8
    then                 `documents` int64, little-endian: the index of each document's first token
    then                 a hash of HASH_BYTES for each CHUNK_BYTES of what lies between the header and the hashes

The header is written last, into a file that still has its temporary name; the size of the file follows from
the header, which also holds the hash of the hashes. So whatever opens without complaint is whole, and what is
read of it, when it is read first, is compared with its hash: what was written is what is trained on.
"""

from __future__ import annotations

import hashlib
import json
import stat
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TypedDict

import numpy as np
import numpy.typing as npt

from ..errors import DataError

MAGIC = b"WYRMTOKS"
VERSION = 2
HEADER_BYTES = 16384
CHUNK_BYTES = 1 << 16
"""What is hashed at once: little to read for one window, and a table of hashes of 1/4096 of the file."""
HASH_BYTES = 16
_PREAMBLE = struct.Struct("<8sII32s")


class Header(TypedDict):
    """What a token file says about itself.

    fingerprint_text: SHA-256 over the bytes (or ids) of all documents and the borders between them.
    text_bytes: bytes of all documents; None when the data came as token ids.
    unknown: tokens that stand for something outside the vocabulary.
    hashes: the hash of the table of hashes, hexadecimal; empty where the tokens are in memory.
    named: the names of files in the notes, and the number of each among those of the source.
    """

    count: int
    documents: int
    dtype: str
    vocab_size: int
    text_bytes: int | None
    unknown: int
    fingerprint_text: str
    fingerprint_tokenizer: str
    source: str
    hashes: str
    named: dict[str, int]
    notes: list[str]


def token_dtype(vocab_size: int) -> np.dtype[np.generic]:
    """The smallest width that holds every id below `vocab_size`, little-endian."""
    for name in ("uint8", "uint16", "uint32"):
        if vocab_size - 1 <= np.iinfo(name).max:
            return on_disk(name)
    return on_disk("int64")


def on_disk(name: str) -> np.dtype[np.generic]:
    """The little-endian type of a name in a header."""
    return np.dtype(name).newbyteorder("<")


def documents_offset(header: Header) -> int:
    """Where the document starts begin, in bytes."""
    end = HEADER_BYTES + header["count"] * np.dtype(header["dtype"]).itemsize
    return -(-end // 8) * 8


def hashes_offset(header: Header) -> int:
    """Where the table of hashes begins, in bytes."""
    return documents_offset(header) + 8 * header["documents"]


def file_size(header: Header) -> int:
    """The size that a whole file has, in bytes."""
    chunks = -(-(hashes_offset(header) - HEADER_BYTES) // CHUNK_BYTES)
    return hashes_offset(header) + HASH_BYTES * chunks


def hash_of(content: bytes | bytearray | memoryview) -> bytes:
    """The hash of a chunk, or of the table of hashes."""
    return hashlib.blake2b(content, digest_size=HASH_BYTES).digest()


class ChunkHashes:
    """The hashes of the chunks of a stream of bytes that comes in parts of any size."""

    def __init__(self) -> None:
        self._open = bytearray()
        self._hashes = bytearray()

    def update(self, content: bytes | memoryview) -> None:
        """The next bytes."""
        view, start = memoryview(content), CHUNK_BYTES - len(self._open)
        self._open += view[:start]
        while len(self._open) == CHUNK_BYTES:
            self._hashes += hash_of(self._open)
            self._open = bytearray(view[start : start + CHUNK_BYTES])
            start += CHUNK_BYTES

    def table(self) -> bytes:
        """All hashes, that of an unfinished last chunk included; nothing can follow."""
        if self._open:
            self._hashes += hash_of(self._open)
            self._open = bytearray()
        return bytes(self._hashes)


@dataclass
class CheckedBytes:
    """The bytes of an opened token file between header and hashes, each chunk compared with its hash when it is first
    asked for.

    Attributes:
        path, inode: the file.
        content: uint8 [bytes], mapped.
        hashes: the table of hashes.
    """

    path: Path
    inode: int
    content: npt.NDArray[np.uint8]
    hashes: bytes
    _unread: bytearray = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._unread = bytearray(b"\1") * (len(self.hashes) // HASH_BYTES)

    def check(self, start: int, stop: int) -> None:
        """Make sure that the bytes start .. stop - 1 are what was written.

        Raises:
            DataError: they are not.
        """
        for chunk in range(start // CHUNK_BYTES, -(-stop // CHUNK_BYTES)):
            if self._unread[chunk]:
                at = chunk * CHUNK_BYTES
                found = hash_of(self.content[at : at + CHUNK_BYTES].data)
                if found != self.hashes[chunk * HASH_BYTES : (chunk + 1) * HASH_BYTES]:
                    raise damaged(self.path, f"bytes from {HEADER_BYTES + at} on were altered")
                self._unread[chunk] = 0


def write_header(file: IO[bytes], header: Header) -> None:
    """Write preamble and header at the start of a file; of notes that do not fit, only the number stays."""
    room = HEADER_BYTES - _PREAMBLE.size
    content = json.dumps(header, ensure_ascii=False).encode()
    kept = header["notes"]
    while len(content) > room and kept:
        kept = kept[:-1]
        left_out = len(header["notes"]) - len(kept)
        shortened = {**header, "notes": [*kept, f"{left_out} more notes left out"]}
        content = json.dumps(shortened, ensure_ascii=False).encode()
    file.seek(0)
    file.write(_PREAMBLE.pack(MAGIC, VERSION, len(content), hashlib.sha256(content).digest()))
    file.write(content.ljust(room, b"\0"))


def read_header(path: Path) -> Header:
    """The header of a token file whose size and header are as they were written.

    Raises:
        DataError: the file is not a token file, of another version, cut short or altered; missing or
        unreadable.
    """
    try:
        if path.exists() and not stat.S_ISREG(path.stat().st_mode):
            raise damaged(path, "it is not a regular file")
        with path.open("rb") as file:
            start = file.read(HEADER_BYTES)
        size = path.stat().st_size
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error
    if len(start) < HEADER_BYTES:
        raise damaged(path, f"it ends after {size} bytes")
    magic, version, length, digest = _PREAMBLE.unpack_from(start)
    if magic != MAGIC:
        raise damaged(path, "it does not start like a token file")
    if version != VERSION:
        raise damaged(path, f"it has format {version}, this program reads format {VERSION}")
    content = start[_PREAMBLE.size : _PREAMBLE.size + length]
    if hashlib.sha256(content).digest() != digest:
        raise damaged(path, "its header was altered")
    try:
        header = _checked(json.loads(content))
    except (ValueError, TypeError, KeyError):
        raise damaged(path, "its header is none of this format") from None
    if size != file_size(header):
        raise damaged(path, f"it has {size} bytes instead of {file_size(header)}")
    return header


def _checked(header: Header) -> Header:
    """Raises KeyError, TypeError or ValueError where a header lacks something or contradicts itself."""
    numbers = [header["count"], header["documents"], header["vocab_size"], header["unknown"]]
    texts = [header["fingerprint_text"], header["fingerprint_tokenizer"], header["source"], header["hashes"]]
    notes = [*header["notes"], *header["named"]]
    if not all(type(number) is int for number in [*numbers, *header["named"].values()]):
        raise TypeError("a count is a whole number")
    if not all(isinstance(text, str) for text in [*texts, *notes]):
        raise TypeError("a text is a text")
    if not 0 < header["documents"] <= header["count"] or header["vocab_size"] < 1:
        raise ValueError("a file has tokens, and documents have one at least")
    if header["dtype"] != token_dtype(header["vocab_size"]).name:
        raise ValueError("the width of a token follows from the vocabulary")
    return header


def damaged(path: Path, reason: str) -> DataError:
    """The error for a token file that cannot be trusted."""
    return DataError(f"token file {path} is damaged ({reason}): delete it, and it is built again")
