"""Rules of the table `dataset`: sources, what is read from their records, and the tokenizer that goes with them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..problems import Problem, exclusive
from ..schema.sources import (
    HuggingFaceSource,
    LocalTextSource,
    PretokenizedSource,
    RecordKeys,
    SourceConfig,
    TableKeys,
)
from ..schema.tokenizer import BpeTokenizer, ByteTokenizer, PretokenizedTokenizer
from .rulebook import Rulebook

if TYPE_CHECKING:
    from ..schema import Config

BOOK = Rulebook()
_PLACEHOLDER = re.compile(r"\{[^{}]+\}")
_TEXT_KEYS = ("field", "template", "sequence_field")
_SPECIAL_IDS = ("bos_id", "eos_id", "pad_id", "unk_id")


def _sources(config: Config) -> Iterator[tuple[str, SourceConfig]]:
    """The sources of a configuration, each with its table's name."""
    yield "dataset", config.dataset
    if config.dataset.validation is not None:
        yield "dataset.validation", config.dataset.validation


@BOOK.rule(
    "a-record-has-its-text", "A source of records has a `field`, a `template` or a `sequence_field`, and one."
)
def _record(config: Config) -> Iterator[Problem]:
    for table, source in _sources(config):
        if not isinstance(source, RecordKeys):
            continue
        given = [key for key in _TEXT_KEYS if getattr(source, key, None) is not None]
        if not given and not isinstance(source, HuggingFaceSource):
            yield Problem(
                f"{table}.field is required when {table}.template is unset",
                (f"{table}.field", f"{table}.type"),
            )
        for other in given[1:]:
            yield exclusive(f"{table}.{other}", f"{table}.{given[0]}")


@BOOK.rule("a-delimiter-is-no-quote", "`delimiter` and `quote` are two different characters and no line end.")
def _delimiter(config: Config) -> Iterator[Problem]:
    for table, source in _sources(config):
        if not isinstance(source, TableKeys):
            continue
        for key in ("delimiter", "quote"):
            if (getattr(source, key) or " ") in "\r\n":
                yield Problem(f"{table}.{key} must not be a line end", (f"{table}.{key}",))
        if source.delimiter is not None and source.delimiter == source.quote:
            yield Problem(
                f"{table}.delimiter and {table}.quote must differ", (f"{table}.delimiter", f"{table}.quote")
            )


@BOOK.rule(
    "raw-bytes-are-bytes",
    '`encoding = "raw"` needs `type = "local_text"` and `dataset.tokenizer.type = "byte"`.',
)
def _raw(config: Config) -> Iterator[Problem]:
    for table, source in _sources(config):
        if getattr(source, "encoding", None) != "raw":
            continue
        if not isinstance(source, LocalTextSource):
            yield Problem(
                f'{table}.encoding = "raw" requires {table}.type = "local_text"', (f"{table}.encoding",)
            )
        elif not isinstance(config.dataset.tokenizer, ByteTokenizer):
            yield Problem(
                f'{table}.encoding = "raw" requires dataset.tokenizer.type = "byte"',
                (f"{table}.encoding", "dataset.tokenizer.type"),
            )


@BOOK.rule("a-template-has-fields", "A `template` holds at least one {field}.")
def _template(config: Config) -> Iterator[Problem]:
    for table, source in _sources(config):
        template = getattr(source, "template", None)
        if template is not None and not _PLACEHOLDER.search(template):
            yield Problem(f"{table}.template must hold at least one {{field}}", (f"{table}.template",))


@BOOK.rule(
    "a-hub-source-has-files",
    "`train_files` is not empty; a validation source may have `validation_files` instead.",
)
def _hub_files(config: Config) -> Iterator[Problem]:
    for table, source in _hub(config):
        validates = table.endswith("validation")
        if not source.train_files and not (validates and source.validation_files):
            yield Problem(f"{table}.train_files must not be empty", (f"{table}.train_files",))


