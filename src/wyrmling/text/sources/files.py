"""The files of a source: named as a person reads it, opened by what they hold, one line for every refusal."""

from __future__ import annotations

import contextlib
import errno
import filecmp
import io
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from ...errors import DataError, StorageError, WyrmlingError
from .content import HEAD_BYTES, compression_by_name, compression_of, looks_like_text
from .opening import CHUNK_BYTES, RAW, as_text, decompressed
from .tally import Tally

_MARK_BYTES = 64


def shown(text: str | os.PathLike[str]) -> str:
    """A path as a person reads it, on one line and the same in every locale: POSIX slashes, file names taken as
    UTF-8, control and undecodable characters escaped.
    """
    name = text if isinstance(text, str) else Path(text).as_posix()
    with contextlib.suppress(UnicodeEncodeError):
        name = os.fsencode(name).decode("utf-8", "surrogateescape")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in name)


def refusal(name: str, error: OSError) -> WyrmlingError:
    """The error, for people, that stands for what the file system said about a file that is read."""
    if isinstance(error, FileNotFoundError):
        return DataError(f"{name}: no such file")
    if isinstance(error, IsADirectoryError):
        return DataError(f"{name}: is a folder, a file is needed")
    if error.errno in (errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG):
        return DataError(f"{name}: is no path to a file ({error.strerror})")
    reason = "permission denied" if isinstance(error, PermissionError) else error.strerror or str(error)
    return StorageError(f"cannot read {name}: {reason}")


@dataclass(frozen=True)
class InputFile:
    """A file of a source, the name it is shown by, and how it is to be read.

    encoding: what its text is written in; "raw": its bytes are taken as they are.
    decompressed_limit: the most bytes that it may decompress to; None: see `decompressed`.
    """

    path: Path
    name: str
    encoding: str = "utf-8"
    decompressed_limit: int | None = None

    @property
    def compressed(self) -> bool:
        """Whether its content is compressed (False where it cannot be read: opening it says why)."""
        if self.encoding == RAW:
            return False
        try:
            with self._open_regular(_MARK_BYTES) as stream:
                return compression_of(stream.peek()) is not None
        except (OSError, WyrmlingError):
            return False

    def size(self) -> int:
        """Bytes on disk."""
        return self._stat().st_size

    def identity(self) -> tuple[int, int] | str:
        """What is the same for all names of one file: device and inode, its path where there are none."""
        return identity_of(self._stat(), self.path)

    def state(self) -> list[int]:
        """What the system says of it that changes when it does: device, inode, size, and the times of the last change
        of its content and of anything, in nanoseconds.
        """
        found = self._stat()
        return [found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns]

    def chunks(self) -> Iterator[bytes]:
        """Its bytes as they lie on disk.

        Raises:
            DataError, StorageError: as `open`.
        """
        try:
            with self._open_regular() as stream:
                yield from chunks_of(stream)
        except OSError as error:
            raise refusal(self.name, error) from error

    def _stat(self) -> os.stat_result:
        try:
            return self.path.stat()
        except OSError as error:
            raise refusal(self.name, error) from error

    def _open_regular(self, at_once: int = CHUNK_BYTES) -> io.BufferedReader:
        """The file's own bytes; what is not a regular file is refused and never waited for."""
        found = self._stat()
        if stat.S_ISDIR(found.st_mode):
            raise DataError(f"{self.name}: is a folder, a file is needed")
        if not stat.S_ISREG(found.st_mode):
            raise DataError(
                f"{self.name}: is {kind_of(found)}, not a file; save what it gives to a file first"
            )
        return io.BufferedReader(io.FileIO(self.path, "rb", opener=_without_waiting), at_once)

    @contextlib.contextmanager
    def open(self) -> Iterator[io.BufferedReader]:
        """The file's content, decompressed but not decoded; it can be sought in where it is not compressed.

        Raises:
            DataError: missing, no regular file, damaged or cut short, not compressed in the way its name says.
            StorageError: the system refuses.
        """
        try:
            with self._open_regular() as stream:
                if self.encoding == RAW:
                    yield stream
                    return
                size = self.size()
                head = stream.peek(HEAD_BYTES)
                promised = compression_by_name(self.path.name)
                if promised and head and compression_of(head) is None:
                    raise DataError(
                        f"{self.name}: is no {promised} file, though its name says so: fetch it again, or rename it"
                    )
                if head and not size:
                    raise DataError(
                        f"{self.name}: is made while it is read (as files in /proc); copy it first"
                    )
                yield decompressed(stream, self.name, size=size, limit=self.decompressed_limit)
        except OSError as error:
            raise refusal(self.name, error) from error

    def is_text(self) -> bool:
        """Whether it may be plain text, by its beginning.

        Raises:
            DataError, StorageError: as `open`.
        """
        with self.open() as stream:
            return looks_like_text(stream.peek(HEAD_BYTES)[:HEAD_BYTES])

    @contextlib.contextmanager
    def open_text(self, tally: Tally, *, strict: bool = True) -> Iterator[tuple[BinaryIO, int]]:
        """The file's text as a stream of UTF-8 and the offset at which it stands, see `as_text`.

        Raises:
            DataError: as `open`; no plain text; bytes that are not in the file's encoding, where `strict`.
        """
        with self.open() as stream:
            yield as_text(stream, self.name, self.encoding, tally, strict=strict)


def shared_file(
    files: Sequence[InputFile], others: Sequence[InputFile]
) -> tuple[InputFile, InputFile] | None:
    """A file that stands on both sides: under whatever name, or as a copy that is the same byte for byte."""
    by_identity = {file.identity(): file for file in files}
    by_size: dict[int, list[InputFile]] = {}
    for file in files:
        by_size.setdefault(file.size(), []).append(file)
    for other in others:
        if other.identity() in by_identity:
            return by_identity[other.identity()], other
        for file in by_size.get(other.size(), []):
            try:
                same = other.size() > 0 and filecmp.cmp(file.path, other.path, shallow=False)
            except OSError as error:
                raise refusal(other.name, error) from error
            if same:
                return file, other
    return None


def identity_of(found: os.stat_result, path: Path) -> tuple[int, int] | str:
    """What is the same for all names of one file or folder: device and inode, its path where there are none."""
    return (found.st_dev, found.st_ino) if found.st_ino else os.path.abspath(path)


def kind_of(found: os.stat_result) -> str:
    """What that is no regular file is, with its article."""
    kinds = {
        stat.S_IFIFO: "a pipe",
        stat.S_IFSOCK: "a socket",
        stat.S_IFCHR: "a device",
        stat.S_IFBLK: "a device",
    }
    return kinds.get(stat.S_IFMT(found.st_mode), "a special file")


def _without_waiting(path: str, flags: int) -> int:
    """Open as `open` does, at once: also where a pipe has taken the place of the file."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def reading_options(config: Any) -> dict[str, Any]:
    """The keys of a table that say how its files of text are read, as `InputFile` and `find_files` take them."""
    limit = getattr(config, "max_decompressed_mb", None)
    return {
        "encoding": getattr(config, "encoding", "utf-8"),
        "decompressed_limit": None if limit is None else limit << 20,
    }


def chunks_of(stream: BinaryIO) -> Iterator[bytes]:
    """The rest of a stream in small chunks."""
    while chunk := stream.read(CHUNK_BYTES):
        yield chunk
