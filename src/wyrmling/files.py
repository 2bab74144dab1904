"""Files that appear whole or not at all.

A reader never sees half a file, and a process killed at any instant leaves either the old content or the new one
(plus, at worst, a temporary file whose name starts with `.tmp-`, which the next writer removes).
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import math
import os
import re
import shutil
import stat
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import StorageError

if TYPE_CHECKING:
    from pydantic import BaseModel

TEMPORARY_PREFIX = ".tmp-"
SEAL = "sha256"
"""The key of a sealed record that holds the SHA-256 of all others."""

_LONGEST_NAME = 4096
_LARGEST_RECORD = 256 << 20  # bytes of a JSON record; the largest that the program writes are manifests

_REASONS = {
    errno.ENOSPC: "no space left on the device",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "the file would be larger than the limit on file size",
    errno.EROFS: "the file system is read-only",
    errno.EACCES: "permission denied",
    errno.EPERM: "operation not permitted",
    errno.ENOENT: "there is no such folder, or it was removed meanwhile",
    errno.ENOTDIR: "a part of the path is not a folder",
    errno.EISDIR: "it is a folder",
    errno.ELOOP: "its symbolic links go in a circle",
    errno.ENAMETOOLONG: "the name is too long",
    errno.EBADF: "it is closed",
    errno.ENXIO: "nobody reads from it",
    errno.EXDEV: "the file system cannot rename it there",
}
_NOT_A_FOLDER = (errno.EEXIST, errno.ENOTDIR, errno.ELOOP)
_NO_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EACCES, errno.EPERM)
TEMPORARY_NAME = re.compile(rf"{re.escape(TEMPORARY_PREFIX)}(.+)-\d+-\d+")


@contextlib.contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turn what the file system refuses inside the block into one line that names `path`, or the part of it to blame.

    Raises:
        StorageError: no space, quota, read-only, permission, a place that is no folder or is gone, a failing device.
    """
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        named = error.filename if isinstance(error.filename, str) else str(path)
        place = TEMPORARY_NAME.sub(
            r"\1", named
        )  # what is being written is known by the name that it will have
        raise StorageError(f"cannot write {place}: {refusal(error)}") from error


def refusal(error: OSError) -> str:
    """Why the file system refused, in words."""
    return _REASONS.get(error.errno or 0) or os.strerror(error.errno or 0).lower()


def make_folder(path: Path, remedy: str = "choose another place") -> None:
    """Make a folder, and those around it, where they are missing.

    Raises:
        StorageError: something else has the name of one of them, or the file system refused.
    """
    with storage_errors(path):
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            if error.errno not in _NOT_A_FOLDER:
                raise
            blocking = next((place for place in (path, *path.parents) if os.path.lexists(place)), path)
            raise StorageError(f"{blocking} is not a folder and none can be made there; {remedy}") from error


@contextlib.contextmanager
def hold_lock(path: Path, busy: Callable[[str], None], patience: float = 0.0) -> Iterator[None]:
    """Hold a lock file; it goes with the process, however that ends.

    Args:
        busy: told who holds it where that is another one, for longer than `patience` seconds; if it raises nothing,
            the lock is waited for.

    Raises:
        StorageError: the file system refused.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(str(path))
    with storage_errors(path):
        try:
            lock.acquire(timeout=patience)
        except Timeout:
            busy(_holder(path))
            lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _holder(path: Path) -> str:
    """Who holds a lock file, with its number where the system tells (Linux)."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        status = path.stat()
        place = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
        for line in Path("/proc/locks").read_text(encoding="ascii").splitlines():
            _, kind, _, _, process, where = line.split()[
                :6
            ]  # one that waits has "->" in the place of the kind
            if (kind, where) == ("FLOCK", place) and int(process) > 0:
                return f"process {process}"
    return "another process"