@BOOK.rule(
    "a-hub-source-has-its-text",
    "`text_fields` is not empty where none of `field`, `template` and `sequence_field` is set.",
)
def _hub_text(config: Config) -> Iterator[Problem]:
    for table, source in _hub(config):
        if not source.text_fields and all(getattr(source, key) is None for key in _TEXT_KEYS):
            yield Problem(f"{table}.text_fields must not be empty", (f"{table}.text_fields",))


@BOOK.rule("numbers-come-from-numbers", '`sequence_field` needs `format = "jsonl"` or "parquet" on the hub.')
def _sequence(config: Config) -> Iterator[Problem]:
    for table, source in _hub(config):
        if source.sequence_field is not None and source.format not in ("jsonl", "parquet"):
            yield Problem(
                f'{table}.sequence_field requires {table}.format = "jsonl" or "parquet" '
                f'(it is "{source.format}")',
                (f"{table}.sequence_field", f"{table}.format"),
            )


@BOOK.rule(
    "numbers-are-not-text",
    'A source of token ids and `dataset.tokenizer.type = "pretokenized"` need each other, validation included.',
)
def _ids(config: Config) -> Iterator[Problem]:
    has_ids = isinstance(config.dataset.tokenizer, PretokenizedTokenizer)
    for table, source in _sources(config):
        key, holds_ids = f"{table}.type", isinstance(source, PretokenizedSource)
        what = f'{key} = "pretokenized"'
        if getattr(source, "sequence_field", None) is not None:
            what = key = f"{table}.sequence_field"
            holds_ids = True
        if holds_ids and not has_ids:
            yield Problem(
                f'{what} requires dataset.tokenizer.type = "pretokenized"', (key, "dataset.tokenizer.type")
            )
        if has_ids and not holds_ids:
            yield Problem(
                f'dataset.tokenizer.type = "pretokenized" requires {table}.type = "pretokenized" '
                f'or a sequence_field (it is "{source.type}")',
                ("dataset.tokenizer.type", key),
            )


@BOOK.rule("ids-have-no-text-between", "`document_separator` is text: documents of token ids have none.")
def _separator(config: Config) -> Iterator[Problem]:
    if config.dataset.document_separator and isinstance(config.dataset.tokenizer, PretokenizedTokenizer):
        yield exclusive("dataset.document_separator", 'dataset.tokenizer.type = "pretokenized"')


@BOOK.rule(
    "special-tokens-are-tokens",
    "`bos_id`, `eos_id`, `pad_id` and `unk_id` are below `dataset.tokenizer.vocab_size`.",
)
def _special(config: Config) -> Iterator[Problem]:
    tokenizer = config.dataset.tokenizer
    if not isinstance(tokenizer, PretokenizedTokenizer):
        return
    for name in _SPECIAL_IDS:
        value = getattr(tokenizer, name)
        if value is not None and value >= tokenizer.vocab_size:
            yield Problem(
                f"dataset.tokenizer.{name} must be < dataset.tokenizer.vocab_size "
                f"({value} >= {tokenizer.vocab_size})",
                (f"dataset.tokenizer.{name}", "dataset.tokenizer.vocab_size"),
            )


@BOOK.rule(
    "a-trained-vocabulary-has-its-own-end",
    "`bos_id`, `eos_id` and `pad_id` of a `bpe` tokenizer go with a `vocab_path`.",
)
def _trained(config: Config) -> Iterator[Problem]:
    tokenizer = config.dataset.tokenizer
    if not isinstance(tokenizer, BpeTokenizer) or tokenizer.vocab_path is not None:
        return
    for name in _SPECIAL_IDS[:3]:
        if getattr(tokenizer, name) is not None:
            yield Problem(
                f"dataset.tokenizer.{name} needs dataset.tokenizer.vocab_path: a vocabulary that is trained has an end "
                "of text of its own (id 0), and neither begin nor padding",
                (f"dataset.tokenizer.{name}",),
            )


def _hub(config: Config) -> Iterator[tuple[str, HuggingFaceSource]]:
    for table, source in _sources(config):
        if isinstance(source, HuggingFaceSource):
            yield table, source
