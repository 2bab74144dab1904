"""What differs between two tokenizers, in one line for a person."""

from __future__ import annotations

from collections.abc import Sequence

from .base import Tokenizer

_SHOWN_TOKENS = 5


def differences(
    a: Tokenizer, b: Tokenizer, names: tuple[str, str] = ("the first", "the second")
) -> str | None:
    """The most telling difference between two tokenizers; None when texts and ids mean the same to both.

    Args:
        names: how the line calls them, such as ("the checkpoint", "the data").
    """
    if a.fingerprint() == b.fingerprint():
        return None
    one, other = names
    if a.kind != b.kind:
        return f"{one} has a {a.kind} tokenizer, {other} a {b.kind} tokenizer"
    if a.vocab_size != b.vocab_size:
        return f"{one} has {a.vocab_size} tokens, {other} has {b.vocab_size}{_only(a, b, names)}"
    if a.normalize != b.normalize:
        return f"{one} normalizes {_steps(a.normalize)}, {other} {_steps(b.normalize)}"
    for special in ("bos_id", "eos_id", "pad_id", "unk_id"):
        mine, theirs = getattr(a, special), getattr(b, special)
        if mine != theirs:
            return f"{special} is {mine} in {one}, {theirs} in {other}"
    changed = [
        (token, mine, theirs)
        for token, (mine, theirs) in enumerate(zip(a.tokens(), b.tokens(), strict=True))
        if mine != theirs
    ]
    if changed:
        token, mine, theirs = changed[0]
        return (
            f"both have {a.vocab_size} tokens, but {len(changed)} differ, the first: "
            f"id {token} is {mine!r} in {one}, {theirs!r} in {other}{_only(a, b, names)}"
        )
    return f"{one} and {other} have the same tokens but other rules to form them"


def _only(a: Tokenizer, b: Tokenizer, names: tuple[str, str]) -> str:
    mine, theirs = a.tokens(), b.tokens()
    parts = []
    for name, tokens, others in ((names[0], mine, set(theirs)), (names[1], theirs, set(mine))):
        extra = [token for token in tokens if token not in others]
        if extra:
            parts.append(f"only in {name}: {_listed(extra)}")
    return f" ({'; '.join(parts)})" if parts else ""


def _listed(tokens: Sequence[str]) -> str:
    more = len(tokens) - _SHOWN_TOKENS
    text = ", ".join(repr(token) for token in tokens[:_SHOWN_TOKENS])
    return f"{text} and {more} more" if more > 0 else text


def _steps(steps: Sequence[str]) -> str:
    return "+".join(steps) or "nothing"
