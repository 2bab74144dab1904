"""Small vocabularies of every kind of model and decoder of the `tokenizers` library."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from typing import Any

from tokenizers import Tokenizer as Library
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from wyrmling.text.tokenizers import BpeTokenizer

CORPUS = [
    "the quick brown fox jumps over the lazy dog, isn't it? é漢. ",
    "  two  spaces\n",
    "low lower lowest.",
] * 9
SPECIAL = ["<unk>", "<s>", "</s>"]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def unigram() -> Library:
    library = Library(models.Unigram())
    library.pre_tokenizer = pre_tokenizers.Metaspace()
    library.decoder = decoders.Metaspace()
    return trained(library, trainers.UnigramTrainer(vocab_size=70, special_tokens=SPECIAL, unk_token="<unk>"))


def unigram_bytes() -> Library:
    """As T5's successors: pieces with scores, and bytes for what has no piece."""
    pieces = [(name, 0.0) for name in SPECIAL] + [(name, -9.0) for name in BYTES]
    pieces += [("▁", -2.0), ("▁the", -3.0), ("e", -4.0), ("t", -4.0), ("é", -4.0), ("\ufffd", -4.0)]
    library = Library(models.Unigram(pieces, 0, byte_fallback=True))
    library.pre_tokenizer = pre_tokenizers.Metaspace()
    library.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    library.add_special_tokens(SPECIAL)
    return library


def llama() -> Library:
    """As LLaMA 2 and Mistral: byte pairs over ▁ for spaces, bytes for what has none, one space in front taken away."""
    names = [*SPECIAL, *BYTES, "▁", "t", "h", "e", "é", "th", "the", "▁the", "▁▁", "\ufffd", "漢"]
    merges = [("t", "h"), ("th", "e"), ("▁", "the"), ("▁", "▁")]
    vocabulary = {name: token for token, name in enumerate(names)}
    library = Library(models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    library.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    library.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    library.add_special_tokens(SPECIAL)
    return library


def wordpiece() -> Library:
    library = Library(models.WordPiece(unk_token="[UNK]"))
    library.normalizer = normalizers.BertNormalizer()
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.decoder = decoders.WordPiece()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    return trained(library, trainers.WordPieceTrainer(vocab_size=70, special_tokens=special))


def wordlevel() -> Library:
    library = Library(models.WordLevel(unk_token="[UNK]"))
    library.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return trained(library, trainers.WordLevelTrainer(special_tokens=["[UNK]", "[SEP]"]))


def end_of_word() -> Library:
    """As GPT-1: the end of a word is written, and its space is there only when another word follows."""
    library = Library(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.decoder = decoders.BPEDecoder()
    return trained(
        library, trainers.BpeTrainer(vocab_size=70, special_tokens=SPECIAL, end_of_word_suffix="</w>")
    )


def byte_level(decoder: Any = None) -> Library:
    library = Library(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoder or decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    return trained(
        library, trainers.BpeTrainer(vocab_size=300, special_tokens=SPECIAL, initial_alphabet=alphabet)
    )


def byte_level_among_others() -> Library:
    return byte_level(decoders.Sequence([decoders.ByteLevel(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]))


def trained(library: Library, trainer: Any) -> Library:
    trainer.show_progress = False
    library.train_from_iterator(CORPUS, trainer)
    return library


KINDS: dict[str, Callable[[], Library]] = {
    kind.__name__: kind
    for kind in (
        unigram,
        unigram_bytes,
        llama,
        wordpiece,
        wordlevel,
        end_of_word,
        byte_level,
        byte_level_among_others,
    )
}


@cache
def library_of(kind: str) -> Library:
    return KINDS[kind]()


@cache
def ours_of(kind: str) -> BpeTokenizer:
    return BpeTokenizer(json.loads(library_of(kind).to_str()))
