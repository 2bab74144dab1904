"""Output that may go away: a pipe whose reader has left, or a log on a full disk, must not end a run."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import TextIO


class PatientStream:
    """A text stream that falls silent (`gone`) when it can no longer be written, instead of raising.

    Characters that the stream's encoding cannot hold are written as escapes.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.gone = False

    @property
    def encoding(self) -> str:
        return getattr(self._stream, "encoding", None) or "utf-8"

    def isatty(self) -> bool:
        try:
            return self._stream.isatty()
        except (ValueError, AttributeError):
            return False

    def fileno(self) -> int:
        return self._stream.fileno()

    def write(self, text: str) -> int:
        if not self.gone:
            with self._giving_up():
                self._stream.write(text.encode(self.encoding, "backslashreplace").decode(self.encoding))
        return len(text)

    def flush(self) -> None:
        if not self.gone:
            with self._giving_up():
                self._stream.flush()

    @contextlib.contextmanager
    def _giving_up(self) -> Iterator[None]:
        try:
            yield
        except OSError:
            self.gone = True
            silence(self._stream)
        except ValueError:
            if not self._stream.closed:
                raise
            self.gone = True


def silence(stream: TextIO) -> None:
    """Send what is left in a standard stream's buffer nowhere, so that closing it at exit does not fail."""
    if stream not in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        return
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
