"""Files of token ids, memory-mapped: `.npy` or raw little-endian integers. One file is one document."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import DataError
from .base import PIECE_TOKENS, Piece, Source, Tally
from .files import InputFile, refusal
from .finding import find_files

if TYPE_CHECKING:
    from ...config.schema.sources import PretokenizedSource

RAW_TYPES = ("uint8", "uint16", "uint32", "int32", "int64")


class TokenFiles(Source):
    """Files of token ids.

    Args:
        dtype: the type of raw files (all that do not end in `.npy`), one of `RAW_TYPES`; None: all do.
    """

    def __init__(self, files: Sequence[InputFile], *, dtype: str | None, notes: Sequence[str] = ()) -> None:
        super().__init__("pretokenized", files, {"dtype": dtype}, notes)
        self._dtype = dtype

    def _read(self, tally: Tally) -> Iterator[Piece]:
        for file in self.files:
            tokens = self._map(file)
            for start in range(0, len(tokens), PIECE_TOKENS):
                part = tokens[start : start + PIECE_TOKENS]
                if part.dtype == np.uint64 and part.max() > np.iinfo(np.int64).max:
                    raise DataError(f"{file.name}: a token id beyond 63 bits near token {start}")
                yield Piece(part.astype(np.int64), start == 0, file.name, start)
            if not len(tokens):
                tally.empty_documents += 1

    def _map(self, file: InputFile) -> np.ndarray:
        """The file's tokens, [n], mapped read-only.

        Raises:
            DataError: not a one-dimensional array of integers, cut short, or of unknown type.
        """
        try:
            if file.path.name.lower().endswith(".npy"):
                return _map_npy(file)
            return self._map_raw(file)
        except OSError as error:
            raise refusal(file.name, error) from error

    def _map_raw(self, file: InputFile) -> np.ndarray:
        if self._dtype is None:
            raise DataError(
                f"{file.name}: not a .npy file; set dataset.dtype to one of {', '.join(RAW_TYPES)}"
            )
        dtype = np.dtype(self._dtype).newbyteorder("<")
        size = file.size()
        if size % dtype.itemsize:
            raise DataError(f"{file.name}: {size} bytes are not a whole number of {self._dtype} tokens")
        if not size:
            return np.zeros(0, dtype)
        return np.memmap(file.path, dtype, mode="r")


def _map_npy(file: InputFile) -> np.ndarray:
    with file.path.open("rb") as stream:
        if stream.read(6) != b"\x93NUMPY":
            raise DataError(f"{file.name}: not a .npy file (it does not begin like one)")
        try:
            version = np.lib.format.read_magic(_rewound(stream))
            read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else _read_header_2
            shape, _, dtype = read_header(stream)
        except ValueError as error:
            raise DataError(f"{file.name}: damaged .npy header ({_one_line(error)})") from error
        start = stream.tell()
    if dtype.hasobject:
        raise DataError(f"{file.name}: holds Python objects, which are never loaded; save integers")
    if len(shape) != 1 or dtype.kind not in "iu":
        raise DataError(
            f"{file.name}: a one-dimensional array of integers is needed, this is {dtype} of shape {shape}"
        )
    needed = start + shape[0] * dtype.itemsize
    if file.size() < needed:
        raise DataError(f"{file.name}: cut short ({file.size()} bytes, its header promises {needed})")
    if not shape[0]:
        return np.zeros(0, dtype)
    return np.memmap(file.path, dtype, mode="r", offset=start, shape=shape)


def _rewound(stream: Any) -> Any:
    stream.seek(0)
    return stream


def _read_header_2(stream: Any) -> Any:
    return np.lib.format.read_array_header_2_0(stream)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


def open_pretokenized(config: PretokenizedSource) -> Source:
    """The source of a `pretokenized` table."""
    suffixes = (".npy",) if config.dtype is None else (".npy", ".bin")
    files, notes = find_files(config.path, suffixes=suffixes, chosen=config.suffixes)
    return TokenFiles(files, dtype=config.dtype, notes=notes)
