"""The standard streams of the command: closed, full, of any encoding, or gone while it runs.

Results go to standard output through `say` and `say_json`: where they cannot be written, that is an error. Everything
else goes to standard error, through `note` or a `PatientStream`: a pipe whose reader has left, a lost terminal or a log
on a full disk must not end a run. A character that a stream's encoding does not have is written as an escape.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import json
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO

_ESCAPE = "wyrmling-escape"


def prepare_standard_streams() -> None:
    """Make the streams of this process fit for use; the command calls it before anything else.

    A number from 0 to 2 that is closed would be given to the next file that is opened, and what is printed would end
    up in it: it is taken by a null device, which refuses to be written in the place of standard output.
    """
    for number, mode in ((0, os.O_RDONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, mode)  # takes the lowest number that is free
    sys.stdout = sys.stdout or open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    codecs.register_error(_ESCAPE, _escape)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_ESCAPE)


def _escape(error: UnicodeError) -> tuple[str, int]:
    """Characters as `\\u00e9` or `\\U0001f409`: as TOML and Python write them, and JSON up to U+FFFF."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    codes = map(ord, error.object[error.start : error.end])
    return "".join(f"\\U{code:08x}" if code > 0xFFFF else f"\\u{code:04x}" for code in codes), error.end


def say(text: str, end: str = "\n") -> None:
    """Write a result to standard output."""
    print(text, end=end)


def say_json(value: Any, indent: int | None = None) -> None:
    """Write a result as JSON that every reader takes: in ASCII, and null for a number that is not finite."""
    finite = json.loads(json.dumps(value), parse_constant=lambda _: None)
    say(json.dumps(finite, indent=indent))


def note(text: str) -> None:
    """Write a line about the work to standard error, if anybody can read it."""
    with contextlib.suppress(OSError, ValueError):
        print(text, file=sys.stderr, flush=True)


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
