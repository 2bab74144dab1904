"""Decoding ids one at a time when what an id stands for depends on its neighbours."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from ..utf8 import IncrementalDecoder
from .base import StreamDecoder, checked_ids

Decode = Callable[[list[int]], str]


class SlidingDecoder(StreamDecoder):
    """For ids that a library decodes as a list: what one more of them adds follows from the one before it.

    It is the difference of two short lists, so the work for a token does not grow with the text. A list begins as the
    text does, where decoders take spaces away, or with a token that stands for everything before. Ids that stand for
    parts of characters go past the library, which gives up whole runs of bytes for a single wrong one.

    Args:
        decode: the library.
        silent: ids without text; for what follows it is as if they were not there.
        parts: the bytes of the ids that are no whole characters.
        anchor: an id with visible text; None where there is none.
    """

    def __init__(
        self,
        decode: Decode,
        vocab_size: int,
        silent: Collection[int],
        parts: Mapping[int, bytes],
        anchor: int | None,
    ) -> None:
        self._decode, self._vocab_size, self._anchor = decode, vocab_size, anchor
        self._silent, self._parts = silent, parts
        self._utf8 = IncrementalDecoder()
        self._before: list[int] = []

    def push(self, token: int) -> str:
        return self._utf8.push(self.bytes_of(token))

    def finish(self) -> str:
        self._before = []
        return self._utf8.finish()

    def bytes_of(self, token: int) -> bytes:
        """The bytes that the next id adds.

        Raises:
            DataError: an id outside the vocabulary.
        """
        checked_ids([token], self._vocab_size)
        if token in self._silent:
            return b""
        if token in self._parts:
            added = self._parts[token]
        else:
            text = self._decode([*self._before, token])
            added = text[len(self._decode(self._before)) :].encode("utf-8")
        # next time: the anchor for all that came before this token, unless this one is the first
        seen = self._anchor if token in self._parts else token
        before = [self._anchor, seen] if self._before else [seen]
        self._before = [known for known in before if known is not None]
        return added
