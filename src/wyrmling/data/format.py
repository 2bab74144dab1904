"""The token file: how the tokens of one corpus lie on disk.

    offset 0             magic, version, length and SHA-256 of the header (little-endian, 48 bytes)
    offset 48            the header, UTF-8 JSON, then zeros up to HEADER_BYTES
    offset HEADER_BYTES  `count` tokens, little-endian, of the smallest width that holds vocab_size - 1,
                         then zeros up to a multiple of 8
    then                 `documents` int64, little-endian: the index of each document's first token

The header is written last, into a file that still has its temporary name; the size of the file follows from
the header. So whatever opens without complaint is whole.
"""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path
from typing import IO, TypedDict, cast

import numpy as np

from ..errors import DataError

MAGIC = b"WYRMTOKS"
VERSION = 1
HEADER_BYTES = 16384
_PREAMBLE = struct.Struct("<8sII32s")


class Header(TypedDict):
    """What a token file says about itself.

    fingerprint_text: SHA-256 over the bytes (or ids) of all documents and the borders between them.
    text_bytes: bytes of all documents; None when the data came as token ids.
    unknown: tokens that stand for something outside the vocabulary.
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


def file_size(header: Header) -> int:
    """The size that a whole file has, in bytes."""
    return documents_offset(header) + 8 * header["documents"]


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
    header = cast(Header, json.loads(content))
    if size != file_size(header):
        raise damaged(path, f"it has {size} bytes instead of {file_size(header)}")
    return header


def damaged(path: Path, reason: str) -> DataError:
    """The error for a token file that cannot be trusted."""
    return DataError(f"token file {path} is damaged ({reason}): delete it, and it is built again")
