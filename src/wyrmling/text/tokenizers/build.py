"""From the tokenizer table of a configuration to a tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import ConfigError
from ..sources.files import shown
from .base import Tokenizer
from .bpe import BpeTokenizer
from .byte import ByteTokenizer
from .char import CharTokenizer
from .pretokenized import PretokenizedTokenizer
from .storage import load_vocabulary

if TYPE_CHECKING:
    from ...config.schema.tokenizer import BpeTokenizer as BpeConfig
    from ...config.schema.tokenizer import CharTokenizer as CharConfig
    from ...config.schema.tokenizer import TokenizerConfig
    from ..sources import Piece


def build_tokenizer(config: TokenizerConfig, pieces: Callable[[], Iterator[Piece]]) -> Tokenizer:
    """The tokenizer that a table describes; `char` and `bpe` without `vocab_path` learn it from the
    training text.

    A vocabulary file of this program (`tokenizer.json` of a run) settles everything itself,
    `include_unknown` and `normalize` too; a `normalize` in the table must then agree with it. Special ids in the
    table go before those of any file.

    Args:
        pieces: starts a pass over the training text, and over nothing else. It may be called more than once,
            and is not called when nothing is learned.

    Raises:
        ConfigError: the table does not fit the vocabulary file.
        DataError: the text or the vocabulary file cannot be used.
    """
    match config.type:
        case "byte":
            return ByteTokenizer(add_special_tokens=config.add_special_tokens, normalize=config.normalize)
        case "char":
            if config.vocab_path is not None:
                return _from_file(config, config.vocab_path)
            return CharTokenizer.fit(
                pieces, include_unknown=config.include_unknown, normalize=config.normalize
            )
        case "bpe":
            if config.vocab_path is not None:
                return _from_file(config, config.vocab_path)
            return BpeTokenizer.train(pieces, config.vocab_size, normalize=config.normalize)
        case "pretokenized":
            return PretokenizedTokenizer(
                config.vocab_size,
                bos_id=config.bos_id,
                eos_id=config.eos_id,
                pad_id=config.pad_id,
                unk_id=config.unk_id,
            )
        case unknown:
            raise ConfigError(f'dataset.tokenizer.type: "{unknown}" is not a tokenizer')


def _from_file(config: CharConfig | BpeConfig, vocab_path: Path) -> Tokenizer:
    path = vocab_path.expanduser()
    wanted = tuple(config.normalize)
    special = {part: getattr(config, part, None) for part in ("bos_id", "eos_id", "pad_id")}
    special_ids = {part: token for part, token in special.items() if token is not None}
    tokenizer = load_vocabulary(path, normalize=wanted, special_ids=special_ids)
    if tokenizer.kind != config.type:
        raise ConfigError(
            f"dataset.tokenizer.vocab_path: {shown(path)} is a {tokenizer.kind} tokenizer, not {config.type}"
        )
    if wanted and wanted != tokenizer.normalize:
        raise ConfigError(
            f"dataset.tokenizer.normalize: {shown(path)} was made with {list(tokenizer.normalize)}, "
            f"not {list(wanted)}; leave the key out"
        )
    return tokenizer
