"""Tokenizers of the `tokenizers` library: byte pairs trained on the training text, or any `tokenizer.json`, whose
model may be BPE, Unigram, WordPiece or WordLevel.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from ...errors import ConfigError, DataError
from ..normalize import check_steps, normalize_text
from ..sources.cutting import cut
from ..utf8 import REPLACEMENT
from .base import StreamDecoder, Tokenizer, checked_ids, read_text
from .byte import Utf8StreamDecoder
from .byte_level import ByteLevel, parts_of_characters
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
_WELL_KNOWN = {
    "bos_id": ("<|begin_of_text|>", "<s>", "<bos>", "<|startoftext|>", "[BOS]"),
    "eos_id": (END_OF_TEXT, "</s>", "<eos>", "<|end_of_text|>", "[EOS]"),
    "pad_id": ("<pad>", "<|pad|>", "[PAD]", "<|finetune_right_pad_id|>"),
}
_UNKNOWN = {"WordPiece": "[UNK]", "WordLevel": "<unk>"}
"""What the library takes for the unknown token where the file does not say."""
_UNREADABLE = "\ufdd0\ufdd1"
"""Before the name of a special token, so that no text can spell it: two code points that are no characters."""


class BpeTokenizer(Tokenizer):
    """A tokenizer of the `tokenizers` library.

    Text is text: names of special tokens in it are encoded like any other characters, nothing is truncated,
    padded or dropped at random, whatever the file says. Decoding a byte-level vocabulary gives back every byte; of
    another kind, what its decoder makes of the ids, and bytes of a byte fallback as they are.

    Args:
        specification: a `tokenizer.json` document.
        special_ids: `bos_id`, `eos_id`, `pad_id` (None: there is none); without them, added tokens of well-known
            names.

    Attributes:
        special: ids that stand for no text: these three, and what the file calls special.
        added: ids that the file added to those of its model.

    Raises:
        DataError: the library does not read it, or a special id is outside the vocabulary.
    """

    kind = "bpe"

    def __init__(
        self,
        specification: Mapping[str, Any],
        *,
        normalize: Iterable[str] = (),
        special_ids: Mapping[str, int | None] | None = None,
    ) -> None:
        self.normalize = check_steps(normalize)
        self._specification = _made_deterministic(specification)
        added = {token["content"]: token["id"] for token in self._added_tokens()}
        self.added = frozenset(added.values())
        well_known = {
            part: next((added[name] for name in names if name in added), None)
            for part, names in _WELL_KNOWN.items()
        }
        self.special_ids = {**well_known, **(special_ids or {})}
        self._chosen = self.special_ids != well_known
        self.bos_id, self.eos_id, self.pad_id = (self.special_ids[part] for part in _WELL_KNOWN)
        self.special = {token for token in self.special_ids.values() if token is not None}
        self.special |= {token["id"] for token in self._added_tokens() if token.get("special")}
        self._backend = self._load()
        vocabulary = {
            name.removeprefix(_UNREADABLE): token
            for name, token in self._backend.get_vocab(with_added_tokens=True).items()
        }
        self.vocab_size = max(vocabulary.values(), default=-1) + 1
        if not self.vocab_size:
            raise DataError("not a tokenizer.json that can be used (its vocabulary is empty)")
        for name, token in added.items():
            if vocabulary.get(name) != token:
                raise DataError(
                    f"not a tokenizer.json that can be used (its added token {name!r} is {token}, in its vocabulary "
                    f"{vocabulary.get(name)})"
                )
        for part, wanted in self.special_ids.items():
            if wanted is not None and not 0 <= wanted < self.vocab_size:
                raise DataError(f"{part} {wanted} is outside the vocabulary (ids 0 to {self.vocab_size - 1})")
        self._names = [f"<unused {token}>" for token in range(self.vocab_size)]
        for name, token in vocabulary.items():
            self._names[token] = name
        self._silent = self.special.union(set(range(self.vocab_size)).difference(vocabulary.values()))
        model = self._specification["model"]
        unknown = model.get("unk_token") or _UNKNOWN.get(str(model.get("type")))
        self.unk_id = model["unk_id"] if "unk_id" in model else vocabulary.get(unknown)
        self._byte_level = ByteLevel.of(self._specification, self._names, self.special)
        self._dropped: dict[str, bool] = {}

    def __getstate__(self) -> dict[str, Any]:
        """For copies and pickles: the library's own would read the names of special tokens in a text as these."""
        return {
            "specification": self._specification,
            "normalize": self.normalize,
            "special_ids": self.special_ids,
            "notes": self.notes,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.notes = state.pop("notes")
        BpeTokenizer.__init__(self, **state)

    def _load(self) -> Any:
        """The library's tokenizer, to which the special tokens are special, whatever the file says of them."""
        model = dict(self._specification["model"])
        special = {token["content"] for token in self._added_tokens() if token["id"] in self.special}
        try:
            renamed = _unreadable(model, special)
            added = [
                {**token, "special": True, "content": renamed.get(token["content"], token["content"])}
                if token["content"] in special
                else token
                for token in self._added_tokens()
            ]
            document = {**self._specification, "model": model, "added_tokens": added}
            backend = tokenizers.Tokenizer.from_str(json.dumps(document))
        except (
            Exception
        ) as error:  # the library raises plain Exception; what it would not read may be anything
            reason = " ".join(str(error).split())
            raise DataError(f"not a tokenizer.json that can be read ({reason})") from error
        backend.encode_special_tokens = True
        return backend

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
        if self.unk_id is not None or self._falls_back:
            return {}
        if self._byte_level is not None:
            return self._byte_level.lost(text, encoding.ids)
        found = {character: text.index(character) for character in set(text) if self._drops(character)}
        return dict(sorted(found.items(), key=lambda item: item[1]))

    @cached_property
    def _falls_back(self) -> bool:
        """Whether every character can be written in bytes."""
        fallback = self._specification["model"].get("byte_fallback")
        return bool(fallback) and {f"<0x{byte:02X}>" for byte in range(256)} <= set(self._names)

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
        checked = checked_ids(ids, self.vocab_size).tolist()
        if self._byte_level is not None:
            return b"".join([self._byte_level.texts[token] for token in checked])
        text = self._decode([token for token in checked if token not in self._silent])
        if REPLACEMENT not in text:
            return text.encode("utf-8")
        decoder = self._sliding_decoder()  # bytes that are no text, perhaps: as they are
        return b"".join([decoder.bytes_of(token) for token in checked])

    def byte_ids(self) -> Mapping[int, int]:
        texts = (
            self._parts_and_anchor[0].items()
            if self._byte_level is None
            else enumerate(self._byte_level.texts)
        )
        return {text[0]: token for token, text in texts if len(text) == 1}

    def stream_decoder(self) -> StreamDecoder:
        return Utf8StreamDecoder(self) if self._byte_level is not None else self._sliding_decoder()

    def _sliding_decoder(self) -> SlidingDecoder:
        return SlidingDecoder(self._decode, self.vocab_size, self._silent, *self._parts_and_anchor)

    def _decode(self, ids: list[int]) -> str:
        return str(self._backend.decode(ids, skip_special_tokens=False)) if ids else ""

    @cached_property
    def _parts_and_anchor(self) -> tuple[dict[int, bytes], int | None]:
        """See `SlidingDecoder`."""
        parts = parts_of_characters(self._specification, self._names)
        parts = {token: data for token, data in parts.items() if token not in self._silent}
        usual = (
            token for token in range(self.vocab_size) if token not in self._silent and token not in parts
        )
        return parts, next((token for token in usual if self._decode([token]).strip()), None)

    def byte_lengths(self) -> np.ndarray:
        """Known where the vocabulary is byte-level and adds or removes nothing; never of an unknown id in use."""
        lengths = np.full(self.vocab_size, -1, dtype=np.int64)
        if self._byte_level is not None and self._byte_level.exact:
            lengths = np.array([len(text) for text in self._byte_level.texts], dtype=np.int64)
        lengths[list(self.special)] = 0
        if self.unk_id is not None and (self._byte_level is None or self._byte_level.missing):
            lengths[self.unk_id] = -1
        return lengths

    def token_texts(self) -> list[bytes] | None:
        return None if self._byte_level is None else list(self._byte_level.texts)

    def tokens(self) -> list[str]:
        return list(self._names)

    def _added_tokens(self) -> list[dict[str, Any]]:
        return list(self._specification.get("added_tokens") or [])

    def with_special_ids(self, special_ids: Mapping[str, int | None]) -> BpeTokenizer:
        """The same vocabulary with other special tokens; what is not given stays."""
        wanted = {**self.special_ids, **special_ids}
        if wanted == self.special_ids:
            return self
        return BpeTokenizer(self._specification, normalize=self.normalize, special_ids=wanted)

    def _content(self) -> dict[str, Any]:
        content = {"normalize": list(self.normalize), "specification": self._specification}
        return {**content, "special_ids": self.special_ids} if self._chosen else content

    @classmethod
    def _from_content(cls, content: Mapping[str, Any]) -> BpeTokenizer:
        return cls(
            content["specification"],
            normalize=content["normalize"],
            special_ids=content.get("special_ids"),
        )


def _made_deterministic(specification: Mapping[str, Any]) -> dict[str, Any]:
    """The document without truncation, padding and random dropping of merges."""
    if not isinstance(specification, Mapping) or not isinstance(specification.get("model"), Mapping):
        raise DataError('not a tokenizer.json (it has no "model")')
    added = specification.get("added_tokens") or []
    if not isinstance(added, list) or not all(
        isinstance(token, Mapping) and isinstance(token.get("content"), str) and type(token.get("id")) is int
        for token in added
    ):
        raise DataError("not a tokenizer.json that can be read (an added token has no content or no id)")
    document: dict[str, Any] = copy.deepcopy(dict(specification))
    document["truncation"] = document["padding"] = None
    if document["model"].get("dropout") is not None:
        document["model"]["dropout"] = None
    return document


def _unreadable(model: dict[str, Any], names: Set[str]) -> dict[str, str]:
    """Rename tokens in a model that looks whole words or pieces up, and would find these names in a text.

    Returns: the new names of those that were renamed.
    """
    vocabulary, merges = model.get("vocab"), model.get("merges")
    if merges is not None and not model.get("ignore_merges"):
        return {}
    found = {piece[0] for piece in vocabulary} if isinstance(vocabulary, list) else set(vocabulary or ())
    pairs = [merge.split(" ") if isinstance(merge, str) else merge for merge in merges or []]
    found -= {part for pair in pairs for part in (*pair, "".join(pair))}
    renamed = {name: _UNREADABLE + name for name in names & found}
    if isinstance(vocabulary, list):
        model["vocab"] = [[renamed.get(name, name), score] for name, score in vocabulary]
    elif vocabulary:
        model["vocab"] = {renamed.get(name, name): token for name, token in vocabulary.items()}
    if model.get("unk_token") in renamed:
        model["unk_token"] = renamed[model["unk_token"]]
    return renamed


def _training_texts(pieces: Callable[[], Iterator[Piece]], steps: tuple[str, ...]) -> Iterator[str]:
    for piece in _sample(pieces, TRAINING_BYTES):
        text = read_text(piece.data, BpeTokenizer.kind, origin=piece.origin, offset=piece.offset)
        for part in cut([normalize_text(text, steps).encode("utf-8")], _TRAINING_PART):
            yield part.decode("utf-8")


def _sample(pieces: Callable[[], Iterator[Piece]], budget: int) -> Iterator[Piece]:
    """All pieces, or of a text longer than `budget` bytes an evenly spread part of about that size."""
    total = sum(len(piece.data) for piece in pieces())
    seen = taken = 0
    for piece in chain.from_iterable(piece.alone() for piece in pieces()):
        seen += len(piece.data)
        if total <= budget or taken * total < seen * budget:
            taken += len(piece.data)
            yield piece
