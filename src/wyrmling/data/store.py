"""Token files: built once, whole or not at all, and read through a memory map.

Building takes one pass over the source in bounded memory, into a temporary file that gets its real name
when it is complete and durable. A lock beside the file lets one process build while others wait and then
read what it made. What is read is compared with the hashes that the file holds: small files when they are
opened, others chunk by chunk when a token of it is first read.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt

from ..errors import DataError
from ..files import TEMPORARY_PREFIX, hold_lock, make_folder, publish, storage_errors, temporary_sibling
from ..text.sources import Piece, Source
from ..text.tokenizers import Tokenizer
from .encoding import Encoder, Progress, Tell
from .format import (
    HEADER_BYTES,
    CheckedBytes,
    ChunkHashes,
    Header,
    damaged,
    documents_offset,
    file_size,
    hash_of,
    hashes_offset,
    on_disk,
    read_header,
    token_dtype,
    write_header,
)

_BUFFER = 1 << 20
_PATIENCE_SECONDS = 2.0
_CHECKED_AT_ONCE = 1 << 24
"""Bytes of a token file that are compared with their hashes when it is opened: hundredths of a second."""


@dataclass(frozen=True)
class TokenStore:
    """The tokens of one corpus, read-only: a memory map of a token file, or arrays in memory.

    tokens: [count], the smallest unsigned width that holds vocab_size - 1 (int64 beyond 32 bits).
    document_starts: int64 [documents], ascending from 0; document i ends where document i + 1 starts.
    notes: what a person should know about the data.
    content: what the memory map shows, to be compared with its hashes; None in memory.
    """

    tokens: npt.NDArray[np.integer]
    document_starts: npt.NDArray[np.int64]
    header: Header
    notes: list[str] = field(default_factory=list)
    content: CheckedBytes | None = None

    def check(self, start: int, stop: int) -> None:
        """Make sure that the tokens start .. stop - 1 are those that were written; to be called before they are used.

        Raises:
            DataError: they are not; the file is set aside, so that it is built anew the next time.
        """
        if self.content is None or stop <= start:
            return
        width = self.tokens.itemsize
        try:
            self.content.check(start * width, stop * width)
        except DataError as error:
            if _set_aside(self.content.path, self.content):
                reason = str(error).partition(": delete")[0]
                raise DataError(f"{reason}: it is set aside; run again, and it is built anew") from error
            raise

    @property
    def vocab_size(self) -> int:
        """Every token is below it."""
        return self.header["vocab_size"]

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True)
class Split:
    """A range of a store's tokens with a name: what an order and a loader work on.

    Positions count from its start.

    name: "train" or "validation"; part of the key of every random draw.
    where: the files, for error messages.
    """

    store: TokenStore
    start: int
    stop: int
    name: str
    where: str = "the given data"

    def __len__(self) -> int:
        return self.stop - self.start

    @property
    def tokens(self) -> npt.NDArray[np.integer]:
        """The tokens of the split, not copied, in the store's width."""
        return self.store.tokens[self.start : self.stop]

    @property
    def document_starts(self) -> npt.NDArray[np.int64]:
        """int64: where documents start, ascending from 0 (where the split may begin inside a document)."""
        starts = self.store.document_starts
        first, last = np.searchsorted(starts, [self.start + 1, self.stop])
        return np.concatenate([np.zeros(1, dtype=np.int64), starts[first:last] - self.start])

    def read(self, start: int, n: int) -> npt.NDArray[np.int64]:
        """A copy of the tokens start .. start+n-1, int64 [n].

        Raises:
            IndexError: the range leaves the split.
        """
        if start < 0 or n < 0 or start + n > len(self):
            raise IndexError(f"tokens {start}..{start + n - 1} of a {self.name} split of {len(self)} tokens")
        self.check_tokens(start, start + n)
        return self.tokens[start : start + n].astype(np.int64)

    def check_tokens(self, start: int, stop: int) -> None:
        """`TokenStore.check` of the tokens start .. stop - 1 of the split."""
        self.store.check(self.start + start, self.start + stop)

    def check(self, block_size: int) -> None:
        """Make sure that one full window and its targets fit.

        Raises:
            DataError: fewer than block_size + 1 tokens.
        """
        if len(self) <= block_size:
            advice = "use a smaller block_size or more text"
            if self.name == "validation":
                advice += ", a smaller dataset.train_split_ratio, or 1.0 to go without validation"
            raise DataError(
                f"{self.where}: the {self.name} split has {len(self)} tokens, but training.block_size = "
                f"{block_size} needs at least {block_size + 1}; {advice}"
            )


