"""Between text and token ids: bytes, characters, byte-pair encoding, or ids that are tokens already."""

from __future__ import annotations

from .base import StreamDecoder, Tokenizer
from .bpe import BpeTokenizer
from .build import build_tokenizer
from .byte import ByteTokenizer
from .char import CharTokenizer
from .compare import differences
from .pretokenized import PretokenizedTokenizer
from .storage import load_tokenizer, save_tokenizer

__all__ = [
    "BpeTokenizer",
    "ByteTokenizer",
    "CharTokenizer",
    "PretokenizedTokenizer",
    "StreamDecoder",
    "Tokenizer",
    "build_tokenizer",
    "differences",
    "load_tokenizer",
    "save_tokenizer",
]
