"""Sources and tokenizers small enough to see through; also imported by the processes that tests start."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np


@dataclass(frozen=True)
class FakePiece:
    data: Any
    starts_document: bool
    origin: str
    offset: int
    borders: tuple[int, ...] = ()

    def alone(self) -> Iterator[FakePiece]:
        yield self


@dataclass(frozen=True)
class FakeFile:
    name: str


class FakeSource:
    """Documents (bytes or ids) in memory, cut into pieces of `cut` items.

    Args:
        log: a file that gets one line per pass.
        pause: seconds to wait before every piece.
        repeat: give every document so many times.
    """

    kind = "fake"

    def __init__(
        self,
        documents: Sequence[Any],
        *,
        cut: int = 1 << 20,
        name: str = "fake.txt",
        notes: Sequence[str] = (),
        log: Path | None = None,
        pause: float = 0.0,
        repeat: int = 1,
    ) -> None:
        self.documents, self.cut, self._notes = documents, cut, list(notes)
        self.files = (FakeFile(name),)
        self.total_bytes = sum(len(document) for document in documents) * repeat
        self._log, self._pause, self._repeat = log, pause, repeat

    def reading_notes(self, documents: int) -> list[str]:
        return self._notes

    def signature(self) -> dict[str, Any]:
        content = hashlib.sha256(repr([len(document) for document in self.documents]).encode()).hexdigest()
        return {"type": self.kind, "files": [self.files[0].name, content], "repeat": self._repeat}

    def pieces(self) -> Iterator[FakePiece]:
        if self._log is not None:
            with self._log.open("a") as log:
                log.write("pass\n")
        for _ in range(self._repeat):
            for document in self.documents:
                for start in range(0, max(len(document), 1), self.cut):
                    if self._pause:
                        time.sleep(self._pause)
                    part = document[start : start + self.cut]
                    yield FakePiece(part, start == 0, self.files[0].name, start)


class FakeTokenizer:
    """Every byte is its value; `vocab_size` decides the width of the store."""

    def __init__(
        self, vocab_size: int = 256, *, eos_id: int | None = None, unk_id: int | None = None
    ) -> None:
        self.vocab_size, self.eos_id, self.unk_id = vocab_size, eos_id, unk_id
        self.bos_id = self.pad_id = None
        self.kind = "fake"

    def encode(self, text: bytes | str | np.ndarray, *, origin: str = "text", offset: int = 0) -> np.ndarray:
        if isinstance(text, np.ndarray):
            return text.astype(np.int64)
        data = text.encode() if isinstance(text, str) else text
        return np.frombuffer(data, dtype=np.uint8).astype(np.int64)

    def encode_all(self, texts: bytes, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self.encode(texts), np.diff(ends, prepend=0)

    def byte_lengths(self) -> np.ndarray:
        return np.ones(self.vocab_size, dtype=np.int64)

    def fingerprint(self) -> str:
        return f"fake {self.vocab_size} {self.eos_id} {self.unk_id}"
