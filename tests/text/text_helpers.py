"""Small makers shared by the tests of text: configuration tables as plain values, pieces, one-line errors."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from wyrmling.errors import UserError, WyrmlingError
from wyrmling.text.sources import Piece, Source, open_source

READING = {"encoding": "utf-8", "max_decompressed_mb": None, "suffixes": None}
"""How files are read unless a test says otherwise."""


def local(path: Any, **keys: Any) -> SimpleNamespace:
    defaults = {"type": "local_text", "documents": "file", "invalid_utf8": "error", **READING}
    return SimpleNamespace(**{**defaults, "path": path, **keys})


def records(kind: str, path: Any, **keys: Any) -> SimpleNamespace:
    defaults = {
        "field": "text",
        "template": None,
        "sequence_field": None,
        "on_error": "error",
        "max_records": None,
        "delimiter": None,
        "quote": '"',
        "header": True,
        **READING,
    }
    return SimpleNamespace(**{"type": kind, **defaults, "path": path, **keys})


def opened(table: SimpleNamespace, cache: Path = Path("unused")) -> Source:
    return open_source(table, cache_dir=cache)


def documents(source: Source) -> list[Any]:
    """The documents of one pass, put together from their pieces."""
    found: list[Any] = []
    for piece in pieces_alone(source):
        if piece.starts_document:
            found.append(piece.data)
        elif isinstance(piece.data, bytes):
            found[-1] += piece.data
        else:
            found[-1] = [*found[-1], *piece.data]
    return found


def pieces_alone(source: Source) -> list[Piece]:
    """The pieces of one pass, of a single document each."""
    return [part for piece in source.pieces() for part in piece.alone()]


def text_pieces(*texts: bytes | str) -> Callable[[], Iterator[Piece]]:
    """Each text as a document of one piece."""
    data = [text.encode("utf-8") if isinstance(text, str) else text for text in texts]
    return lambda: iter([Piece(one, True, f"document {index}", 0) for index, one in enumerate(data)])


@contextlib.contextmanager
def refused(*words: str, kind: type[WyrmlingError] = UserError) -> Iterator[None]:
    """The block raises an error for people: one line, with all of the words in it."""
    with pytest.raises(kind) as caught:
        yield
    message = str(caught.value)
    assert "\n" not in message
    assert message.isprintable()
    for word in words:
        assert word in message, f"{word!r} is not in: {message}"
