"""Byte-pair encoding by the `tokenizers` library: trained on the training text, or any `tokenizer.json`."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from ...errors import ConfigError, DataError
from ..normalize import check_steps, normalize_text
from ..sources.cutting import cut
from .base import StreamDecoder, Tokenizer, checked_ids, read_text
from .byte import Utf8StreamDecoder
from .byte_level import ByteLevel
from .char import unknown_characters
from .sliding import SlidingDecoder

if TYPE_CHECKING:
    from ..sources import Piece

END_OF_TEXT = "<|endoftext|>"
SMALLEST_VOCABULARY = 257
"""256 bytes and the end of text."""

TRAINING_BYTES = 1 << 28
"""The most text that merges are learned from; of more, an even sample bounds the memory."""

_TRAINING_PART = 1 << 14  # the library gathers 256 texts at a time
_PART_BYTES = 1 << 16  # the library needs some 200 bytes of memory for each byte of text it encodes
_SPECIAL_NAMES = {
    "bos": ("<|begin_of_text|>", "<s>", "<bos>", "<|startoftext|>", "[BOS]"),
    "eos": (END_OF_TEXT, "</s>", "<eos>", "<|end_of_text|>", "[EOS]"),
    "pad": ("<pad>", "<|pad|>", "[PAD]", "<|finetune_right_pad_id|>"),
}


class BpeTokenizer(Tokenizer):
    """A tokenizer of the `tokenizers` library.

    Text is text: names of special tokens in it are encoded like any other characters, nothing is truncated,
    padded or dropped at random, whatever the file says. bos, eos and pad are recognized by their well-known
    names among the added tokens. Decoding a byte-level vocabulary gives back every byte; of another kind,
    what its decoder makes of the ids.

    Args:
        specification: a `tokenizer.json` document.

    Raises:
        DataError: the library does not read it.
    """

    kind = "bpe"

    def __init__(self, specification: Mapping[str, Any], *, normalize: Iterable[str] = ()) -> None:
        self.normalize = check_steps(normalize)
        self._specification = _made_deterministic(specification)
        try:
            self._backend = tokenizers.Tokenizer.from_str(json.dumps(self._specification))
        except Exception as error:  # the library raises plain Exception
            reason = " ".join(str(error).split())
            raise DataError(f"not a tokenizer.json that can be read ({reason})") from error
        self._backend.encode_special_tokens = True
        vocabulary = self._backend.get_vocab(with_added_tokens=True)
        self.vocab_size = max(vocabulary.values(), default=-1) + 1
        if not self.vocab_size:
            raise DataError("not a tokenizer.json that can be used (its vocabulary is empty)")
        self._names = [f"<unused {token}>" for token in range(self.vocab_size)]
        for name, token in vocabulary.items():
            self._names[token] = name
        added = {token["content"]: token["id"] for token in self._added()}
        self.bos_id, self.eos_id, self.pad_id = (
            next((added[name] for name in names if name in added), None) for names in _SPECIAL_NAMES.values()
        )
        unknown = self._specification["model"].get("unk_token")
        self.unk_id = vocabulary.get(unknown) if isinstance(unknown, str) else None
        self._special = {token for token in (self.bos_id, self.eos_id, self.pad_id) if token is not None}
        self._special |= {token["id"] for token in self._added() if token.get("special")}
        self._byte_level = ByteLevel.of(self._specification, self._names, self._special)
        self._dropped: dict[str, bool] = {}

    @classmethod
    def train(
        cls, pieces: Callable[[], Iterator[Piece]], vocab_size: int, *, normalize: Iterable[str] = ()
    ) -> BpeTokenizer:
        """Learn byte-level merges from a text; the vocabulary may come out smaller when the text is small.

        The end of text is id 0, then come the 256 bytes, then the merges. The same text gives the same
        tokenizer.

        Raises:
            ConfigError: `vocab_size` has no room for all bytes.
            DataError: the text is not UTF-8, or no text.
        """
        if vocab_size < SMALLEST_VOCABULARY:
            raise ConfigError(
                f"tokenizer.vocab_size: at least {SMALLEST_VOCABULARY} is needed, not {vocab_size}"
            )
        backend = tokenizers.Tokenizer(models.BPE())
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size,
            special_tokens=[END_OF_TEXT],
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        )
        steps = check_steps(normalize)
        backend.train_from_iterator(_training_texts(pieces, steps), trainer)
        return cls(json.loads(backend.to_str()), normalize=steps)

    def encode(self, text: bytes | str | np.ndarray, *, origin: str = "text", offset: int = 0) -> np.ndarray:
        """See `Tokenizer.encode`. Merges do not reach from one call into the next, nor, in a byte-level
        vocabulary, over the ends of parts of 64 KiB, which keep the memory of the library small.
        """
        read = read_text(text, self.kind, origin=origin, offset=offset)
        characters = normalize_text(read, self.normalize)
        ids: list[int] = []
        lost: dict[str, int] = {}
        start = 0
        for part in self._parts(characters):
            try:
                encoding = self._backend.encode(part, add_special_tokens=False)
            except Exception as error:  # such as a character that is in no token, with no <unk>
                raise DataError(f"{origin}: cannot be encoded ({' '.join(str(error).split())})") from error
            ids += encoding.ids
            for character, index in self._lost(part, encoding).items():
                lost.setdefault(character, start + index)
            start += len(part)
        if lost:
            raise unknown_characters(
                lost,
                characters,
                origin=origin,
                offset=offset,
                in_bytes=not isinstance(text, str),
                vocabulary=f"the vocabulary of {self.vocab_size} tokens, which has no <unk>",
                advice="choose another vocabulary, or the byte tokenizer",
            )
        return np.array(ids, dtype=np.int64)

    def _parts(self, text: str) -> Iterator[str]:
        """The text as it goes into the library: cut where nothing is added at the start of each part."""
        if self._byte_level is None or not self._byte_level.exact or len(text) <= _PART_BYTES // 4:
            yield text
            return
        for part in cut([text.encode("utf-8")], _PART_BYTES):
            yield part.decode("utf-8")

    def _lost(self, text: str, encoding: Any) -> dict[str, int]:
        """Characters that the library left out without a word, and where each occurs first."""
        if self.unk_id is not None or self._specification["model"].get("byte_fallback"):
            return {}
        if self._byte_level is not None:
            return self._byte_level.lost(text, encoding.ids)
        found = {character: text.index(character) for character in set(text) if self._drops(character)}
        return dict(sorted(found.items(), key=lambda item: item[1]))

    def _drops(self, character: str) -> bool:
        """Whether nothing is left of a character (white space aside, and what the file's own normalizer removes).
        It is tried doubled, since some vocabularies tell the end of a word from its inside.
        """
        if character.isspace():
            return False
        dropped = self._dropped.get(character)
        if dropped is None:
            normalizer = self._backend.normalizer
            kept = character if normalizer is None else normalizer.normalize_str(character)
            dropped = bool(kept) and not self._backend.encode(character * 2, add_special_tokens=False).ids
            self._dropped[character] = dropped
        return dropped

    def decode_bytes(self, ids: Iterable[int] | np.ndarray) -> bytes:
        if self._byte_level is None:
            return self.decode(ids).encode("utf-8")
        return b"".join([self._byte_level.texts[token] for token in checked_ids(ids, self.vocab_size)])

    def decode(self, ids: Iterable[int] | np.ndarray) -> str:
        if self._byte_level is not None:
            return super().decode(ids)
        kept = [token for token in checked_ids(ids, self.vocab_size).tolist() if token not in self._special]
        return str(self._backend.decode(kept, skip_special_tokens=False))

    def stream_decoder(self) -> StreamDecoder:
        return Utf8StreamDecoder(self) if self._byte_level is not None else SlidingDecoder(self)

    def byte_lengths(self) -> np.ndarray:
        """Known where the vocabulary is byte-level and adds or removes nothing; never of an unknown id."""
        lengths = np.full(self.vocab_size, -1, dtype=np.int64)
        if self._byte_level is not None and self._byte_level.exact:
            lengths = np.array([len(text) for text in self._byte_level.texts], dtype=np.int64)
        lengths[list(self._special)] = 0
        if self.unk_id is not None:
            lengths[self.unk_id] = -1
        return lengths

    def token_texts(self) -> list[bytes] | None:
        return None if self._byte_level is None else list(self._byte_level.texts)

    def tokens(self) -> list[str]:
        return list(self._names)

    def _added(self) -> list[dict[str, Any]]:
        return list(self._specification.get("added_tokens") or [])

    def _content(self) -> dict[str, Any]:
        return {"normalize": list(self.normalize), "specification": self._specification}

    @classmethod
    def _from_content(cls, content: Mapping[str, Any]) -> BpeTokenizer:
        return cls(content["specification"], normalize=content["normalize"])


def _made_deterministic(specification: Mapping[str, Any]) -> dict[str, Any]:
    """The document without truncation, padding and random dropping of merges."""
    if not isinstance(specification, Mapping) or not isinstance(specification.get("model"), Mapping):
        raise DataError('not a tokenizer.json (it has no "model")')
    document: dict[str, Any] = copy.deepcopy(dict(specification))
    document["truncation"] = document["padding"] = None
    if document["model"].get("dropout") is not None:
        document["model"]["dropout"] = None
    return document


def _training_texts(pieces: Callable[[], Iterator[Piece]], steps: tuple[str, ...]) -> Iterator[str]:
    for piece in _sample(pieces, TRAINING_BYTES):
        text = read_text(piece.data, BpeTokenizer.kind, origin=piece.origin, offset=piece.offset)
        for part in cut([normalize_text(text, steps).encode("utf-8")], _TRAINING_PART):
            yield part.decode("utf-8")


def _sample(pieces: Callable[[], Iterator[Piece]], budget: int) -> Iterator[Piece]:
    """All pieces, or of a text longer than `budget` bytes an evenly spread part of about that size."""
    total = sum(len(piece.data) for piece in pieces())
    seen = taken = 0
    for piece in pieces():
        seen += len(piece.data)
        if total <= budget or taken * total < seen * budget:
            taken += len(piece.data)
            yield piece
