"""From pieces of text to tokens, in one pass and bounded memory, with borders, fingerprints and counts."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ..errors import DataError
from ..text.sources import Piece
from ..text.tokenizers import Tokenizer
from .format import token_dtype

Progress = Callable[[int, int | None], None]
"""Told of the bytes read so far and of all bytes there are (None when that is not known)."""


class TokenSink(Protocol):
    """Where an `Encoder` puts what it makes."""

    def tokens(self, ids: npt.NDArray[np.int64]) -> None:
        """The next tokens, checked."""
        ...

    def document(self, start: int) -> None:
        """The index of the first token of a document that turned out not to be empty."""
        ...


class Encoder:
    """Encodes documents that arrive in pieces.

    EOS follows every document when the tokenizer has one, unless the document already ends with it (token
    ids often come so). Documents without a token are left out and counted.

    The fingerprint hashes, for every document, its bytes (ids as little-endian int64), its kind and its
    length in bytes: it depends on documents and their borders, never on how they were cut into pieces.

    Args:
        ready: pieces of ids are this tokenizer's, checked; otherwise the tokenizer decides about them.

    Attributes:
        count, documents, empty: tokens, documents with tokens, documents without.
        text_bytes: bytes of text, before `normalize`; `has_ids` tells that some of the data came as ids.
        unknown: tokens equal to the tokenizer's unk_id, an end of text that was added aside.
    """

    def __init__(self, tokenizer: Tokenizer, sink: TokenSink, *, ready: bool = False) -> None:
        self._tokenizer = tokenizer
        self._ready = ready
        self._sink = sink
        self._id_bytes = token_dtype(tokenizer.vocab_size).itemsize
        self._hash = hashlib.sha256()
        self._open = False
        self._document_start = 0
        self._document_bytes = 0
        self._last = -1
        self._kind = b""
        self.count = 0
        self.documents = 0
        self.empty = 0
        self.text_bytes = 0
        self.has_ids = False
        self.unknown = 0

    def encode(self, pieces: Iterable[Piece]) -> Iterator[int]:
        """Encode all pieces; after each one, its size in bytes is yielded (for ids, the size in a file).

        Raises:
            DataError: text or ids that the tokenizer refuses; names their place.
        """
        for piece in pieces:
            if piece.starts_document:
                self._end_document()
            self._open = True
            yield self._take(piece)
        self._end_document()

    def fingerprint(self) -> str:
        """SHA-256 over the documents encoded so far, hexadecimal."""
        return self._hash.hexdigest()

    def _take(self, piece: Piece) -> int:
        if isinstance(piece.data, np.ndarray) and self._ready:
            ids = piece.data
        else:
            ids = self._tokenizer.encode(piece.data, origin=piece.origin, offset=piece.offset)
        if ids.size and (ids.min() < 0 or ids.max() >= self._tokenizer.vocab_size):
            raise ValueError(f"{piece.origin}: the tokenizer gave an id outside its own vocabulary")
        if isinstance(piece.data, bytes):
            raw: bytes | memoryview = piece.data
            size = len(raw)
            self._kind = b"text"
            self.text_bytes += size
        else:
            raw = np.ascontiguousarray(piece.data, dtype="<i8").data.cast("B")
            size = len(ids) * self._id_bytes
            self._kind, self.has_ids = b"ids", True
        self._hash.update(raw)
        self._document_bytes += len(raw)
        if (
            self._tokenizer.unk_id is not None
        ):  # some vocabularies have one token for this and the end of text
            self.unknown += int(np.count_nonzero(ids == self._tokenizer.unk_id))
        self._put(ids)
        return size

    def _put(self, ids: npt.NDArray[np.int64]) -> None:
        if not len(ids):
            return
        self._sink.tokens(ids)
        self.count += len(ids)
        self._last = int(ids[-1])

    def _end_document(self) -> None:
        if not self._open:
            return
        if self.count == self._document_start:
            self.empty += 1
        else:
            eos = self._tokenizer.eos_id
            if eos is not None and self._last != eos:
                self._put(np.array([eos], dtype=np.int64))
            self._sink.document(self._document_start)
            self.documents += 1
            self._hash.update(self._kind + self._document_bytes.to_bytes(8, "little"))
        self._open = False
        self._document_start = self.count
        self._document_bytes = 0


def checked_ids(
    data: npt.NDArray[Any], vocab_size: int, *, origin: str, offset: int = 0
) -> npt.NDArray[np.int64]:
    """`data` as contiguous int64, every id inside the vocabulary.

    Args:
        origin, offset: what the ids come from and the position of the first of them, for the error.

    Raises:
        DataError: not one-dimensional, not integers, or an id outside [0, vocab_size); names the first such
        position.
    """
    if data.ndim != 1 or not np.issubdtype(data.dtype, np.integer):
        raise DataError(
            f"{origin}: token ids must be one row of integers, not {data.dtype} of shape {data.shape}"
        )
    if data.size and (data.min() < 0 or data.max() >= vocab_size):
        position = int(np.argmax((data < 0) | (data >= vocab_size)))
        raise DataError(
            f"{origin}: token {offset + position} is {data[position]}, outside the vocabulary "
            f"(ids 0 to {vocab_size - 1})"
        )
    return np.ascontiguousarray(data, dtype=np.int64)
