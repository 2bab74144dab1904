"""From pieces of text to tokens, in one pass and bounded memory, with borders, fingerprints and counts."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt

from ..errors import DataError
from ..text.sources import Piece
from ..text.tokenizers import Tokenizer
from .format import token_dtype

Ids = npt.NDArray[np.int64]

Progress = Callable[[int, int | None], None]
Tell = Callable[[str], None]
"""Told of the bytes read so far and of all bytes there are (None when that is not known)."""


_AT_ONCE = 1 << 18
"""Bytes of text, or ids, that are encoded at once: enough that what a call costs is little."""


class TokenSink(Protocol):
    """Where an `Encoder` puts what it makes."""

    def tokens(self, ids: npt.NDArray[np.int64]) -> None:
        """The next tokens, checked."""
        ...

    def documents(self, starts: npt.NDArray[np.int64]) -> None:
        """The indices of the first tokens of documents that turned out not to be empty."""
        ...


class Encoder:
    """Encodes documents that arrive in pieces, many short ones at once.

    EOS follows every document when the tokenizer has one, unless the document already ends with it. Token ids often
    come with it: each EOS among them ends a document, so a file of ids holds as many as it has ends of text. Documents
    without a token are left out and counted.

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
        self._waiting: list[Piece] = []
        self._waiting_items = 0
        self._open = False
        self._open_start = self._open_tokens = self._open_bytes = 0
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
            if self._waiting and isinstance(self._waiting[0].data, bytes) != isinstance(piece.data, bytes):
                self._encode_waiting()
            self._waiting.append(piece)
            self._waiting_items += len(piece.data)
            if self._waiting_items >= _AT_ONCE:
                self._encode_waiting()
            yield len(piece.data) * (1 if isinstance(piece.data, bytes) else self._id_bytes)
        self._encode_waiting()
        nothing = np.zeros(1, dtype=np.int64)  # but the end of the last document
        self._add(nothing[:0], b"", nothing, nothing, np.ones(1, dtype=np.bool_), b"")

    def fingerprint(self) -> str:
        """SHA-256 over the documents encoded so far, hexadecimal."""
        return self._hash.hexdigest()

    def _encode_waiting(self) -> None:
        """Encode the pieces that wait: what one holds of one document is one text to the tokenizer."""
        waiting, self._waiting, self._waiting_items = self._waiting, [], 0
        if not waiting:
            return
        sizes, parts = np.array([(len(piece.data), 1 + len(piece.borders)) for piece in waiting]).T
        begins = np.cumsum(sizes) - sizes
        further = [
            piece.borders + begin for piece, begin in zip(waiting, begins, strict=True) if len(piece.borders)
        ]
        ends = np.sort(np.concatenate([begins + sizes, *further]))
        starts = np.ones(len(ends), dtype=np.bool_)
        starts[np.cumsum(parts) - parts] = [piece.starts_document for piece in waiting]
        try:
            if isinstance(waiting[0].data, bytes):
                self._encode_texts(b"".join([cast(bytes, piece.data) for piece in waiting]), ends, starts)
            else:
                self._take_ids(np.concatenate([cast(Ids, piece.data) for piece in waiting]), ends, starts)
        except DataError:
            for part in chain.from_iterable(piece.alone() for piece in waiting):  # one of them says where
                self._tokenizer.encode(part.data, origin=part.origin, offset=part.offset)
            raise

    def _encode_texts(self, texts: bytes, ends: Ids, starts: npt.NDArray[np.bool_]) -> None:
        ids, lengths = self._tokenizer.encode_all(texts, ends)
        self.text_bytes += len(texts)
        self._add(self._checked(ids), texts, lengths, np.diff(ends, prepend=0), starts, b"text")

    def _take_ids(self, given: Ids, ends: Ids, starts: npt.NDArray[np.bool_]) -> None:
        ids = self._checked(given if self._ready else self._tokenizer.encode(given))
        self.has_ids = True
        eos = self._tokenizer.eos_id
        if eos is not None:
            ended = np.flatnonzero(ids == eos) + 1
            begins = np.append(0, ends[:-1])
            over = self._open_tokens > 0 and self._last == eos  # the document that was open
            starts = starts | np.where(begins > 0, np.isin(begins, ended), over)
            further = np.setdiff1d(ended, ends)
            places = np.searchsorted(ends, further)
            ends = np.insert(ends, places, further)
            starts = np.insert(starts, places + 1, True)
        lengths, raw = np.diff(ends, prepend=0), np.ascontiguousarray(given, dtype="<i8").data.cast("B")
        self._add(ids, raw, lengths, 8 * lengths, starts, b"ids")

    def _checked(self, ids: Ids) -> Ids:
        if ids.size and (ids.min() < 0 or ids.max() >= self._tokenizer.vocab_size):
            raise ValueError("the tokenizer gave an id outside its own vocabulary")
        if self._tokenizer.unk_id is not None:
            self.unknown += int(np.count_nonzero(ids == self._tokenizer.unk_id))
        return ids

    def _add(
        self,
        ids: Ids,
        raw: bytes | memoryview,
        lengths: Ids,
        sizes: Ids,
        starts: npt.NDArray[np.bool_],
        kind: bytes,
    ) -> None:
        """Parts of documents, one after the other. A document ends where the next one starts.

        Args:
            ids, raw: the tokens and the bytes of all parts.
            lengths, sizes, starts: int64, int64, bool [parts]: the tokens and bytes of each, and whether it starts a
                document.
            kind: of the parts, for the fingerprint.
        """
        begin, begin_raw = (np.cumsum(part) - part for part in (lengths, sizes))
        begin, begin_raw = begin[starts], begin_raw[starts]
        ended = slice(None if self._open else 1, None)  # nothing ends where the first document of all begins
        ends, ends_raw = begin[ended], begin_raw[ended]
        filled = np.diff(ends, prepend=-self._open_tokens if self._open else 0) > 0
        sizes_of = np.diff(ends_raw, prepend=-self._open_bytes if self._open else 0)
        self._hash_documents(raw, ends_raw[filled], sizes_of[filled], kind)
        eos, lacking = self._tokenizer.eos_id, np.zeros(len(ends), dtype=np.bool_)
        if eos is not None:
            last = np.where(ends > 0, ids[ends - 1] if len(ids) else -1, self._last)
            lacking = filled & (last != eos)
            ids = np.insert(ids, ends[lacking], eos) if lacking.any() else ids
        opened = self.count + begin  # where the documents start that start here
        opened[ended] += np.cumsum(lacking)
        known = np.append(self._open_start, opened) if self._open else opened
        if filled.any():
            self._sink.documents(known[:-1][filled])
        if len(ids):
            self._sink.tokens(ids)
            self._last = int(ids[-1])
        self.count += len(ids)
        self.documents += int(np.count_nonzero(filled))
        self.empty += int(np.count_nonzero(~filled))
        self._open_start = int(known[-1])
        self._open_tokens = self.count - self._open_start
        self._open_bytes = len(raw) - int(begin_raw[-1]) if len(begin_raw) else self._open_bytes + len(raw)
        self._open, self._kind = True, kind

    def _hash_documents(self, raw: bytes | memoryview, ends: Ids, sizes: Ids, kind: bytes) -> None:
        """Hash bytes, and after those of each document that ends in them, at `ends`: its kind and its size."""
        if len(ends) and ends[0] == 0:  # its bytes, and their kind, came before
            self._hash.update(self._kind + int(sizes[0]).to_bytes(8, "little"))
            ends, sizes = ends[1:], sizes[1:]
        marks = np.empty((len(ends), len(kind) + 8), dtype=np.uint8)
        marks[:, : len(kind)] = np.frombuffer(kind, dtype=np.uint8)
        marks[:, len(kind) :] = sizes.astype("<i8")[:, None].view(np.uint8)
        width = marks.shape[1]
        content = np.empty(len(raw) + marks.size, dtype=np.uint8)
        own = np.ones(len(content), dtype=np.bool_)
        places = (ends + width * np.arange(len(ends)))[:, None] + np.arange(width)  # [documents, width]
        own[places] = False
        content[own] = np.frombuffer(raw, dtype=np.uint8)
        content[places] = marks
        self._hash.update(content.data)


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
