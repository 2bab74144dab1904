"""Characters as tokens: the vocabulary is the set of characters of the training text alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import DataError
from ..normalize import check_steps, normalize_text
from ..utf8 import REPLACEMENT
from .base import StreamDecoder, Tokenizer, checked_ids, name_character, read_text

if TYPE_CHECKING:
    from ..sources import Piece

UNKNOWN = "<unk>"
_SHOWN_CHARACTERS = 5


class CharTokenizer(Tokenizer):
    """Ids are `<unk>` = 0 (when it is included), then the characters sorted by code point: the same set of
    characters gives the same ids, wherever they stood in the text.

    A character outside the vocabulary is `<unk>`, which decodes to U+FFFD, or, without `<unk>`, an error
    that lists it.

    Args:
        characters: the vocabulary, each a single character, in any order.
    """

    kind = "char"

    def __init__(
        self, characters: Iterable[str], *, include_unknown: bool = True, normalize: Iterable[str] = ()
    ) -> None:
        self.normalize = check_steps(normalize)
        self.characters = "".join(sorted(set(characters)))
        codes = _code_points(self.characters)
        self.unk_id = 0 if include_unknown else None
        first = 1 if include_unknown else 0
        self.vocab_size = first + len(codes)
        if not self.vocab_size:
            raise DataError("a character vocabulary needs at least one character")
        self._names = [UNKNOWN] * first + list(self.characters)
        self._texts = [REPLACEMENT] * first + list(self.characters)
        # One entry past the largest code point stands for everything beyond it.
        self._ids = np.full(int(codes.max(initial=0)) + 2, -1, dtype=np.int64)
        self._ids[codes] = np.arange(first, self.vocab_size)

    @classmethod
    def fit(
        cls,
        pieces: Callable[[], Iterator[Piece]],
        *,
        include_unknown: bool = True,
        normalize: Iterable[str] = (),
    ) -> CharTokenizer:
        """The vocabulary of a text, in one pass and bounded memory.

        Raises:
            DataError: the text is not UTF-8, or no text.
        """
        steps = check_steps(normalize)
        characters: set[str] = set()
        for piece in pieces():
            text = read_text(piece.data, cls.kind, origin=piece.origin, offset=piece.offset)
            characters.update(normalize_text(text, steps))
        return cls(characters, include_unknown=include_unknown, normalize=steps)

    def encode(self, text: bytes | str | np.ndarray, *, origin: str = "text", offset: int = 0) -> np.ndarray:
        """See `Tokenizer.encode`. Positions of unknown characters count in the normalized text."""
        read = read_text(text, self.kind, origin=origin, offset=offset)
        characters = normalize_text(read, self.normalize)
        codes = _code_points(characters)
        ids: np.ndarray = self._ids[np.minimum(codes, len(self._ids) - 1)]
        unknown = ids < 0
        if not unknown.any():
            return ids
        if self.unk_id is None:
            found: dict[str, int] = {}
            for position in np.flatnonzero(unknown):
                found.setdefault(characters[position], int(position))
            raise unknown_characters(
                found,
                characters,
                origin=origin,
                offset=offset,
                in_bytes=not isinstance(text, str),
                vocabulary=f"the vocabulary of {self.vocab_size} characters (those of the training text)",
                advice="tokenizer.include_unknown = true would map them to <unk>",
            )
        ids[unknown] = self.unk_id
        return ids

    def encode_all(self, texts: bytes, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """See `Tokenizer.encode_all`."""
        begins = (np.frombuffer(texts, dtype=np.uint8) & 0xC0) != 0x80  # a character each
        if self.normalize or not begins[ends[ends < len(texts)]].all():  # neither may reach over an end
            return super().encode_all(texts, ends)
        characters = np.append(0, np.cumsum(begins))
        return self.encode(texts), np.diff(characters[ends], prepend=0)

    def decode_bytes(self, ids: Iterable[int] | np.ndarray) -> bytes:
        return self.decode(ids).encode("utf-8")

    def decode(self, ids: Iterable[int] | np.ndarray) -> str:
        return "".join([self._texts[token] for token in checked_ids(ids, self.vocab_size)])

    def stream_decoder(self) -> StreamDecoder:
        return WholeTokenDecoder(self)

    def byte_lengths(self) -> np.ndarray:
        """-1 for `<unk>`, which stands for characters of any length."""
        unknown = [-1] if self.unk_id is not None else []
        lengths = [len(character.encode("utf-8")) for character in self.characters]
        return np.array(unknown + lengths, dtype=np.int64)

    def token_texts(self) -> list[bytes]:
        unknown = [b""] if self.unk_id is not None else []
        return unknown + [character.encode("utf-8") for character in self.characters]

    def tokens(self) -> list[str]:
        return list(self._names)

    def _content(self) -> dict[str, Any]:
        return {
            "normalize": list(self.normalize),
            "include_unknown": self.unk_id is not None,
            "characters": self.characters,
        }

    @classmethod
    def _from_content(cls, content: Mapping[str, Any]) -> CharTokenizer:
        return cls(
            content["characters"],
            include_unknown=bool(content["include_unknown"]),
            normalize=content["normalize"],
        )


class WholeTokenDecoder(StreamDecoder):
    """For tokenizers whose every id stands for whole characters."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def push(self, token: int) -> str:
        return self._tokenizer.decode([token])

    def finish(self) -> str:
        return ""


def unknown_characters(
    found: Mapping[str, int],
    text: str,
    *,
    origin: str,
    offset: int,
    in_bytes: bool,
    vocabulary: str,
    advice: str,
) -> DataError:
    """The error that lists characters outside a vocabulary.

    Args:
        found: each character and the index in `text` where it occurs first, in order.
        in_bytes: give positions as byte offsets instead of characters.
    """
    places = []
    for character, index in list(found.items())[:_SHOWN_CHARACTERS]:
        position = len(text[:index].encode("utf-8")) if in_bytes else index
        unit = "byte offset" if in_bytes else "character"
        places.append(f"{name_character(character)} at {unit} {offset + position}")
    more = len(found) - _SHOWN_CHARACTERS
    listing = ", ".join(places) + (f" and {more} more" if more > 0 else "")
    count = "1 character is" if len(found) == 1 else f"{len(found)} characters are"
    return DataError(f"{origin}: {count} not in {vocabulary}: {listing}; {advice}")


def _code_points(text: str) -> np.ndarray:
    return np.frombuffer(text.encode("utf-32-le"), dtype="<u4").astype(np.int64)