def open_store(path: Path) -> TokenStore:
    """Map a token file.

    Raises:
        DataError: missing, not a token file, of another version, or damaged.
    """
    header = read_header(path)
    mapped = np.asarray(np.memmap(path, np.uint8, "r"))
    borders = [HEADER_BYTES, documents_offset(header), hashes_offset(header)]
    hashes = mapped[borders[2] :].tobytes()
    if hash_of(hashes).hex() != header["hashes"]:
        raise damaged(path, "its hashes were altered")
    content = CheckedBytes(path, path.stat().st_ino, mapped[HEADER_BYTES : borders[2]], hashes)
    small = len(content.content) <= _CHECKED_AT_ONCE
    content.check(0 if small else borders[1] - HEADER_BYTES, len(content.content))
    width = np.dtype(header["dtype"]).itemsize
    tokens = mapped[HEADER_BYTES : HEADER_BYTES + header["count"] * width].view(on_disk(header["dtype"]))
    starts = mapped[borders[1] : borders[2]].view("<i8")
    return TokenStore(tokens, starts, header, list(header["notes"]), content)


def build_store(
    path: Path,
    source: Source,
    tokenizer: Tokenizer,
    *,
    progress: Progress | None = None,
    tell: Tell | None = None,
) -> TokenStore:
    """The token file at `path`: opened if it is good and holds this source by this tokenizer, else built.

    A second process that asks for the same path waits for the first and opens what it built. A file that is
    damaged or holds something else is built anew; the store's notes say so.

    Raises:
        DataError: the source holds no text or ids, or something in it cannot be encoded.
        StorageError: the file system refused.
    """
    with contextlib.suppress(_Unusable):
        return _open_fitting(path, source, tokenizer)
    with locked(path, tell):
        try:
            return _open_fitting(path, source, tokenizer)
        except _Unusable as error:
            reason = str(error)
        if reason and not path.is_file():
            _set_aside(path)
        _write_store(path, source, tokenizer, progress)
    store = open_store(path)
    if reason:
        store.notes.append(f"tokens built anew: {reason}")
    return store


def store_in_memory(pieces: Iterable[Piece], tokenizer: Tokenizer, *, ready: bool = False) -> TokenStore:
    """A store of arrays, for corpora that are in memory anyway.

    Args:
        ready: pieces of ids are this tokenizer's own and checked.

    Raises:
        DataError: there is no token in it, or something in it cannot be encoded.
    """
    sink = _Arrays(token_dtype(tokenizer.vocab_size))
    encoder = Encoder(tokenizer, sink, ready=ready)
    for _ in encoder.encode(pieces):
        pass
    if not encoder.count:
        raise DataError("the texts hold nothing to train on: every one of them is empty")
    header = _header(encoder, tokenizer, "", [])
    return TokenStore(np.concatenate(sink.parts), np.concatenate(sink.starts), header, list(header["notes"]))


@contextlib.contextmanager
def locked(path: Path, tell: Tell | None = None) -> Iterator[None]:
    """Hold the lock file beside `path`; its folder is made if needed, and a dying process lets go.

    Where another process holds it, it is waited for; `tell` gets a line about that after a short while.

    What killed writers of `path` left behind is removed first: the lock is held, so none of them is alive.

    Raises:
        StorageError: the folder cannot be made or written.
    """

    def waiting(holder: str) -> None:
        if tell is not None:
            tell(f"waiting for {holder}, which prepares the same text ({path})")

    make_folder(path.parent, "choose another dataset.cache_dir")
    with hold_lock(path.with_name(f"{path.name}.lock"), waiting, _PATIENCE_SECONDS):
        for leftover in path.parent.glob(f"{TEMPORARY_PREFIX}{glob.escape(path.name)}-*"):
            leftover.unlink(missing_ok=True)
        yield


