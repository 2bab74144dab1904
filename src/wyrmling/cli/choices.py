"""Options that several commands share."""

from __future__ import annotations

from typing import Literal

from ..errors import ConfigError


def checkpoint_step(text: str) -> int | Literal["latest", "best"]:
    """What `--checkpoint` means.

    Raises:
        ConfigError: neither latest, best nor a number.
    """
    if text == "latest":
        return "latest"
    if text == "best":
        return "best"
    if text.isascii() and text.isdecimal():
        return int(text)
    raise ConfigError(f"--checkpoint must be latest, best or the number of a step, got {text!r}")
