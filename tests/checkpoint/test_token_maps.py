"""Tokens are found again by the text they stand for."""

from __future__ import annotations

from itertools import pairwise

from small_texts import small_text
from wyrmling.checkpoint.transfer import TokenMap, map_tokens
from wyrmling.text.sources import Piece
from wyrmling.text.tokenizers import (
    BpeTokenizer,
    ByteTokenizer,
    CharTokenizer,
    PretokenizedTokenizer,
    Tokenizer,
)


def bpe(size: int, seed: int) -> BpeTokenizer:
    piece = Piece(small_text(60, seed=seed).encode(), True, "text", 0)
    return BpeTokenizer.train(lambda: iter([piece]), size)


def found(old: Tokenizer, new: Tokenizer) -> TokenMap:
    tokens = map_tokens(old, new)
    assert tokens is not None
    assert len(tokens.sources) == new.vocab_size
    return tokens


def test_the_same_text_has_the_same_tokens_in_every_kind_of_vocabulary() -> None:
    """Byte, characters with and without unknown, byte-level pairs: whatever maps, maps to the same bytes."""
    kinds: list[Tokenizer] = [
        ByteTokenizer(),
        ByteTokenizer(add_special_tokens=True),
        CharTokenizer("abcdé", include_unknown=False),
        CharTokenizer("xcba"),
        bpe(300, 1),
        bpe(280, 2),
    ]
    for old, new in [*pairwise(kinds), *pairwise(kinds[::-1]), (kinds[0], kinds[3]), (kinds[4], kinds[0])]:
        tokens = found(old, new)
        for token, source in enumerate(tokens.sources.tolist()):
            if source >= 0:
                assert new.decode_bytes([token]) == old.decode_bytes([source])
            else:
                assert new.tokens()[token] in tokens.unknown
        assert tokens.known + len(tokens.unknown) == new.vocab_size
        assert tokens.left == old.vocab_size - tokens.known
    said = found(kinds[2], kinds[3]).text()
    assert said == "3 of 5 tokens are known; new: '<unk>', 'x'; 2 of the old ones are left behind"


def test_special_tokens_are_found_by_the_part_they_play() -> None:
    old, new = bpe(260, 1), ByteTokenizer(add_special_tokens=True)
    tokens = found(old, new)
    assert tokens.sources[new.eos_id] == old.eos_id
    assert tokens.unknown == ("<bos>", "<pad>")
    assert found(CharTokenizer("ab"), CharTokenizer("bc")).sources.tolist() == [0, 2, -1]


def test_the_same_tokenizer_is_the_identity() -> None:
    tokens = found(CharTokenizer("abc"), CharTokenizer("cba"))
    assert tokens.same
    assert tokens.sources.tolist() == [0, 1, 2, 3]


def test_nothing_is_guessed() -> None:
    """Ids without a text, or no text in common (an unknown token alone is none)."""
    assert map_tokens(PretokenizedTokenizer(9), PretokenizedTokenizer(10)) is None
    assert map_tokens(PretokenizedTokenizer(256), ByteTokenizer()) is None
    assert map_tokens(CharTokenizer("abc"), CharTokenizer("xyz")) is None
    assert found(PretokenizedTokenizer(9), PretokenizedTokenizer(9)).same