def move_folder(source: Path, target: Path) -> None:
    """Rename a folder. Where the two names cannot be on one file system it is copied whole, then removed.

    (A folder that came with the image of a container lies in a layer of its own, and cannot be renamed, as if it lay
    on another device.)
    """
    try:
        os.replace(source, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        temporary = temporary_sibling(target)
        shutil.copytree(source, temporary)
        os.replace(temporary, target)
        shutil.rmtree(source)


def temporary_sibling(path: Path) -> Path:
    """A name beside `path`, on the same file system, that no reader takes for a real file."""
    return path.with_name(f"{TEMPORARY_PREFIX}{path.name}-{os.getpid()}-{threading.get_native_id()}")


def sync_directory(path: Path) -> None:
    """Make the names inside a directory durable (a no-op where directories cannot be opened or made so)."""
    if os.name == "nt":
        return
    try:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise


def write_atomically(path: Path, content: bytes | str) -> None:
    """Write a file so that it appears whole, durable, or not at all. Text is UTF-8 with LF line ends.

    A symbolic link keeps leading where it leads, to the new content. What exists and is no regular file (a device,
    a pipe) cannot be replaced, and is written as it is.

    Raises:
        StorageError: the file system refused; the old content, if any, is untouched.
    """
    # a name that is not UTF-8 is kept in pairs of a text that has no UTF-8 form: what holds one is told by escapes
    data = content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content
    with storage_errors(path):
        path = Path(os.path.realpath(path)) if path.is_symlink() else path
        if path.is_symlink():  # the path that it leads to is itself
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
        if path.is_dir():
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if path.exists() and not path.is_file():
            # not waiting for somebody who reads a pipe: that there is none is an error (ENXIO)
            descriptor = os.open(path, os.O_WRONLY | getattr(os, "O_NONBLOCK", 0))
            with open(descriptor, "wb") as device:
                os.set_blocking(descriptor, True)
                device.write(data)
            return
        temporary = temporary_sibling(path)
        try:
            with open(temporary, "wb") as file:
                if path.exists() and os.name != "nt":  # what was private stays so
                    os.fchmod(file.fileno(), stat.S_IMODE(path.stat().st_mode))
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync_directory(path.parent)


def write_name(path: Path, name: str) -> None:
    """Let a tiny text file name something; a pipe or a device that has come into its place gives way.

    Raises:
        StorageError: the file system refused; the file keeps its old content.
    """
    if path.exists() and not path.is_file() and not path.is_dir():
        with storage_errors(path):
            path.unlink()
    write_atomically(path, name + "\n")


def read_name(path: Path) -> str | None:
    """What `write_name` wrote; None where there is no such file, or it holds what cannot be a name."""
    try:
        return read_regular(path, largest=_LONGEST_NAME).decode("utf-8").strip() or None
    except (OSError, ValueError):
        return None


def write_json_atomically(path: Path, value: Any) -> None:
    """`write_atomically` for a JSON document, indented, keys in the order given."""
    write_atomically(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def publish(temporary: Path, final: Path) -> None:
    """Rename a finished temporary file or directory to its real name and make the name durable."""
    with storage_errors(final):
        os.replace(temporary, final)
        sync_directory(final.parent)


def remove_leftovers(directory: Path) -> list[str]:
    """Remove what killed writers left behind in `directory`; return the names removed."""
    removed = []
    for entry in sorted(directory.glob(f"{TEMPORARY_PREFIX}*")):
        if entry.is_dir():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)
        removed.append(entry.name)
    return removed


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's content, hexadecimal, read in bounded memory."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_regular(path: Path, largest: int = _LARGEST_RECORD) -> bytes:
    """The content of a small file, without waiting at one that is none (a pipe, a device).

    Raises:
        OSError: it cannot be opened or read.
        ValueError: not a regular file, or larger than `largest` bytes.
    """
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):
        raise ValueError("it is not a regular file")
    if status.st_size > largest:
        raise ValueError(f"it has {status.st_size:,} bytes, and {largest:,} are the most that can be meant")
    return path.read_bytes()


def read_record(
    path: Path, shape: type[BaseModel] | None = None, *, must_be_sealed: bool = False
) -> dict[str, Any]:
    """The JSON object in a file, as strict as those who write one are: UTF-8, no key twice, no NaN.

    A record that was sealed (see `sealed`) is compared with its seal, which is left out of what is returned.

    Args:
        shape: what its keys hold; keys that the shape does not know pass.
        must_be_sealed: a record without a seal is a damaged one, and not one of an earlier version.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: what is wrong, as the rest of a line that names the file: not a regular file, not such JSON,
            changed since it was sealed, a key that is missing or holds something else.
    """
    try:
        record = json.loads(
            read_regular(path).decode("utf-8"),
            object_pairs_hook=_without_repeats,
            parse_constant=_finite,
            parse_float=_finite,
        )
    except FileNotFoundError:
        raise
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8 text") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not JSON ({error})") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except OSError as error:
        raise ValueError(f"it cannot be read ({error.strerror or error})") from None
    if not isinstance(record, dict):
        raise ValueError("it is not a JSON object")
    seal = record.pop(SEAL, None)
    if seal != (None if seal is None and not must_be_sealed else _digest(record)):
        raise ValueError("its content does not match its own hash, so it was changed after it was written")
    if shape is not None:
        check_shape(record, shape)
    return record


def check_shape(record: Mapping[str, Any], shape: type[BaseModel]) -> None:
    """Compare a JSON object with a shape, strictly: a text is no number, nor is a truth value one.

    Raises:
        ValueError: the key and what is wrong with it, as the rest of a line that names the file.
    """
    from pydantic import ValidationError

    try:
        shape.model_validate_json(json.dumps(record), strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in first["loc"])
        told = first["msg"].removeprefix("Input ").lower()
        value = "" if first["type"] == "missing" else f", and is {first['input']!r}"
        raise ValueError(f"{key} {told}{value[:80]}") from None


def sealed(record: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON object with the SHA-256 of its content as its last entry, however it is written out later."""
    return {**record, SEAL: _digest(record)}


def _digest(record: Mapping[str, Any]) -> str:
    canonical = json.dumps(record, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(canonical.encode("utf-8", errors="surrogatepass")).hexdigest()


def _without_repeats(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    record: dict[str, Any] = {}
    for key, value in pairs:
        if key in record:
            raise ValueError(f"it has the key {key[:80]!r} twice")
        record[key] = value
    return record


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"it holds {text[:40]}, which is not a finite number")
    return number