def digest_of(value: object) -> str:
    """SHA-256 of a JSON value, hexadecimal; keys in any order."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def source_names(source: Source) -> str:
    """The files of a source, on one line, for errors: at most two names and how many more there are."""
    names = [file.name for file in source.files]
    if len(names) > 2:
        return f"{names[0]}, {names[1]} and {len(names) - 2} more"
    return ", ".join(names) or source.kind


def _set_aside(path: Path, opened: CheckedBytes | None = None) -> bool:
    """Give what stands in the place of a token file another name; whether that was possible.

    Args:
        opened: do so only if it is this file, and not what another process has built there since.
    """
    with contextlib.suppress(OSError):
        if opened is None or path.stat().st_ino == opened.inode:
            os.replace(path, path.with_name(f"{path.name}.damaged"))
            return True
    return False


class _Unusable(Exception):
    """The file is absent (no text) or must be built anew (the text says why)."""


def _open_fitting(path: Path, source: Source, tokenizer: Tokenizer) -> TokenStore:
    if not path.exists():
        raise _Unusable("")
    try:
        store = open_store(path)
    except DataError as error:
        raise _Unusable(str(error).partition(": delete")[0]) from error
    if store.header["fingerprint_tokenizer"] != tokenizer.fingerprint():
        raise _Unusable(f"{path} was made by another tokenizer")
    if store.header["source"] != digest_of(source.signature()):
        raise _Unusable(f"{path} was made from another source")
    return store


def _write_store(path: Path, source: Source, tokenizer: Tokenizer, progress: Progress | None) -> None:
    signature = digest_of(source.signature())
    total = source.total_bytes
    temporary = temporary_sibling(path)
    try:
        with (
            storage_errors(path),
            temporary.open("wb", buffering=_BUFFER) as file,
            tempfile.TemporaryFile(
                dir=path.parent, prefix=f"{TEMPORARY_PREFIX}{path.name}-", buffering=_BUFFER
            ) as starts,
        ):
            sink = _Files(file, starts, token_dtype(tokenizer.vocab_size))
            encoder = Encoder(tokenizer, sink)
            done = 0
            for size in encoder.encode(source.pieces()):
                done += size
                if progress is not None:
                    progress(done if total is None else min(done, total), total)
            if not encoder.count:
                raise DataError(f"{source_names(source)}: nothing to train on (no text, no token)")
            sink.finish(_header(encoder, tokenizer, signature, source.reading_notes(encoder.documents)))
        publish(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _header(encoder: Encoder, tokenizer: Tokenizer, source: str, notes: list[str]) -> Header:
    own = []
    if encoder.empty:
        own.append(f"{encoder.empty} documents without a token skipped")
    if encoder.unknown:
        own.append(f"{encoder.unknown} of {encoder.count} tokens are unknown to the vocabulary")
    return Header(
        count=encoder.count,
        documents=encoder.documents,
        dtype=token_dtype(tokenizer.vocab_size).name,
        vocab_size=tokenizer.vocab_size,
        text_bytes=None if encoder.has_ids else encoder.text_bytes,
        unknown=encoder.unknown,
        fingerprint_text=encoder.fingerprint(),
        fingerprint_tokenizer=tokenizer.fingerprint(),
        source=source,
        hashes="",
        notes=[*notes, *own],
    )


class _Files:
    """Tokens go to the file after room for the header; document starts wait in a nameless file beside it."""

    def __init__(self, file: IO[bytes], starts: IO[bytes], dtype: np.dtype[np.generic]) -> None:
        self._file, self._starts, self._dtype = file, starts, dtype
        self._hashes = ChunkHashes()
        file.write(bytes(HEADER_BYTES))

    def _write(self, content: bytes | memoryview) -> None:
        self._file.write(content)
        self._hashes.update(content)

    def tokens(self, ids: npt.NDArray[np.int64]) -> None:
        self._write(ids.astype(self._dtype).data.cast("B"))

    def documents(self, starts: npt.NDArray[np.int64]) -> None:
        self._starts.write(starts.astype("<i8").data.cast("B"))

    def finish(self, header: Header) -> None:
        """Append the document starts and the hashes, write the header and make the file durable."""
        self._write(bytes(documents_offset(header) - self._file.tell()))
        self._starts.seek(0)
        while chunk := self._starts.read(_BUFFER):
            self._write(chunk)
        table = self._hashes.table()
        self._file.write(table)
        if self._file.tell() != file_size(header):
            raise ValueError(f"{self._file.tell()} bytes of tokens written, not {file_size(header)}")
        header["hashes"] = hash_of(table).hex()
        write_header(self._file, header)
        self._file.flush()
        os.fsync(self._file.fileno())


class _Arrays:
    """Tokens and document starts stay in memory."""

    def __init__(self, dtype: np.dtype[np.generic]) -> None:
        self._dtype = dtype
        self.parts: list[npt.NDArray[np.integer]] = []
        self.starts: list[npt.NDArray[np.int64]] = []

    def tokens(self, ids: npt.NDArray[np.int64]) -> None:
        self.parts.append(ids.astype(self._dtype))

    def documents(self, starts: npt.NDArray[np.int64]) -> None:
        self.starts.append(starts)
