"""Tokenizers in files: one JSON document that appears whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...errors import ConfigError, DataError
from ...files import write_json_atomically
from ..sources.files import refusal, shown
from ..sources.tally import listed
from .base import FORMAT, Tokenizer
from .bpe import BpeTokenizer

_BESIDE = ("tokenizer_config.json", "special_tokens_map.json")
_PARTS = {"bos_id": "begin of text", "eos_id": "end of text", "pad_id": "padding"}


def save_tokenizer(path: Path, tokenizer: Tokenizer) -> None:
    """Write a tokenizer.

    Raises:
        StorageError: the file system refused; what was there before is untouched.
    """
    write_json_atomically(path, tokenizer.to_json())


def load_tokenizer(path: Path) -> Tokenizer:
    """Read what `save_tokenizer` wrote.

    Raises:
        DataError: the file is missing, damaged, of a newer version, or something else.
        StorageError: the system refuses to let it be read.
    """
    document = _read_json(path)
    try:
        return Tokenizer.from_json(document)
    except DataError as error:
        raise DataError(f"{shown(path)}: {error}") from error


def load_vocabulary(
    path: Path, *, normalize: tuple[str, ...], special_ids: Mapping[str, int | str] | None = None
) -> Tokenizer:
    """Read a vocabulary that a configuration names: one of ours, or a `tokenizer.json` of the tokenizers
    library. Which of its tokens begin, end and fill up a text is told in the tokenizer's notes.

    Args:
        normalize: goes with a foreign file; ours say themselves what is normalized.
        special_ids: `bos_id`, `eos_id`, `pad_id`, as ids or as the texts of tokens. What is not given is what a
            `tokenizer_config.json` or `special_tokens_map.json` beside a foreign file names, else a well-known name.

    Raises:
        ConfigError: a special id that the vocabulary does not have.
        DataError, StorageError: as `load_tokenizer`.
    """
    document = _read_json(path)
    foreign = not (isinstance(document, dict) and document.get("format") == FORMAT)
    try:
        tokenizer = BpeTokenizer(document, normalize=normalize) if foreign else Tokenizer.from_json(document)
    except DataError as error:
        raise DataError(f"{shown(path)}: {error}") from error
    if not isinstance(tokenizer, BpeTokenizer):
        return tokenizer
    ids = {name: token for token, name in enumerate(tokenizer.tokens())}
    found = {
        part: (_id_of(part, wanted, ids, path), f"by dataset.tokenizer.{part}")
        for part, wanted in (special_ids or {}).items()
    }
    notes = []
    for name in _BESIDE if foreign else ():
        beside = path.with_name(name)
        if len(found) == len(_PARTS) or not beside.is_file():
            continue
        for part, text in _named_tokens(beside).items():
            if text in ids:
                found.setdefault(part, (ids[text], f"by {name}"))
            elif part not in found:
                notes.append(
                    f"{shown(beside)} names {text!r} as {_PARTS[part]}, which {path.name} does not have"
                )
    tokenizer = tokenizer.with_special_ids({part: token for part, (token, _) in found.items()})
    names = tokenizer.tokens()
    told = []
    for part, token in tokenizer.special_ids.items():
        if token is not None:
            why = found[part][1] if part in found else "by its name"
            ordinary = "" if token in tokenizer.added else "; no added token: texts that spell it end there"
            told.append(f"{_PARTS[part]} {names[token]!r} (id {token}, {why}{ordinary})")
    if foreign:
        if tokenizer.eos_id is None:
            special = [f"{names[token]!r} ({token})" for token in sorted(tokenizer.special)]
            told.append(f"no end of text among its special tokens: {listed(special) or 'there are none'}")
        notes.insert(0, f"{shown(path)}: {tokenizer.vocab_size} tokens, {', '.join(told)}")
    tokenizer.notes = tuple(notes)
    return tokenizer


def _id_of(part: str, wanted: int | str, ids: Mapping[str, int], path: Path) -> int:
    """The id that a key of the configuration asks for."""
    if isinstance(wanted, str):
        if wanted not in ids:
            raise ConfigError(
                f"dataset.tokenizer.{part}: {shown(path)} has no token {wanted!r}; give one that it has, or its id "
                f"(0 to {len(ids) - 1})"
            )
        return ids[wanted]
    if wanted >= len(ids):
        raise ConfigError(
            f"dataset.tokenizer.{part}: {wanted} is outside the vocabulary of {shown(path)} (ids 0 to {len(ids) - 1})"
        )
    return wanted


def _named_tokens(path: Path) -> dict[str, str]:
    """The texts of special tokens by a file that lies beside a vocabulary: `"eos_token": "</s>"`, or a table whose
    `content` it is.
    """
    document = _read_json(path)
    found = {}
    for part in _PARTS:
        key = part.replace("_id", "_token")
        token = document.get(key) if isinstance(document, dict) else document
        text = token.get("content") if isinstance(token, dict) else token
        if isinstance(text, str):
            found[part] = text
        elif text is not None:
            raise DataError(
                f"{shown(path)}: {key} is not the text of a token; correct it, or set dataset.tokenizer.{part}"
            )
    return found


def _read_json(path: Path) -> Any:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise refusal(shown(path), error) from error
    try:
        return json.loads(content.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise DataError(
            f"{shown(path)}: a damaged tokenizer file, or none (not JSON: {reason}); from a sentencepiece model or a "
            "vocab.txt, save_pretrained of transformers makes a tokenizer.json"
        ) from error
