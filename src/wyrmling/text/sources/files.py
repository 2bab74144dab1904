"""Finding and opening the files of a source: known by what they hold, one line for every refusal."""

from __future__ import annotations

import contextlib
import glob
import io
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from ...errors import DataError, StorageError, WyrmlingError
from .content import HEAD_BYTES, packing_by_name, packing_of, without_packing
from .opening import CHUNK_BYTES, RAW, as_text, unpacked
from .tally import Tally


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
    reason = "permission denied" if isinstance(error, PermissionError) else error.strerror or str(error)
    return StorageError(f"cannot read {name}: {reason}")


@dataclass(frozen=True)
class InputFile:
    """A file of a source, the name it is shown by, and how it is to be read.

    encoding: what its text is written in; "raw": its bytes are taken as they are.
    unpacked_limit: the most bytes that it may unpack to; None: see `unpacked`.
    """

    path: Path
    name: str
    encoding: str = "utf-8"
    unpacked_limit: int | None = None

    @property
    def compressed(self) -> bool:
        """Whether its content is packed (False where it cannot be read: opening it says why)."""
        if self.encoding == RAW:
            return False
        try:
            with self._open_regular() as stream:
                return packing_of(stream.peek(HEAD_BYTES)) is not None
        except (OSError, WyrmlingError):
            return False

    def size(self) -> int:
        """Bytes on disk."""
        return self._stat().st_size

    def signature(self) -> dict[str, Any]:
        """Absolute path, encoding, size in bytes, time of the last change in nanoseconds."""
        found = self._stat()
        return {
            "path": shown(os.path.abspath(self.path)),
            "encoding": self.encoding,
            "size": found.st_size,
            "mtime_ns": found.st_mtime_ns,
        }

    def _stat(self) -> os.stat_result:
        try:
            return self.path.stat()
        except OSError as error:
            raise refusal(self.name, error) from error

    def _open_regular(self) -> io.BufferedReader:
        """The file's own bytes; what is not a regular file is refused and never waited for."""
        found = self._stat()
        if stat.S_ISDIR(found.st_mode):
            raise DataError(f"{self.name}: is a folder, a file is needed")
        if not stat.S_ISREG(found.st_mode):
            raise DataError(
                f"{self.name}: is {kind_of(found)}, not a file; save what it gives to a file first"
            )
        return io.BufferedReader(io.FileIO(self.path, "rb", opener=_without_waiting), CHUNK_BYTES)

    @contextlib.contextmanager
    def open(self) -> Iterator[io.BufferedReader]:
        """The file's content, unpacked but not decoded; it can be sought in where it is not packed.

        Raises:
            DataError: missing, no regular file, damaged or cut short, not packed in the way its name says.
            StorageError: the system refuses.
        """
        try:
            with self._open_regular() as stream:
                if self.encoding == RAW:
                    yield stream
                    return
                size = self.size()
                head = stream.peek(HEAD_BYTES)
                promised = packing_by_name(self.path.name)
                if promised and head and packing_of(head) is None:
                    raise DataError(
                        f"{self.name}: is no {promised} file, though its name says so: fetch it again, or rename it"
                    )
                if head and not size:
                    raise DataError(
                        f"{self.name}: is made while it is read (as files in /proc); copy it first"
                    )
                yield unpacked(stream, self.name, size=size, limit=self.unpacked_limit)
        except OSError as error:
            raise refusal(self.name, error) from error

    @contextlib.contextmanager
    def open_text(self, tally: Tally, *, strict: bool = True) -> Iterator[tuple[BinaryIO, int]]:
        """The file's text as a stream of UTF-8 and the offset at which it stands, see `as_text`.

        Raises:
            DataError: as `open`; no plain text; bytes that are not in the file's encoding, where `strict`.
        """
        with self.open() as stream:
            yield as_text(stream, self.name, self.encoding, tally, strict=strict)


