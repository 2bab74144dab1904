"""The same tokens in two vocabularies.

Two tokens are the same when they stand for the same bytes of text, whatever kind of tokenizer writes them (byte,
character, byte-level pairs), or play the same part (bos, eos, pad, unknown). Vocabularies whose tokens do not stand
for bytes by themselves are compared by the names of their tokens, and only with one of their own kind.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import torch
from torch import Tensor

from ...text.tokenizers import Tokenizer

_PARTS = ("bos_id", "eos_id", "pad_id", "unk_id")
_SHOWN = 5


@dataclass(frozen=True)
class TokenMap:
    """Where each token of a new vocabulary stood in an old one.

    Attributes:
        sources: int64 [new tokens], the old id, or -1 for a token that the old vocabulary does not have.
        unknown: names of the new tokens without an old one.
        left: how many old tokens have no place in the new vocabulary.
        same: whether the tokenizers are the same altogether.
    """

    sources: Tensor
    unknown: tuple[str, ...]
    left: int
    same: bool

    @property
    def known(self) -> int:
        """How many tokens of the new vocabulary have an old one."""
        return int((self.sources >= 0).sum())

    def text(self) -> str:
        """How many tokens are known, for a person."""
        more = len(self.unknown) - _SHOWN
        names = ", ".join(repr(name) for name in self.unknown[:_SHOWN])
        new = f"; new: {names}{f' and {more} more' if more > 0 else ''}" if self.unknown else ""
        left = f"; {self.left} of the old ones are left behind" if self.left else ""
        return f"{self.known} of {len(self.sources)} tokens are known{new}{left}"


def map_tokens(old: Tokenizer, new: Tokenizer) -> TokenMap | None:
    """Find the tokens of `new` in `old`; None where that cannot be told, or no text is common to both."""
    if old.fingerprint() == new.fingerprint():
        return TokenMap(torch.arange(new.vocab_size), (), 0, same=True)
    theirs, ours = old.token_texts(), new.token_texts()
    if theirs is not None and ours is not None:
        before, now = _identities(old, theirs), _identities(new, ours)
    elif old.kind == new.kind and old.names_are_texts and new.names_are_texts:
        before, now = _identities(old, old.tokens()), _identities(new, new.tokens())
    else:
        return None
    places = {identity: token for token, identity in enumerate(before)}
    sources = [places.get(identity, -1) for identity in now]
    if not any(source >= 0 and now[token][0] == "text" for token, source in enumerate(sources)):
        return None
    unknown = [name for name, source in zip(new.tokens(), sources, strict=True) if source < 0]
    left = old.vocab_size - len({source for source in sources if source >= 0})
    return TokenMap(torch.tensor(sources), tuple(unknown), left, same=False)


Identity = tuple[str, Hashable]


def _identities(tokenizer: Tokenizer, texts: list[bytes] | list[str]) -> list[Identity]:
    """What each id is, comparable between vocabularies."""
    names = tokenizer.tokens()
    identities: list[Identity] = [
        ("text", text) if text else ("name", names[token]) for token, text in enumerate(texts)
    ]
    for part in _PARTS:
        token = getattr(tokenizer, part)
        if token is not None:
            identities[token] = ("part", part)
    return identities
