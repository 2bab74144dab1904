"""Files that appear whole or not at all.

A reader never sees half a file, and a process killed at any instant leaves either the old content or the new one
(plus, at worst, a temporary file whose name starts with `.tmp-`, which the next writer removes).
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .errors import StorageError

TEMPORARY_PREFIX = ".tmp-"

_REFUSALS = {
    errno.ENOSPC: "no space left on the device",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "the file would be larger than the limit on file size",
    errno.EROFS: "the file system is read-only",
    errno.EACCES: "permission denied",
    errno.EPERM: "operation not permitted",
}


@contextlib.contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turn the file system's refusals inside the block into one line that names `path`.

    Raises:
        StorageError: no space, quota, file size limit, read-only, permission.
    """
    try:
        yield
    except OSError as error:
        reason = _REFUSALS.get(error.errno or 0)
        if reason is None:
            raise
        raise StorageError(f"cannot write {error.filename or path}: {reason}") from error


def temporary_sibling(path: Path) -> Path:
    """A name beside `path`, on the same file system, that no reader takes for a real file."""
    return path.with_name(f"{TEMPORARY_PREFIX}{path.name}-{os.getpid()}-{threading.get_native_id()}")


def sync_directory(path: Path) -> None:
    """Make the names inside a directory durable (a no-op where directories cannot be opened)."""
    if os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomically(path: Path, content: bytes | str) -> None:
    """Write a file so that it appears whole, durable, or not at all. Text is UTF-8 with LF line ends.

    Raises:
        StorageError: the file system refused; the old content, if any, is untouched.
    """
    data = content.encode("utf-8") if isinstance(content, str) else content
    temporary = temporary_sibling(path)
    with storage_errors(path):
        try:
            with open(temporary, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync_directory(path.parent)


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