def kind_of(found: os.stat_result) -> str:
    """What that is no regular file is, with its article."""
    kinds = {
        stat.S_IFIFO: "a pipe",
        stat.S_IFSOCK: "a socket",
        stat.S_IFCHR: "a device",
        stat.S_IFBLK: "a device",
        stat.S_IFDIR: "a folder",
    }
    return kinds.get(stat.S_IFMT(found.st_mode), "something special")


def _without_waiting(path: str, flags: int) -> int:
    """Open as `open` does, at once: also where a pipe has taken the place of the file."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def reading_options(config: Any) -> dict[str, Any]:
    """The keys of a table that say how its files of text are read, as `find_files` and `InputFile` take them."""
    limit = getattr(config, "max_unpacked_mb", None)
    return {
        "encoding": getattr(config, "encoding", "utf-8"),
        "unpacked_limit": None if limit is None else limit << 20,
    }


def chunks_of(stream: BinaryIO) -> Iterator[bytes]:
    """The rest of a stream in small chunks."""
    while chunk := stream.read(CHUNK_BYTES):
        yield chunk


def find_files(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    key: str = "dataset.path",
    suffixes: tuple[str, ...],
    encoding: str = "utf-8",
    unpacked_limit: int | None = None,
) -> tuple[list[InputFile], list[str]]:
    """The files that a `path` setting stands for, in an order that no operating system or locale decides.

    Each entry is a file, a folder (searched for names ending in `suffixes`, in any case, hidden ones left
    out; refused when there are none), or a glob (`**` is recursive). Entries keep their order; the files of
    a folder or glob are sorted by their POSIX path. A file found twice is read once.

    Returns:
        The files and notes about them.

    Raises:
        DataError: nothing is there, or nothing fits.
        StorageError: a folder cannot be searched.
    """
    entries = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    if not entries:
        raise DataError(f"{key}: no file is named")
    found: dict[str, InputFile] = {}
    repeated = 0
    for entry in entries:
        for path in _expand(os.path.expanduser(os.fspath(entry)), key, suffixes):
            absolute = os.path.abspath(path)
            repeated += absolute in found
            found.setdefault(absolute, InputFile(path, shown(path), encoding, unpacked_limit))
    notes = [f"{repeated} files named more than once in {key} are read once"] if repeated else []
    return list(found.values()), notes


def _expand(entry: str, key: str, suffixes: tuple[str, ...]) -> list[Path]:
    if not entry:
        raise DataError(f"{key}: an empty string names no file")
    path = Path(entry)
    try:
        if path.is_file():
            return [path]
        if path.is_dir():
            return _folder(path, key, suffixes)
        if path.exists():
            raise DataError(f"{key}: {shown(entry)} is neither a file nor a folder")
    except (OSError, ValueError) as error:
        if isinstance(error, OSError):
            raise refusal(shown(entry), error) from error
        raise DataError(f"{key}: {shown(entry)} is not a path ({error})") from error
    if not glob.has_magic(entry):
        raise DataError(f"{key}: {shown(entry)}: no such file or folder")
    matches = [Path(match) for match in glob.glob(entry, recursive=True)]
    files = sorted((match for match in matches if match.is_file()), key=Path.as_posix)
    if not files:
        raise DataError(f"{key}: no file matches {shown(entry)}")
    return files


def _folder(folder: Path, key: str, suffixes: tuple[str, ...]) -> list[Path]:
    def refuse(error: OSError) -> None:
        raise refusal(shown(error.filename or folder), error) from error

    files: list[Path] = []
    for directory, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]
        files += [
            Path(directory, name)
            for name in names
            if without_packing(name).endswith(suffixes) and not name.startswith(".")
        ]
    if not files:
        raise DataError(f"{key}: no file in {shown(folder)} ends in {', '.join(suffixes)}")
    return sorted(files, key=lambda file: file.relative_to(folder).as_posix())
