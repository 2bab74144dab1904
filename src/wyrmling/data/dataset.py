"""From a `[dataset]` table to tokens that are ready to train on.

Sources are opened, the tokenizer is built (from the training text only) or read, the token files are built
or found in the cache, and the splits are cut and checked, before any model is built.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..config import Config, cache_directory
from ..errors import ConfigError, DataError
from ..files import read_record, sealed, write_json_atomically
from ..text.sources import Piece, Source, open_source, open_validation_source, shared_file
from ..text.sources.base import Tally, separated
from ..text.sources.tally import listed
from ..text.tokenizers import Tokenizer, build_tokenizer
from .building import build_store, locked, refuse_changed, source_names, store_in_memory
from .encoding import Progress, Tell, checked_ids
from .format import VERSION
from .known_files import KnownFiles, digest_of
from .store import Split, TokenStore, set_aside
from .training_part import between_documents, documents_for_training, tokens_for_training, training_pieces

Texts = str | Sequence[str]
"""One document, or several."""
Ids = npt.NDArray[Any] | Sequence[npt.NDArray[Any]]
"""One document of token ids, or several."""

_LEARNED = ("char", "bpe")


@dataclass
class Dataset:
    """Everything that training needs to know about its data.

    validation: None when everything is trained on.
    notes: what a person should know (skipped documents, rebuilt files, unknown characters), one line each.
    fingerprint: SHA-256 over the texts, the tokenizer and where the splits are cut; data with equal
        fingerprints give equal batches under equal settings.
    """

    tokenizer: Tokenizer
    train: Split
    validation: Split | None
    notes: list[str] = field(default_factory=list)
    fingerprint: str = ""

    def __post_init__(self) -> None:
        if not self.fingerprint:
            splits = [self.train, self.validation] if self.validation is not None else [self.train]
            parts = [(s.name, s.store.header["fingerprint_text"], s.start, s.stop) for s in splits]
            self.fingerprint = digest_of([self.tokenizer.fingerprint(), parts])

    @classmethod
    def from_texts(
        cls,
        train: Texts,
        validation: Texts | None = None,
        *,
        tokenizer: Tokenizer,
        document_separator: str | None = None,
    ) -> Dataset:
        """A dataset of texts in memory; a list is a list of documents, each followed by EOS if there is one.

        Args:
            document_separator: as the key of `[dataset]`: added to documents that do not end with it.

        Raises:
            DataError: nothing but empty texts, or characters that the tokenizer refuses.
        """
        separator = _separator(document_separator, tokenizer)
        return cls._in_memory(partial(_text_pieces, separator=separator), train, validation, tokenizer)

    @classmethod
    def from_tokens(cls, train: Ids, validation: Ids | None = None, *, tokenizer: Tokenizer) -> Dataset:
        """A dataset of token ids in memory; a list is a list of documents.

        EOS, if the tokenizer has one, ends a document wherever it stands, and is added to documents that do not end
        with it.

        Raises:
            DataError: no ids at all, not integers, or an id outside the tokenizer's vocabulary.
        """
        return cls._in_memory(_id_pieces, train, validation, tokenizer)

    @classmethod
    def _in_memory(cls, pieces: Any, train: Any, validation: Any, tokenizer: Tokenizer) -> Dataset:
        stores = [
            store_in_memory(pieces(data, name, tokenizer.vocab_size), tokenizer, ready=True)
            for name, data in (("train", train), ("validation", validation))
            if data is not None
        ]
        splits = [_whole(store, name) for store, name in zip(stores, ("train", "validation"), strict=False)]
        notes = [note for store in stores for note in store.notes]
        return cls(tokenizer, splits[0], splits[1] if len(splits) > 1 else None, notes)

    def check(self, block_size: int) -> None:
        """Make sure that every split that exists holds a full window.

        Raises:
            DataError: names the files, the split, the tokens found and the tokens needed.
        """
        self.train.check(block_size)
        if self.validation is not None:
            self.validation.check(block_size)


def prepare_dataset(
    config: Config,
    *,
    progress: Progress | None = None,
    tokenizer: Tokenizer | None = None,
    tell: Tell | None = None,
) -> Dataset:
    """Open, tokenize, split and check the data of a configuration.

    The token files are `<cache>/tokens/<key>.tokens`, the key a hash of the source's settings, of what is in its files,
    of the tokenizer and the format; learned tokenizers are kept beside them in `<cache>/tokenizers`. What is damaged
    or out of date there is built again.

    With a validation source of its own, all of the training source trains; otherwise `train_split_ratio`
    and `split` cut it. Only train_split_ratio = 1.0 leaves no validation.

    Args:
        progress: told of bytes read and bytes in all while files are hashed (see `known_files`) and while a token file
            is built (the training one first).
        tokenizer: one that exists already (a resumed or evaluated run's), instead of the configured one.
        tell: told in a line when another process that prepares the same text is waited for.

    Raises:
        DataError: text missing, empty, malformed, too short for a block, or unknown to the vocabulary.
        StorageError: the file system refused.
    """
    settings = config.dataset
    cache = cache_directory(config)
    own = tokenizer is None
    if tokenizer is None and not _is_learned(settings.tokenizer):
        tokenizer = build_tokenizer(settings.tokenizer, lambda: iter(()))
    separator = _separator(settings.document_separator, tokenizer, learned=settings.tokenizer.type)
    try:
        source = open_source(settings, cache_dir=cache, separator=separator)
        validation_source = open_validation_source(settings, cache_dir=cache, separator=separator)
    except (ConfigError, DataError) as error:
        hint = "" if own else where_paths_begin(settings, missing=True)
        raise type(error)(f"{error}{hint}") from error
    _refuse_shared_files(settings, source, validation_source)
    known = KnownFiles(cache / "files", progress)
    divided = validation_source is None and settings.train_split_ratio < 1
    if tokenizer is None:
        tokenizer = _learned_tokenizer(settings, source, divided, cache, known, tell)
    store = _store(source, tokenizer, cache, known, tell)
    notes = [
        *tokenizer.notes,
        *source.opening_notes,
        *store.notes,
        *_notes_on_ends(settings, tokenizer, store, separator),
    ]
    if validation_source is None:
        train, validation = _cut(store, settings, source_names(source))
        if validation is not None and settings.split == "auto" and len(store.document_starts) == 1:
            notes.append("a single document: the end of it validates (dataset.split)")
    else:
        validation_store = _store(validation_source, tokenizer, cache, known, tell)
        train = _whole(store, "train", source_names(source))
        validation = _whole(validation_store, "validation", source_names(validation_source))
        notes += [
            f"validation: {note}" for note in (*validation_source.opening_notes, *validation_store.notes)
        ]
        notes += _notes_on_validation(config, store, validation_store)
    dataset = Dataset(tokenizer, train, validation, list(dict.fromkeys(notes)))
    dataset.check(config.training.block_size)
    return dataset


def where_paths_begin(settings: Any, *, missing: bool = False) -> str:
    """The end of an error about the text of a run that may have been started in another folder.

    Args:
        settings: the `[dataset]` table.
        missing: only where a relative path leads nowhere. Else: where there is a relative path.
    """
    tables = [table for table in (settings, settings.validation) if table is not None]
    values = [getattr(table, key, None) or () for table in tables for key in ("path", "local_dir")]
    paths = [path for value in values for path in (value if isinstance(value, tuple) else (value,))]
    relative = [path for path in map(str, paths) if not os.path.isabs(os.path.expanduser(path))]
    for path in relative:
        if not missing or not (os.path.exists(path) or glob.has_magic(path)):
            return (
                f"; {path} is relative, so it is looked for in {os.getcwd()}: if the run was started in another "
                "folder, go there"
            )
    return ""


def _store(
    source: Source, tokenizer: Tokenizer, cache: Path, known: KnownFiles, tell: Tell | None
) -> TokenStore:
    key = digest_of([VERSION, known.signature(source), tokenizer.fingerprint()])[:32]
    changed = [file.name for file in source.files if file.name in known.changed]
    return build_store(
        cache / "tokens" / f"{key}.tokens",
        source,
        tokenizer,
        identify=known.signature,
        reason=f"{listed(changed)} changed since the last time" if changed else "",
        progress=known.progress,
        tell=tell,
    )


def _is_learned(table: Any) -> bool:
    """Whether a tokenizer's vocabulary follows from the text."""
    return table.type in _LEARNED and table.vocab_path is None


def _separator(configured: str | None, tokenizer: Tokenizer | None, learned: str = "") -> bytes:
    """What stands between documents: the configured text; else nothing where their end is a token, else a line end
    where the vocabulary has it.

    Args:
        tokenizer: None where it is still to be learned, as `learned`: "bpe" will have an end of text, "char" none.
    """
    if configured is not None:
        return configured.encode()
    if tokenizer is None:
        return b"" if learned == "bpe" else b"\n"
    if tokenizer.eos_id is not None or tokenizer.kind == "pretokenized":
        return b""
    try:
        ids = tokenizer.encode(b"\n").tolist()
    except DataError:
        ids = []
    return b"\n" if ids and tokenizer.unk_id not in ids else b""


def _learned_tokenizer(
    settings: Any, source: Source, divided: bool, cache: Path, known: KnownFiles, tell: Tell | None
) -> Tokenizer:
    """The configured tokenizer, learned once for the same text and settings."""
    table = settings.tokenizer
    pieces = source.pieces
    if divided:
        pieces = partial(
            training_pieces,
            source,
            split=settings.split,
            ratio=settings.train_split_ratio,
            has_eos=table.type != "char",
            where=source_names(source),
        )
    part = [settings.split, settings.train_split_ratio] if divided else "whole"
    signature = known.signature(source)
    key = digest_of([signature, table.model_dump(mode="json"), part])
    path = cache / "tokenizers" / f"{key[:32]}.json"
    with locked(path, tell):
        try:
            record = read_record(path, must_be_sealed=True)
            if record.pop("learned_from") == key:
                return Tokenizer.from_json(record)
        except (FileNotFoundError, KeyError, ValueError, DataError):
            pass  # absent, damaged, of an earlier version, or another one's
        if path.exists() and not path.is_file():
            set_aside(path)
        tokenizer = build_tokenizer(table, pieces)
        refuse_changed(source, signature, known.signature)
        write_json_atomically(path, sealed({**tokenizer.to_json(), "learned_from": key}))
    return tokenizer


def _cut(store: TokenStore, settings: Any, where: str) -> tuple[Split, Split | None]:
    """The training and validation parts of one store."""
    ratio = settings.train_split_ratio
    if ratio >= 1:
        return _whole(store, "train", where), None
    documents = len(store.document_starts)
    if between_documents(settings.split, documents):
        first = documents_for_training(documents, ratio, where)
        border = int(store.document_starts[first])
    else:
        border = tokens_for_training(len(store), ratio)
    train = Split(store, 0, border, "train", where)
    return train, Split(store, border, len(store), "validation", where)


def _whole(store: TokenStore, name: str, where: str = "the given data") -> Split:
    return Split(store, 0, len(store), name, where)


def _notes_on_ends(settings: Any, tokenizer: Tokenizer, store: TokenStore, separator: bytes) -> Iterator[str]:
    documents = len(store.document_starts)
    if documents < 2:
        return
    if tokenizer.eos_id is not None:
        yield f"each of the {documents} documents ends with the end of text (id {tokenizer.eos_id})"
        return
    together = f"the {documents} documents run together"
    if tokenizer.kind in ("bpe", "pretokenized"):
        together = "" if separator else f"{together} and "
        yield (
            f"no end of text is known, so {together}generation never ends by itself: set dataset.tokenizer.eos_id"
        )
    elif not separator and settings.document_separator is None:
        yield f"{together}: dataset.document_separator names a text to put between them"


def _refuse_shared_files(settings: Any, source: Source, validation: Source | None) -> None:
    """Refuse to validate on files that are trained on, unless that is asked for."""
    if validation is None or settings.allow_shared_files:
        return
    shared = shared_file(source.files, validation.files)
    if shared is not None:
        train, other = shared
        same = "" if train.name == other.name else f", the same as {train.name},"
        raise DataError(
            f"dataset.validation: {other.name}{same} is trained on too, so its loss would say nothing about new text; "
            "name other files, or set dataset.allow_shared_files = true"
        )


def _notes_on_validation(config: Config, store: TokenStore, validation: TokenStore) -> Iterator[str]:
    if validation.header["fingerprint_text"] == store.header["fingerprint_text"]:
        yield "the validation text is the training text: its loss says nothing about new text"
    if config.origin("dataset.train_split_ratio") != "default" and config.dataset.train_split_ratio < 1:
        yield "dataset.train_split_ratio is not used: validation has a source of its own"


def _text_pieces(texts: Texts, origin: str, vocab_size: int, *, separator: bytes) -> Iterator[Piece]:
    documents = [texts] if isinstance(texts, str) else texts

    def pieces() -> Iterator[Piece]:
        for number, text in enumerate(documents):
            try:
                yield Piece(text.encode(), True, f"{origin} text {number}", 0)
            except UnicodeEncodeError as error:
                raise DataError(
                    f"{origin} text {number}: character {error.start} is half of a surrogate pair, not text"
                ) from error

    return separated(pieces(), separator, Tally())


def _id_pieces(ids: Ids, origin: str, vocab_size: int) -> Iterator[Piece]:
    for number, document in enumerate([ids] if isinstance(ids, np.ndarray) else ids):
        where = f"{origin} document {number}"
        yield Piece(checked_ids(np.asarray(document), vocab_size, origin=where), True, where, 0)
