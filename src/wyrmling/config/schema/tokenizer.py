"""`[dataset.tokenizer]`: how text becomes numbers."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from .base import CountingInt, FilePath, PositiveInt, Text, Variant

Normalization = Literal["newlines", "nfc"]


class TextTokenizer(Variant):
    """Keys of every tokenizer that reads text."""

    normalize: Annotated[tuple[Normalization, ...], Field(strict=False)] = Field(
        default=(),
        description='What is done to the text first: "newlines" turns CR LF and CR into LF, "nfc" composes '
        "Unicode characters.",
    )


class ByteTokenizer(TextTokenizer):
    """Every byte is a token: 256 ids, nothing to train, nothing unknown."""

    default_variant: ClassVar[bool] = True
    type: Literal["byte"] = Field(default="byte", description="Every byte is a token.")
    add_special_tokens: bool = Field(
        default=False,
        description="Add begin, end and padding (ids 256, 257, 258); then an end follows every document.",
    )


class CharTokenizer(TextTokenizer):
    """Every character of the training text is a token."""

    type: Literal["char"] = Field(
        default="char", description="Every character of the training text is a token."
    )
    include_unknown: bool = Field(
        default=True, description="Have an id for characters that the training text does not hold."
    )
    vocab_path: FilePath | None = Field(
        default=None, description="A vocabulary file to read instead of collecting the characters."
    )


class BpeTokenizer(TextTokenizer):
    """Byte-pair encoding trained on the training text, or any tokenizer.json (BPE, Unigram, WordPiece, WordLevel)."""

    type: Literal["bpe"] = Field(
        default="bpe", description="Byte-pair encoding over bytes, or a vocabulary that is read."
    )
    vocab_size: Annotated[int, Field(gt=256)] = Field(
        default=4096, description="Number of tokens to train, special ones included."
    )
    vocab_path: FilePath | None = Field(
        default=None,
        description="A tokenizer.json to read; then nothing is trained and vocab_size is its own.",
    )
    bos_id: CountingInt | Text | None = Field(
        default=None, description="As `eos_id`: the token that begins a text."
    )
    eos_id: CountingInt | Text | None = Field(
        default=None,
        description="The id or the text of the token that ends a document, where a vocabulary is read; default: "
        "what a `tokenizer_config.json` or `special_tokens_map.json` beside it names, else a well-known name.",
    )
    pad_id: CountingInt | Text | None = Field(
        default=None, description="As `eos_id`: the token that fills rows up."
    )


class PretokenizedTokenizer(Variant):
    """The data already is numbers."""

    type: Literal["pretokenized"] = Field(default="pretokenized", description="The data already is numbers.")
    vocab_size: PositiveInt = Field(description="Number of different tokens.")
    bos_id: CountingInt | None = Field(default=None, description="Id that begins a text.")
    eos_id: CountingInt | None = Field(
        default=None, description="Id that ends a document; a file holds as many documents as it has of it."
    )
    pad_id: CountingInt | None = Field(default=None, description="Id that fills rows up.")
    unk_id: CountingInt | None = Field(default=None, description="Id that stands for anything unknown.")


TOKENIZERS = (ByteTokenizer, CharTokenizer, BpeTokenizer, PretokenizedTokenizer)
TokenizerConfig = ByteTokenizer | CharTokenizer | BpeTokenizer | PretokenizedTokenizer
