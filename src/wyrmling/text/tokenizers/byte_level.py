"""Byte-level vocabularies (as GPT-2's): tokens are written with a printable character for each byte."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..utf8 import find_invalid

_BYTE_NAME = re.compile("<0x[0-9A-Fa-f]{2}>")


def byte_alphabet() -> dict[str, int]:
    """The character for each byte: printable Latin-1 as it is, the rest counted from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in printable]
    pairs = [(chr(byte), byte) for byte in printable]
    pairs += [(chr(0x100 + index), byte) for index, byte in enumerate(hidden)]
    return dict(pairs)


@dataclass(frozen=True)
class ByteLevel:
    """What each id of a byte-level vocabulary stands for."""

    texts: tuple[bytes, ...]
    """The bytes of each id; none for special tokens and ids without a token."""
    missing: frozenset[int]
    """Bytes that no token stands for alone: the library leaves them out without a word."""
    exact: bool
    """Whether the bytes of the ids, put together, are the text: nothing is added, stripped or rewritten."""

    @classmethod
    def of(
        cls, specification: Mapping[str, Any], names: Sequence[str], special: Collection[int]
    ) -> ByteLevel | None:
        """The byte-level reading of a `tokenizer.json`, or None when it is another kind.

        Args:
            names: the token of each id.
            special: ids that stand for no text.
        """
        before = _components(specification.get("pre_tokenizer"), "pretokenizers")
        after = _components(specification.get("decoder"), "decoders")
        model = specification["model"]
        marks_pieces = model.get("continuing_subword_prefix") or model.get("end_of_word_suffix")
        level = [part for part in before if part.get("type") == "ByteLevel"]
        if not level or [part.get("type") for part in after] != ["ByteLevel"] or marks_pieces:
            return None
        added = {token["id"]: token for token in specification.get("added_tokens") or []}
        in_model = set(_model_ids(model))
        alphabet = byte_alphabet()
        texts = []
        for token, name in enumerate(names):
            if token in special or (token not in added and token not in in_model):
                texts.append(b"")
            elif token in added or not all(character in alphabet for character in name):
                texts.append(name.encode("utf-8"))
            else:
                texts.append(bytes(alphabet[character] for character in name))
        normalizers = _components(specification.get("normalizer"), "normalizers")
        exact = (
            not any(part.get("add_prefix_space") for part in level)
            and all(part.get("type") == "NFC" for part in normalizers)
            and not any(token.get("lstrip") or token.get("rstrip") for token in added.values())
        )
        present = set(names)
        missing = frozenset(byte for character, byte in alphabet.items() if character not in present)
        return cls(tuple(texts), missing, exact)

    def lost(self, text: str, ids: Sequence[int]) -> dict[str, int]:
        """Characters of `text` with a byte that no token holds, and where each occurs first."""
        if not self.missing:
            return {}
        if sum(len(self.texts[token]) for token in ids) == len(text.encode("utf-8")):
            return {}
        found: dict[str, int] = {}
        for index, character in enumerate(text):
            if not self.missing.isdisjoint(character.encode("utf-8")):
                found.setdefault(character, index)
        return found


def parts_of_characters(specification: Mapping[str, Any], names: Sequence[str]) -> dict[int, bytes]:
    """Ids of a `tokenizer.json` that stand for bytes which are no whole characters, with these bytes: tokens of a byte
    fallback (`<0xE4>`), or of a byte-level decoder among others.
    """
    kinds = {str(part.get("type")) for part in _components(specification.get("decoder"), "decoders")}
    alphabet = byte_alphabet()
    found: dict[int, bytes] = {}
    for token, name in enumerate(names):
        data = b""
        if "ByteFallback" in kinds and _BYTE_NAME.fullmatch(name):
            data = bytes([int(name[3:5], 16)])
        elif "ByteLevel" in kinds and all(character in alphabet for character in name):
            data = bytes(alphabet[character] for character in name)
        if find_invalid(data) is not None:
            found[token] = data
    return found


def _components(part: Any, key: str) -> list[dict[str, Any]]:
    """A component of a `tokenizer.json`, a sequence of them taken apart."""
    if not isinstance(part, dict):
        return []
    if part.get("type") == "Sequence":
        return [inner for member in part.get(key) or [] for inner in _components(member, key)]
    return [part]


def _model_ids(model: Mapping[str, Any]) -> list[int]:
    vocabulary = model.get("vocab")
    if isinstance(vocabulary, Mapping):
        return list(vocabulary.values())
    return list(range(len(vocabulary or [])))
