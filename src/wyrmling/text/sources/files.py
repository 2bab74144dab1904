"""Finding and opening the files of a source: bytes only, `.gz` transparently, one line for every refusal."""

from __future__ import annotations

import contextlib
import glob
import gzip
import os
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from ...errors import DataError, StorageError, WyrmlingError

CHUNK_BYTES = 1 << 18
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_SHOWN_NAMES = 3


def shown(text: str | os.PathLike[str]) -> str:
    """A path as a person reads it, on one line and the same in every locale: POSIX slashes, file names taken as
    UTF-8, control and undecodable characters escaped.
    """
    name = text if isinstance(text, str) else Path(text).as_posix()
    with contextlib.suppress(UnicodeEncodeError):
        name = os.fsencode(name).decode("utf-8", "surrogateescape")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in name)


def listed(names: Sequence[str]) -> str:
    """The first few names, and how many more there are."""
    more = len(names) - _SHOWN_NAMES
    text = ", ".join(names[:_SHOWN_NAMES])
    return f"{text} and {more} more" if more > 0 else text


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
    """A file of a source and the name it is shown by."""

    path: Path
    name: str

    @property
    def compressed(self) -> bool:
        return self.path.name.lower().endswith(".gz")

    def size(self) -> int:
        return self._stat().st_size

    def signature(self) -> dict[str, Any]:
        """Absolute path, size in bytes, time of the last change in nanoseconds."""
        found = self._stat()
        return {
            "path": shown(os.path.abspath(self.path)),
            "size": found.st_size,
            "mtime_ns": found.st_mtime_ns,
        }

    def _stat(self) -> os.stat_result:
        try:
            return self.path.stat()
        except OSError as error:
            raise refusal(self.name, error) from error

    @contextlib.contextmanager
    def open(self) -> Iterator[BinaryIO]:
        """The file's bytes, unpacked when its name ends in `.gz`; a fault in reading is one line."""
        try:
            with self.path.open("rb") as raw:
                if self.compressed:
                    with gzip.GzipFile(fileobj=raw) as unpacked:
                        yield cast(BinaryIO, unpacked)
                else:
                    yield raw
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            reason = str(error).rstrip(".")
            raise DataError(
                f"{self.name}: damaged or cut short gzip file ({reason}); copy or pack it again"
            ) from error
        except OSError as error:
            raise refusal(self.name, error) from error

    @contextlib.contextmanager
    def open_text(self, marks: list[str], utf16: list[str]) -> Iterator[tuple[BinaryIO, int]]:
        """The stream after a leading UTF-8 byte order mark, if there is one, and the offset at which it
        stands.

        The file's name is appended to `marks` when a mark was there, to `utf16` when it starts like UTF-16.
        """
        with self.open() as stream:
            head = stream.read(len(BYTE_ORDER_MARK))
            if head == BYTE_ORDER_MARK:
                marks.append(self.name)
                yield stream, len(head)
                return
            if head[:2] in (b"\xff\xfe", b"\xfe\xff"):
                utf16.append(self.name)
            stream.seek(0)
            yield stream, 0


def chunks_of(stream: BinaryIO) -> Iterator[bytes]:
    """The rest of a stream in small chunks."""
    while chunk := stream.read(CHUNK_BYTES):
        yield chunk


def find_files(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    key: str = "dataset.path",
    suffixes: tuple[str, ...],
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
            found.setdefault(absolute, InputFile(path, shown(path)))
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
            if name.lower().endswith(suffixes) and not name.startswith(".")
        ]
    if not files:
        raise DataError(f"{key}: no file in {shown(folder)} ends in {', '.join(suffixes)}")
    return sorted(files, key=lambda file: file.relative_to(folder).as_posix())
