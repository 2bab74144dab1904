"""Files that have not changed since they were hashed are known by what the system says of them; others are hashed.

So tokens, and vocabularies that were learned, are found again by what is in the files they were made from: a copy, a
link, another mode or time costs a hash and no new pass of the tokenizer, and a change is found whatever was done to
the file's times. The records are `<cache>/files/<hash of a folder>.json`, one for each folder with such files.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import StorageError
from ..files import read_record, sealed, write_json_atomically
from ..text.sources import Source
from ..text.sources.files import InputFile, shown
from .encoding import Progress

GRAIN_NS = 2_000_000_000
"""The coarsest times that file systems keep: a file that changed so shortly before it was hashed may have changed
again since, at what is the same time to them."""

State = list[int]
"""Device, inode, size, and times of the last change of content and of anything, in nanoseconds."""


@dataclass
class KnownFiles:
    """The SHA-256 of files, hashed at most once by this object and, where that is safe, never again.

    Attributes:
        folder: of the records; they cannot be written where the cache cannot, and that is no error.
        progress: told of bytes hashed and of bytes to hash.
        changed: names of files that held something else when they were hashed last.
    """

    folder: Path
    progress: Progress | None = None
    changed: list[str] = field(default_factory=list)
    _hashed: dict[str, tuple[State, str]] = field(default_factory=dict)

    def signature(self, source: Source) -> str:
        """What identifies the text of a source: SHA-256 over its settings and what is in its files.

        Raises:
            DataError, StorageError: a file cannot be read.
        """
        return digest_of(source.signature(self._digests(source.files)))

    def _digests(self, files: Sequence[InputFile]) -> list[str]:
        paths = [os.path.abspath(file.path) for file in files]
        states = [file.state() for file in files]
        records: dict[str, dict[str, Any]] = {}
        unknown = []
        for file, path, state in zip(files, paths, states, strict=True):
            if self._hashed.get(path, (None, ""))[0] == state:
                continue
            folder, name = (shown(part) for part in os.path.split(path))
            if folder not in records:
                records[folder] = self._read(folder)
            known = records[folder].get(name, {})
            if known.get("state") == state and max(state[3:]) + GRAIN_NS < known["hashed_ns"]:
                self._hashed[path] = state, known["sha256"]
            else:
                unknown.append((file, path, folder, name, state))
        done, total = 0, sum(state[2] for *_, state in unknown)
        for file, path, folder, name, state in unknown:
            begun, hashed = time.time_ns(), hashlib.sha256()
            for chunk in file.chunks():
                hashed.update(chunk)
                done += len(chunk)
                if self.progress is not None:
                    self.progress(min(done, total), total)
            digest = hashed.hexdigest()
            if records[folder].get(name, {}).get("sha256", digest) != digest:
                self.changed.append(file.name)
            self._hashed[path] = state, digest
            records[folder][name] = {"state": state, "hashed_ns": begun, "sha256": digest}
        for folder in {folder for _, _, folder, *_ in unknown}:
            self._write(folder, records[folder])
        return [self._hashed[path][1] for path in paths]

    def _place(self, folder: str) -> Path:
        return self.folder / f"{digest_of(folder)[:32]}.json"

    def _read(self, folder: str) -> dict[str, Any]:
        """What is known of a folder's files; what cannot be read, or is no such record, is nothing."""
        with contextlib.suppress(OSError, ValueError):
            record = read_record(self._place(folder), must_be_sealed=True)
            if record.get("folder") == folder:
                return dict(record["files"])
        return {}

    def _write(self, folder: str, files: dict[str, Any]) -> None:
        with contextlib.suppress(OSError, StorageError):
            self.folder.mkdir(parents=True, exist_ok=True)
            write_json_atomically(self._place(folder), sealed({"folder": folder, "files": files}))


def digest_of(value: object) -> str:
    """SHA-256 of a JSON value, hexadecimal; keys in any order."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()
