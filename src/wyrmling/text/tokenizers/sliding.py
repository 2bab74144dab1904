"""Decoding ids one at a time when what an id stands for depends on its neighbours."""

from __future__ import annotations

from ..utf8 import REPLACEMENT
from .base import StreamDecoder, Tokenizer


class SlidingDecoder(StreamDecoder):
    """Decodes the last few ids again with each new one and gives out by how much the text grew.

    Text that ends in U+FFFD may still become a character, so it waits for the next id or the end.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._context: list[int] = []
        self._waiting: list[int] = []

    def push(self, token: int) -> str:
        self._waiting.append(token)
        grown = self._grown()
        if not grown or grown.endswith(REPLACEMENT):
            return ""
        self._context, self._waiting = self._waiting, []
        return grown

    def finish(self) -> str:
        grown = self._grown()
        self._context, self._waiting = [], []
        return grown

    def _grown(self) -> str:
        before = self._tokenizer.decode(self._context)
        return self._tokenizer.decode([*self._context, *self._waiting])[len(before) :]
