"""How files of token ids are laid out: NumPy arrays, shards of public programs with their headers, raw numbers.

| begins with | written by | layout |
|---|---|---|
| `\\x93NUMPY` | NumPy (`numpy.save`) | one array of integers, or several one after the other |
| int32 20240520, version 1 | llm.c, modded-nanogpt | a header of 256 int32 with the number of tokens, then uint16 |
| int32 20240801, version 7 | llm.c (Llama 3) | the same, then uint32 |
| `LITPKDS` | LitGPT | a header of 24 bytes with type and number, then the tokens |
| `MMIDIDX` in the `.idx` beside | Megatron-LM, GPT-NeoX | raw tokens, with type and documents in the index |
| anything else | nanoGPT, OLMo (Dolma), ... | raw numbers; `dtype` says of which type |
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ...errors import DataError
from .content import HEAD_BYTES, NO_TEXT, format_of, looks_like_text
from .files import InputFile

NUMPY_MARK = b"\x93NUMPY"
INDEX_MARK = b"MMIDIDX\0\0"
_LITGPT = struct.Struct("<7sQBQ")
_LITGPT_TYPES = "", "uint8", "int8", "int16", "int32", "int64", "float32", "float64", "uint16"
_LLM_C_HEADER = 256 * 4
_LLM_C = {(20240520, 1): "uint16", (20240801, 7): "uint32"}
_LLM_C_MAGICS = {20240520, 20240522, 20240801}
_INDEX = struct.Struct("<9sQBQQ")
_INDEX_TYPES = {1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 8: "uint16"}
_AS_NUMBERS = "dataset.header_bytes = 0 and dataset.dtype read it as numbers from its first byte on"
_LOOKED_AT = 4096


@dataclass(frozen=True)
class RawLayout:
    """What the user says about raw files: type and byte order of the numbers, bytes before the first of them.

    header_bytes: None where files that begin as a known format are read as that.
    """

    dtype: str | None = None
    byte_order: str = "little"
    header_bytes: int | None = None

    def number_type(self) -> np.dtype[Any] | None:
        """The type of a number on disk."""
        order: Literal["<", ">"] = "<" if self.byte_order == "little" else ">"
        return None if self.dtype is None else np.dtype(self.dtype).newbyteorder(order)


@dataclass(frozen=True)
class Array:
    """Tokens that follow in a stream.

    count: how many; None: all that are there.
    documents: int64 [documents], their lengths; None: they are one document.
    """

    dtype: np.dtype[Any]
    count: int | None
    documents: npt.NDArray[np.int64] | None = None


def arrays(
    stream: io.BufferedReader, file: InputFile, layout: RawLayout, index: InputFile | None
) -> Iterator[Array]:
    """The arrays of a file, in order. The stream stands at the first token of each as it is given out, and must
    stand behind its last one when the next is asked for.

    Args:
        index: the index of a Megatron file, which lies beside it.

    Raises:
        DataError: no such array, of a type that cannot be ids, damaged; bytes that no header speaks of.
    """
    if layout.header_bytes is not None:
        skipped = stream.read(layout.header_bytes)
        if len(skipped) < layout.header_bytes:
            raise DataError(f"{file.name}: ends within dataset.header_bytes = {layout.header_bytes}")
        yield _raw_array(file, layout)
        return
    head = stream.peek(HEAD_BYTES)[:HEAD_BYTES]
    magic, version = struct.unpack("<ii", head[:8].ljust(8, b"\0"))
    if head.startswith(NUMPY_MARK):
        while stream.peek(1):
            yield _numpy_array(stream, file)
    elif index is not None:
        yield _indexed(file, index)
    elif magic in _LLM_C_MAGICS and len(head) >= _LLM_C_HEADER:
        yield _llm_c_array(stream, file, magic, version)
    elif head.startswith(b"LITPKDS"):
        yield _litgpt_array(stream, file)
    elif head:
        _check_raw(head, file, layout)
        yield _raw_array(file, layout)


def _numpy_array(stream: io.BufferedReader, file: InputFile) -> Array:
    if not stream.peek(len(NUMPY_MARK)).startswith(NUMPY_MARK):
        more = sum(map(len, iter(lambda: stream.read(1 << 20), b"")))
        raise DataError(
            f"{file.name}: {more} bytes follow the array that its header speaks of; save it again, or read all of it "
            "as raw numbers with dataset.header_bytes and dataset.dtype"
        )
    try:
        version = np.lib.format.read_magic(stream)
        read_header: Any = np.lib.format.read_array_header_2_0
        if version == (1, 0):
            read_header = np.lib.format.read_array_header_1_0
        shape, _, dtype = read_header(stream)
    except ValueError as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError(f"{file.name}: damaged .npy header ({reason})") from error
    if dtype.hasobject:
        raise DataError(f"{file.name}: holds Python objects, which are never loaded; save integers")
    if len(shape) != 1 or dtype.kind not in "iu":
        remedy = ""
        if dtype.kind in "fb":
            remedy = "; save whole numbers: ids.astype(numpy.uint32)"
        elif dtype.kind in "iu":
            remedy = "; save ids.reshape(-1), or each row as a file of its own"
        raise DataError(
            f"{file.name}: a one-dimensional array of integers is needed, this is {dtype} of shape {shape}{remedy}"
        )
    return Array(dtype, shape[0])


def _llm_c_array(stream: io.BufferedReader, file: InputFile, magic: int, version: int) -> Array:
    name = _LLM_C.get((magic, version))
    if name is None:
        raise DataError(
            f"{file.name}: begins as a file of llm.c of kind {magic}, version {version}, which is no file of tokens "
            f"that is known; {_AS_NUMBERS}"
        )
    count = struct.unpack_from("<i", stream.read(_LLM_C_HEADER), 8)[0]
    return Array(np.dtype(name).newbyteorder("<"), count)


def _litgpt_array(stream: io.BufferedReader, file: InputFile) -> Array:
    header = stream.read(_LITGPT.size)
    if len(header) < _LITGPT.size:
        raise DataError(f"{file.name}: ends within its header (LitGPT)")
    _, version, code, count = _LITGPT.unpack(header)
    name = _LITGPT_TYPES[code] if code < len(_LITGPT_TYPES) else ""
    if version != 1 or "int" not in name:
        raise DataError(
            f"{file.name}: begins as a file of LitGPT of version {version}, type {code}, which is not known; "
            f"{_AS_NUMBERS}"
        )
    return Array(np.dtype(name).newbyteorder("<"), count)


def _indexed(file: InputFile, index: InputFile) -> Array:
    """Type and documents of a file by its index.

    The index holds, after its header, the lengths of sequences, int32 [n], where they begin in the file, int64 [n],
    and the sequences with which documents begin and all end, int64 [documents + 1].
    """
    with index.open() as stream:
        header, rest = stream.read(_INDEX.size), stream.read()
    unclear = DataError(
        f"{index.name}: does not describe {file.name}; fetch both again, or remove it and {_AS_NUMBERS}"
    )
    if len(header) < _INDEX.size:
        raise unclear
    mark, version, code, sequences, borders = _INDEX.unpack(header)
    needed = 12 * sequences + 8 * borders
    if mark != INDEX_MARK or version != 1 or code not in _INDEX_TYPES or len(rest) < needed:
        raise unclear
    dtype = np.dtype(_INDEX_TYPES[code]).newbyteorder("<")
    lengths = np.frombuffer(rest, "<i4", sequences).astype(np.int64)
    starts = np.frombuffer(rest, "<i8", sequences, 4 * sequences)
    firsts = np.frombuffer(rest, "<i8", borders, 12 * sequences)
    ends = np.concatenate([[0], np.cumsum(lengths)])
    whole = borders > 1 and firsts[0] == 0 and firsts[-1] == sequences and (np.diff(firsts) >= 0).all()
    if not whole or (lengths < 0).any() or (starts != ends[:-1] * dtype.itemsize).any():
        raise unclear
    return Array(dtype, int(ends[-1]), np.diff(ends[firsts]))


def _raw_type(file: InputFile, layout: RawLayout) -> np.dtype[Any]:
    dtype = layout.number_type()
    if dtype is None:
        raise DataError(
            f"{file.name}: not a .npy file; if it holds raw numbers, set dataset.dtype to their type "
            "(uint16 for vocabularies of up to 65,536 as GPT-2's, else mostly uint32)"
        )
    return dtype


def _raw_array(file: InputFile, layout: RawLayout) -> Array:
    dtype, size = _raw_type(file, layout), file.size() - (layout.header_bytes or 0)
    if size % dtype.itemsize and not file.compressed:
        raise DataError(
            f"{file.name}: {size} bytes are not a whole number of {layout.dtype} tokens; is it cut short, or is "
            "dataset.dtype or dataset.header_bytes another?"
        )
    return Array(dtype, None)


def _check_raw(head: bytes, file: InputFile, layout: RawLayout) -> None:
    """Refuse what does not look like raw numbers of the type that is said.

    Raises:
        DataError: names the key that reads it.
    """
    found = format_of(head, sure=True)
    if found is not None:
        remedy = "save its numbers with numpy.save" if found[1] == NO_TEXT else found[1]
        raise DataError(f"{file.name}: is {found[0]}, not a file of token ids; {remedy}")
    count, first, last = len(head) // 4 - 2, *struct.unpack("<II", head[:8].ljust(8, b"\0"))
    if 0 < first <= count and last == 4 * first + 8:
        raise DataError(
            f"{file.name}: begins as a shard of MosaicML Streaming or LitData; export its tokens as .npy, or as JSON "
            f"lines ({_AS_NUMBERS})"
        )
    if layout.dtype != "uint8" and len(head) >= 64 and head.isascii() and looks_like_text(head):
        raise DataError(
            f"{file.name}: is text, not raw numbers; lists of ids in JSON lines are read by "
            f'dataset.type = "jsonl" with sequence_field ({_AS_NUMBERS})'
        )
    dtype = _raw_type(file, layout)
    header = _unknown_header(head, file, dtype)
    if header is not None:
        raise DataError(
            f"{file.name}: begins with a header of {header} bytes, it seems; set dataset.header_bytes = {header} to "
            "read what follows it, or 0 to read it as tokens too"
        )
    numbers = np.frombuffer(head[: len(head) // dtype.itemsize * dtype.itemsize], dtype)[:_LOOKED_AT]
    for zeros, others in ((numbers[1::2], numbers[::2]), (numbers[::2], numbers[1::2])):
        if len(zeros) >= 32 and not zeros.any() and np.count_nonzero(others) * 8 > len(others):
            raise DataError(
                f"{file.name}: every second number is 0: are the numbers wider than {layout.dtype}? Correct "
                "dataset.dtype, or set dataset.header_bytes = 0 if they are not"
            )


def _unknown_header(head: bytes, file: InputFile, dtype: np.dtype[Any]) -> int | None:
    """The bytes of what looks like a header: mostly zeros where what follows is not; or the number of tokens that
    follow, which is larger than any of them or stands behind a name.
    """
    rest = head[1024 : 1024 + _LOOKED_AT]
    if any(head[:4]) and head[:1024].count(0) > 960 and bytes(512) in head[:1024]:
        return 1024 if rest and bytes(512) not in rest else None
    size = 0 if file.compressed else file.size()
    for length in (*range(8, 68, 4), 128, 256, 512, 1024):
        count, odd = divmod(size - length, dtype.itemsize)
        if count < 1 or odd or count not in np.frombuffer(head[:length], "<u4", length // 4)[:16]:
            continue
        numbers = np.frombuffer(head[length:], dtype, min(count, (len(head) - length) // dtype.itemsize))
        if count > numbers.max() or head[:4].isalnum():
            return length
    return None
