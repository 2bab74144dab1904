"""The contract of a tokenizer: between text and token ids, with nothing lost and nothing assumed."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np

from ...errors import ConfigError, DataError

FORMAT = "wyrmling-tokenizer"
VERSION = 1


class StreamDecoder(ABC):
    """Turns ids into text one at a time. All results together equal `decode` of all ids."""

    @abstractmethod
    def push(self, token: int) -> str:
        """The characters that are complete by now (possibly none); never half a character."""

    def read(self, ids: Iterable[int]) -> str:
        """The characters that are complete after several ids."""
        return "".join([self.push(token) for token in ids])

    @abstractmethod
    def finish(self) -> str:
        """What is left at the end; an incomplete character becomes U+FFFD. The decoder can be used afresh."""


class Tokenizer(ABC):
    """Text to ids and back. Immutable; what decides `encode` is in the fingerprint."""

    kind: ClassVar[str]
    kinds: ClassVar[dict[str, type[Tokenizer]]] = {}
    names_are_texts: ClassVar[bool] = True
    """Whether a token of the same name means the same in every vocabulary of this kind."""

    vocab_size: int
    bos_id: int | None = None
    eos_id: int | None = None
    pad_id: int | None = None
    unk_id: int | None = None
    normalize: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """What a person should know about how it was read, one line each."""

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        Tokenizer.kinds[cls.kind] = cls

    @abstractmethod
    def encode(self, text: bytes | str | np.ndarray, *, origin: str = "text", offset: int = 0) -> np.ndarray:
        """The ids of a text, int64 [n]; `normalize` is applied first. Special tokens are never added, and
        their names in the text are text.

        Args:
            text: bytes are UTF-8 for text tokenizers, anything for bytes; ready token ids (an array) are
                taken by the pretokenized tokenizer alone.
            origin: what an error names as the place of the text.
            offset: where in `origin` the text starts (bytes), added to positions in errors.

        Raises:
            DataError: invalid UTF-8, or characters or ids outside the vocabulary, with their positions.
        """

    def byte_ids(self) -> Mapping[int, int]:
        """The id of each byte, for parts of characters; empty where a part cannot be written."""
        return {}

    def encode_all(self, texts: bytes, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """`encode` of each of some texts that stand one after the other; fast for many short ones.

        Args:
            ends: int64 [texts], where each ends.
        Returns: their ids one after the other, int64 [n], and how many each has, int64 [texts].
        Raises:
            DataError: as `encode` of one of them, without its place.
        """
        ids = [self.encode(texts[start:end]) for start, end in pairwise((0, *ends.tolist()))]
        return np.concatenate(ids), np.array([len(part) for part in ids], dtype=np.int64)

    @abstractmethod
    def decode_bytes(self, ids: Iterable[int] | np.ndarray) -> bytes:
        """The bytes that ids stand for; special tokens stand for none.

        Raises:
            DataError: an id outside the vocabulary.
        """

    def decode(self, ids: Iterable[int] | np.ndarray) -> str:
        """The text that ids stand for; special tokens are skipped, invalid UTF-8 becomes U+FFFD.

        Raises:
            DataError: an id outside the vocabulary.
        """
        return self.decode_bytes(ids).decode("utf-8", "replace")

    @abstractmethod
    def stream_decoder(self) -> StreamDecoder:
        """A fresh decoder for ids that come one at a time."""

    @abstractmethod
    def byte_lengths(self) -> np.ndarray:
        """Bytes of (normalized) text that each id stands for, int64 [vocab_size]: 0 for tokens without text, such
        as those for begin, end and padding; -1 where it does not follow from the id alone.
        """

    def token_texts(self) -> list[bytes] | None:
        """The bytes that each id stands for, none for special tokens; None where they depend on its neighbours."""
        return None

    @abstractmethod
    def tokens(self) -> list[str]:
        """A name for each id, all different, the same for the same token in any vocabulary of this kind."""

    @abstractmethod
    def _content(self) -> dict[str, Any]:
        """Everything that decides what this tokenizer does, as JSON values."""

    @classmethod
    @abstractmethod
    def _from_content(cls, content: Mapping[str, Any]) -> Tokenizer:
        """The reverse of `_content`; may raise anything when the content is not sound."""

    @cached_property
    def _hash(self) -> str:
        identity = {"kind": self.kind, **self._content()}
        return hashlib.sha256(json.dumps(identity, sort_keys=True).encode("ascii")).hexdigest()

    def fingerprint(self) -> str:
        """SHA-256, hexadecimal, of everything that decides `encode` and the meaning of ids."""
        return self._hash

    def to_json(self) -> dict[str, Any]:
        """The whole tokenizer as a JSON document with its format, version and fingerprint."""
        head = {"format": FORMAT, "version": VERSION, "kind": self.kind}
        return {**head, **self._content(), "fingerprint": self.fingerprint()}

    @classmethod
    def from_json(cls, document: Any) -> Tokenizer:
        """The tokenizer of a `to_json` document; on `Tokenizer` itself, of any kind.

        Raises:
            DataError: another format, a newer version, an unknown kind, or damaged content.
        """
        if not isinstance(document, Mapping) or document.get("format") != FORMAT:
            raise DataError("not a tokenizer file of this program")
        if document.get("version") != VERSION:
            found = document.get("version")
            raise DataError(f"tokenizer format version {found!r}, this program reads {VERSION}; update it")
        kind = cls.kinds.get(str(document.get("kind")))
        if kind is None or not issubclass(kind, cls):
            raise DataError(f"a tokenizer of kind {document.get('kind')!r} cannot be used here")
        try:
            tokenizer = kind._from_content(document)
        except (KeyError, TypeError, ValueError, AttributeError, ConfigError) as error:
            raise DataError(f"damaged tokenizer content ({type(error).__name__}: {error})") from error
        if tokenizer.fingerprint() != document.get("fingerprint"):
            raise DataError("damaged tokenizer content (it does not match its fingerprint)")
        return tokenizer


def read_text(text: bytes | str | np.ndarray, kind: str, *, origin: str, offset: int) -> str:
    """A text as characters, strictly: whole UTF-8, no lone surrogates.

    Raises:
        DataError: it is not, with the position, or it is no text at all.
    """
    if isinstance(text, str):
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise surrogate_error(text, error.start, origin=origin, offset=offset) from None
        return text
    if isinstance(text, np.ndarray):
        raise DataError(
            f"{origin}: holds token ids, the {kind} tokenizer needs text; "
            'set dataset.tokenizer.type = "pretokenized"'
        )
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{origin}: invalid UTF-8 at byte offset {offset + error.start} (0x{text[error.start]:02x}); "
            "correct it; in the texts of a run, name what they are written in (dataset.encoding), or take it with "
            'dataset.invalid_utf8 = "replace" or the byte tokenizer'
        ) from None


def surrogate_error(text: str, index: int, *, origin: str, offset: int) -> DataError:
    """The error for a lone surrogate at `text[index]`."""
    code = ord(text[index])
    return DataError(
        f"{origin}: half of a surrogate pair (U+{code:04X}) at character {offset + index} is not text"
    )


def checked_ids(ids: Iterable[int] | np.ndarray, vocab_size: int) -> np.ndarray:
    """Ids as int64 [n].

    Raises:
        DataError: an id is negative or not below `vocab_size`.
    """
    array = np.asarray(ids if isinstance(ids, Sequence | np.ndarray) else list(ids), dtype=np.int64)
    array = array.reshape(-1)
    outside = np.flatnonzero((array < 0) | (array >= vocab_size))
    if outside.size:
        raise DataError(f"token id {array[outside[0]]} is outside the vocabulary of {vocab_size}")
    return array


def name_character(character: str) -> str:
    """A character as a person can recognize it: `'d' (U+0064)`."""
    return f"{character!r} (U+{ord(character):04X})"
