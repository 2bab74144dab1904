"""Bytes as tokens: every text, and every file that is no text, is 256 ids; nothing is trained or unknown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ..normalize import check_steps, normalize_bytes
from ..utf8 import IncrementalDecoder
from .base import StreamDecoder, Tokenizer, checked_ids, read_text, surrogate_error

_SPECIAL = ("<bos>", "<eos>", "<pad>")


class ByteTokenizer(Tokenizer):
    """Id = byte; with special tokens also bos = 256, eos = 257, pad = 258.

    `decode_bytes(encode(x)) == x` for any bytes, when nothing is normalized.
    """

    kind = "byte"

    def __init__(self, *, add_special_tokens: bool = False, normalize: Iterable[str] = ()) -> None:
        self.normalize = check_steps(normalize)
        self.vocab_size = 256
        if add_special_tokens:
            self.bos_id, self.eos_id, self.pad_id = 256, 257, 258
            self.vocab_size = 259

    def encode(self, text: bytes | str | np.ndarray, *, origin: str = "text", offset: int = 0) -> np.ndarray:
        """See `Tokenizer.encode`. Bytes of a command line that Python could not decode come back out."""
        if isinstance(text, str):
            data = self._bytes_of(text, origin, offset)
        elif isinstance(text, np.ndarray):
            data = read_text(text, self.kind, origin=origin, offset=offset).encode("utf-8")
        else:
            data = text
        return np.frombuffer(normalize_bytes(data, self.normalize), dtype=np.uint8).astype(np.int64)

    def encode_all(self, texts: bytes, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """See `Tokenizer.encode_all`."""
        if self.normalize:
            return super().encode_all(texts, ends)
        return self.encode(texts), np.diff(ends, prepend=0)

    def _bytes_of(self, text: str, origin: str, offset: int) -> bytes:
        try:
            return text.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError as error:
            raise surrogate_error(text, error.start, origin=origin, offset=offset) from None

    def byte_ids(self) -> Mapping[int, int]:
        return {byte: byte for byte in range(256)}

    def decode_bytes(self, ids: Iterable[int] | np.ndarray) -> bytes:
        array = checked_ids(ids, self.vocab_size)
        return array[array < 256].astype(np.uint8).tobytes()

    def stream_decoder(self) -> StreamDecoder:
        return Utf8StreamDecoder(self)

    def byte_lengths(self) -> np.ndarray:
        return (np.arange(self.vocab_size) < 256).astype(np.int64)

    def token_texts(self) -> list[bytes]:
        return [bytes([token]) if token < 256 else b"" for token in range(self.vocab_size)]

    def tokens(self) -> list[str]:
        names = [f"<0x{byte:02X}>" for byte in range(256)]
        return [*names, *_SPECIAL] if self.vocab_size > 256 else names

    def _content(self) -> dict[str, Any]:
        return {"normalize": list(self.normalize), "add_special_tokens": self.vocab_size > 256}

    @classmethod
    def _from_content(cls, content: Mapping[str, Any]) -> ByteTokenizer:
        return cls(add_special_tokens=bool(content["add_special_tokens"]), normalize=content["normalize"])


class Utf8StreamDecoder(StreamDecoder):
    """For tokenizers whose ids stand for bytes: UTF-8 as it becomes complete."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = IncrementalDecoder()

    def push(self, token: int) -> str:
        return self.read([token])

    def read(self, ids: Iterable[int]) -> str:
        return self._decoder.push(self._tokenizer.decode_bytes(ids))

    def finish(self) -> str:
        return self._decoder.finish()
