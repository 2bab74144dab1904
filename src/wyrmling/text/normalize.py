"""What may be done to a text before it is tokenized: nothing (the default), `newlines`, `nfc`.

The same steps are applied to training text, validation text and prompts, because the tokenizer carries
them: they are part of its file and of its fingerprint.

* `newlines`: CR LF and a lone CR become LF.
* `nfc`: Unicode normalization form C (a letter and its combining accent become one character where one
  exists).

A long text is normalized piece by piece. Pieces end after a line end, or before a space inside a very long
line, where neither step can reach across. Only a line longer than a piece (1 MiB) with no space in the last
4 KiB of the piece may be cut between a letter and its accent, which `nfc` then leaves apart.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

from ..errors import ConfigError

STEPS = ("newlines", "nfc")


def check_steps(steps: Iterable[str]) -> tuple[str, ...]:
    """The steps as a tuple.

    Raises:
        ConfigError: a step that does not exist.
    """
    chosen = tuple(steps)
    for step in chosen:
        if step not in STEPS:
            raise ConfigError(f'tokenizer.normalize: "{step}" is not one of {", ".join(STEPS)}')
    return chosen


def normalize_text(text: str, steps: Iterable[str]) -> str:
    """Apply the steps, in the order given, to a text."""
    for step in steps:
        if step == "newlines":
            text = text.replace("\r\n", "\n").replace("\r", "\n")
        else:
            text = unicodedata.normalize("NFC", text)
    return text


def normalize_bytes(data: bytes, steps: Iterable[str]) -> bytes:
    """Apply the steps, in the order given, to UTF-8 bytes; other bytes come through unchanged."""
    for step in steps:
        if step == "newlines":
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        else:
            text = data.decode("utf-8", "surrogateescape")
            data = unicodedata.normalize("NFC", text).encode("utf-8", "surrogateescape")
    return data
