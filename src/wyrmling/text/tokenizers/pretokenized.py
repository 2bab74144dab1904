"""For data that is tokens already: ids stay ids, and text is ids written in decimal."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ...errors import ConfigError, DataError
from .base import StreamDecoder, Tokenizer, checked_ids, read_text

_WORD = re.compile(r"[^\s,\[\]]+")


class PretokenizedTokenizer(Tokenizer):
    """A vocabulary of which only the size and the special ids are known.

    Text is read as decimal ids between white space, commas and square brackets (`1 2, [3]`); it is written
    with single spaces, special ids left out. Another word is `unk_id`, or an error when there is none.

    Raises:
        ConfigError: a special id outside the vocabulary, or no vocabulary.
    """

    kind = "pretokenized"
    names_are_texts = False  # ids: what they mean, only their maker knows

    def __init__(
        self,
        vocab_size: int,
        *,
        bos_id: int | None = None,
        eos_id: int | None = None,
        pad_id: int | None = None,
        unk_id: int | None = None,
    ) -> None:
        if vocab_size < 1:
            raise ConfigError("tokenizer.vocab_size: at least 1 is needed")
        self.vocab_size = vocab_size
        self.bos_id, self.eos_id, self.pad_id, self.unk_id = bos_id, eos_id, pad_id, unk_id
        for name in ("bos_id", "eos_id", "pad_id", "unk_id"):
            token = getattr(self, name)
            if token is not None and not 0 <= token < vocab_size:
                raise ConfigError(f"tokenizer.{name}: {token} is outside the vocabulary of {vocab_size}")

    def encode(self, text: bytes | str | np.ndarray, *, origin: str = "text", offset: int = 0) -> np.ndarray:
        """See `Tokenizer.encode`; an array of ids is checked and comes back as int64."""
        if isinstance(text, np.ndarray):
            return self._checked(text, origin, offset)
        words = _WORD.findall(read_text(text, self.kind, origin=origin, offset=offset))
        return self._checked(np.array([self._id(word, origin) for word in words], np.int64), origin, 0)

    def _id(self, word: str, origin: str) -> int:
        if word.isascii() and word.isdigit():
            return min(int(word.lstrip("0")[:20] or "0"), np.iinfo(np.int64).max)
        if self.unk_id is not None:
            return self.unk_id
        raise DataError(f"{origin}: {word[:40]!r} is not a token id; write decimal ids, such as: 1 2 3")

    def _checked(self, ids: np.ndarray, origin: str, offset: int) -> np.ndarray:
        outside = np.flatnonzero((ids < 0) | (ids >= self.vocab_size))
        if outside.size:
            first = int(outside[0])
            advice = "are these numbers ids, read in the right way (dataset.dtype, dataset.header_bytes)? "
            advice += "If they are, correct dataset.tokenizer.vocab_size"
            if ids[first] < 0:
                advice = "negative numbers are no ids; leave out what marks places that are to be ignored"
            raise DataError(
                f"{origin}: token id {ids[first]} at position {offset + first} is outside the vocabulary of "
                f"{self.vocab_size}; {advice}"
            )
        return ids.astype(np.int64)

    def decode(self, ids: Iterable[int] | np.ndarray) -> str:
        array = checked_ids(ids, self.vocab_size)
        return " ".join(str(token) for token in array[~np.isin(array, self._skipped())])

    def decode_bytes(self, ids: Iterable[int] | np.ndarray) -> bytes:
        return self.decode(ids).encode("ascii")

    def stream_decoder(self) -> StreamDecoder:
        return _SpacedDecoder(self)

    def byte_lengths(self) -> np.ndarray:
        lengths = np.full(self.vocab_size, -1, dtype=np.int64)
        lengths[self._skipped()] = 0
        return lengths

    def tokens(self) -> list[str]:
        return [str(token) for token in range(self.vocab_size)]

    def _skipped(self) -> list[int]:
        return [token for token in (self.bos_id, self.eos_id, self.pad_id) if token is not None]

    def _content(self) -> dict[str, Any]:
        return {
            "vocab_size": self.vocab_size,
            "bos_id": self.bos_id,
            "eos_id": self.eos_id,
            "pad_id": self.pad_id,
            "unk_id": self.unk_id,
        }

    @classmethod
    def _from_content(cls, content: Mapping[str, Any]) -> PretokenizedTokenizer:
        special = {name: content[name] for name in ("bos_id", "eos_id", "pad_id", "unk_id")}
        return cls(content["vocab_size"], **special)


class _SpacedDecoder(StreamDecoder):
    def __init__(self, tokenizer: PretokenizedTokenizer) -> None:
        self._tokenizer = tokenizer
        self._started = False

    def push(self, token: int) -> str:
        text = self._tokenizer.decode([token])
        if not text:
            return ""
        separator = " " if self._started else ""
        self._started = True
        return separator + text

    def finish(self) -> str:
        self._started = False
        return ""
