"""Token files are built once, whole or not at all, by one process while others wait and then read what it made.

Building takes one pass over the source in bounded memory, into a temporary file that gets its real name when it is
complete and durable.
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from ..errors import DataError
from ..files import TEMPORARY_PREFIX, hold_lock, make_folder, publish, storage_errors, temporary_sibling
from ..text.sources import Piece, Source
from ..text.tokenizers import Tokenizer
from .encoding import Encoder, Progress, Tell
from .format import (
    HEADER_BYTES,
    ChunkHashes,
    Header,
    documents_offset,
    file_size,
    hash_of,
    token_dtype,
    write_header,
)
from .known_files import digest_of
from .store import TokenStore, open_store, set_aside

_BUFFER = 1 << 20
_PATIENCE_SECONDS = 2.0


def refuse_changed(source: Source, signature: Any, identify: Callable[[Source], Any]) -> None:
    """Raises DataError where the files of a source are others than when `identify` gave `signature`."""
    if identify(source) != signature:
        raise DataError(
            f"{source_names(source)}: changed while it was read; run again when nothing writes to it"
        )


def build_store(
    path: Path,
    source: Source,
    tokenizer: Tokenizer,
    *,
    identify: Callable[[Source], str] = lambda source: digest_of(source.signature()),
    reason: str = "",
    progress: Progress | None = None,
    tell: Tell | None = None,
) -> TokenStore:
    """The token file at `path`: opened if it is good and holds this source by this tokenizer, else built.

    A second process that asks for the same path waits for the first and opens what it built. A file that is
    damaged or holds something else is built anew; the store's notes say so.

    Args:
        identify: what is the same for sources that give the same text.
        reason: why there may be no file although there was one, for the notes.

    Raises:
        DataError: the source holds no text or ids, something in it cannot be encoded, or it changes meanwhile.
        StorageError: the file system refused.
    """
    signature = identify(source)
    with contextlib.suppress(_Unusable):
        return _open_fitting(path, source, signature, tokenizer)
    with locked(path, tell):
        try:
            return _open_fitting(path, source, signature, tokenizer)
        except _Unusable as error:
            reason = str(error) or reason
        if path.exists() and not path.is_file():
            set_aside(path)

        def check() -> None:
            refuse_changed(source, signature, identify)

        _write_store(path, source, tokenizer, signature, check, progress)
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


def source_names(source: Source) -> str:
    """The files of a source, on one line, for errors: at most two names and how many more there are."""
    names = [file.name for file in source.files]
    if len(names) > 2:
        return f"{names[0]}, {names[1]} and {len(names) - 2} more"
    return ", ".join(names) or source.kind


class _Unusable(Exception):
    """The file is absent (no text) or must be built anew (the text says why)."""


def _open_fitting(path: Path, source: Source, signature: str, tokenizer: Tokenizer) -> TokenStore:
    if not path.exists():
        raise _Unusable("")
    try:
        store = open_store(path)
    except DataError as error:
        raise _Unusable(str(error).partition(": delete")[0]) from error
    if store.header["fingerprint_tokenizer"] != tokenizer.fingerprint():
        raise _Unusable(f"{path} was made by another tokenizer")
    if store.header["source"] != signature:
        raise _Unusable(f"{path} was made from another source")
    if not set(store.header["named"].values()) <= set(range(len(source.files))):
        raise _Unusable(f"{path} speaks of other files")
    for name, number in store.header["named"].items():  # the same text may have been read under other names
        here = re.compile(rf"(?<![\w./-]){re.escape(name)}(?![\w-])")
        now = source.files[number].name.replace("\\", r"\\")
        store.notes[:] = [here.sub(now, note) for note in store.notes]
    return store


def _write_store(
    path: Path,
    source: Source,
    tokenizer: Tokenizer,
    signature: str,
    check: Callable[[], None],
    progress: Progress | None,
) -> None:
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
            check()
            header = _header(encoder, tokenizer, signature, source.reading_notes(encoder.documents))
            header["named"] = {
                file.name: number
                for number, file in enumerate(source.files)
                if any(file.name in note for note in header["notes"])
            }
            sink.finish(header)
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
        named={},
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
