"""Files of token ids, read as streams: whatever `token_formats` knows, compressed or not."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ...errors import DataError
from .base import PIECE_TOKENS, Piece, Source, Tally
from .files import InputFile, shown
from .finding import find_files
from .token_formats import INDEX_MARK, Array, RawLayout, arrays

if TYPE_CHECKING:
    from ...config.schema.sources import PretokenizedSource

SUFFIXES = (".npy", ".bin", ".idx")
"""What a folder is searched for: arrays, shards, and the indexes that lie beside shards."""


class TokenFiles(Source):
    """Files of token ids. An array is a document, and so is each document that an index speaks of; where the tokenizer
    knows an end of text, so is what each of these ends.

    Args:
        files: also the indexes of Megatron files (`.idx`), which are read with the file beside them.
    """

    def __init__(
        self, files: Sequence[InputFile], layout: RawLayout | None = None, notes: Sequence[str] = ()
    ) -> None:
        self._layout = layout or RawLayout()
        self._indexes: dict[Path, InputFile] = {}
        self._tokens = []
        for file in files:
            if file.path.suffix == ".idx" and _begins(file, INDEX_MARK):
                self._indexes[file.path.with_suffix("")] = file
            else:
                self._tokens.append(file)
        for file in self._tokens:
            beside = InputFile(file.path.with_suffix(".idx"), shown(file.path.with_suffix(".idx")))
            if file.path.suffix == ".bin" and beside.path.is_file() and _begins(beside, INDEX_MARK):
                self._indexes.setdefault(file.path.with_suffix(""), beside)
        missing = self._indexes.keys() - {file.path.with_suffix("") for file in self._tokens}
        if missing:
            lost = self._indexes[min(missing)]
            raise DataError(
                f"{lost.name}: is the index of a .bin file that is not named or not there; name both"
            )
        settings = {
            "dtype": self._layout.dtype,
            "byte_order": self._layout.byte_order,
            "header_bytes": self._layout.header_bytes,
        }
        super().__init__("pretokenized", [*self._tokens, *self._indexes.values()], settings, notes)

    def _read(self, tally: Tally) -> Iterator[Piece]:
        for file in self._tokens:
            index = self._indexes.get(file.path.with_suffix("")) if file.path.suffix == ".bin" else None
            offset = 0
            with file.open() as stream:
                for array in arrays(stream, file, self._layout, index):
                    for starts, tokens in _parts(stream, array, file.name):
                        if len(tokens):
                            yield Piece(tokens, starts, file.name, offset)
                            offset += len(tokens)
                        else:
                            tally.empty_documents += 1
                if stream.peek(1):
                    raise DataError(f"{file.name}: holds more tokens than its header or index speaks of")
            if not file.size():
                tally.empty_documents += 1


def _begins(file: InputFile, mark: bytes) -> bool:
    with file.open() as stream:
        return stream.peek(len(mark)).startswith(mark)


def _parts(
    stream: io.BufferedReader, array: Array, name: str
) -> Iterator[tuple[bool, npt.NDArray[np.int64]]]:
    """(whether a document starts, int64 [n]) for the parts of an array; an empty document is an empty part."""
    if array.count is None:
        starts = True
        while len(tokens := _take(stream, array.dtype, PIECE_TOKENS, name)):
            yield starts, tokens
            starts = False
        return
    done = 0
    for length in [array.count] if array.documents is None else array.documents.tolist():
        if not length:
            yield True, np.zeros(0, np.int64)
        end = done + length
        starts = True
        while done < end:
            wanted = min(PIECE_TOKENS, end - done)
            tokens = _take(stream, array.dtype, wanted, name)
            done += len(tokens)
            if len(tokens) < wanted:
                raise DataError(
                    f"{name}: cut short: {array.count} tokens are promised, it ends after {done}; fetch it again"
                )
            yield starts, tokens
            starts = False


def _take(
    stream: io.BufferedReader, dtype: np.dtype[np.generic], most: int, name: str
) -> npt.NDArray[np.int64]:
    """The next tokens of a stream, at most `most`, int64 [n]; fewer only at its end."""
    data = stream.read(most * dtype.itemsize)
    if len(data) % dtype.itemsize:
        raise DataError(
            f"{name}: ends with {len(data) % dtype.itemsize} bytes of a {dtype.name} token: cut short, or another "
            "dataset.dtype or dataset.header_bytes"
        )
    tokens = np.frombuffer(data, dtype)
    if tokens.dtype == np.uint64 and (tokens > np.iinfo(np.int64).max).any():
        raise DataError(f"{name}: a token id beyond 63 bits; is dataset.dtype another?")
    return tokens.astype(np.int64)


def open_pretokenized(config: PretokenizedSource) -> Source:
    """The source of a `pretokenized` table."""
    files, notes = find_files(config.path, suffixes=SUFFIXES, chosen=config.suffixes, texts=False)
    return TokenFiles(files, layout_of(config), notes)


def layout_of(config: PretokenizedSource) -> RawLayout:
    """What a `pretokenized` table says about raw files."""
    return RawLayout(config.dtype, config.byte_order, config.header_bytes)
