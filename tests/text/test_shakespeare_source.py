"""Tiny Shakespeare: downloaded once, checked, never half there, and by hand where there is no network."""

from __future__ import annotations

import hashlib
import io
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import BinaryIO
from urllib.error import URLError

import pytest
from text_helpers import documents, refused

from wyrmling.errors import ConfigError, DataError, StorageError
from wyrmling.text.sources import open_source, shakespeare
from wyrmling.text.sources.shakespeare import cached_name, open_shakespeare

TEXT = b"First Citizen:\nBefore we proceed any further, hear me speak.\n" * 40


def table(url: str = shakespeare.URL) -> SimpleNamespace:
    return SimpleNamespace(type="shakespeare", url=url)


def giving(content: bytes) -> Callable[[str], BinaryIO]:
    return lambda url: io.BytesIO(content)


@pytest.fixture
def expects_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shakespeare, "SHA256", hashlib.sha256(TEXT).hexdigest())
    monkeypatch.setattr(shakespeare, "SIZE", len(TEXT))


@pytest.mark.usefixtures("expects_text")
def test_the_file_is_downloaded_once_and_checked(tmp_path: Path) -> None:
    cache = tmp_path / "new" / "cache"
    asked: list[str] = []

    def opener(url: str) -> BinaryIO:
        asked.append(url)
        return io.BytesIO(TEXT)

    for _ in range(2):
        source = open_shakespeare(table(), cache_dir=cache, opener=opener)
        assert documents(source) == [TEXT]
        assert source.notes == []
    assert asked == [shakespeare.URL]
    assert [file.name for file in cache.iterdir()] == ["tinyshakespeare.txt"]


@pytest.mark.parametrize("content", [b"", b"<html>404</html>", TEXT[:-1], TEXT + b"!", TEXT * 3000])
@pytest.mark.usefixtures("expects_text")
def test_other_content_is_refused_and_leaves_nothing(tmp_path: Path, content: bytes) -> None:
    with refused("other content", "put the file at", str(tmp_path), kind=DataError):
        open_shakespeare(table(), cache_dir=tmp_path, opener=giving(content))
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_file_in_the_cache_is_refused_not_trained_on(tmp_path: Path) -> None:
    (tmp_path / "tinyshakespeare.txt").write_bytes(TEXT)
    with refused("tinyshakespeare.txt", "not the well-known file", "remove it", kind=DataError):
        open_source(table(), cache_dir=tmp_path)
    assert (tmp_path / "tinyshakespeare.txt").read_bytes() == TEXT, "a person's file is not removed"


def test_without_a_network_the_error_says_where_to_put_the_file(tmp_path: Path) -> None:
    def unreachable(url: str) -> BinaryIO:
        raise URLError(OSError(-3, "Temporary failure in\nname resolution"))

    with refused(
        "Temporary failure in name resolution",
        str(tmp_path / "tinyshakespeare.txt"),
        "1115394 bytes",
        shakespeare.SHA256,
        kind=DataError,
    ):
        open_shakespeare(table(), cache_dir=tmp_path, opener=unreachable)
    assert list(tmp_path.iterdir()) == []


def test_a_connection_that_breaks_leaves_nothing(tmp_path: Path) -> None:
    class Breaking(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            if self.tell():
                raise ConnectionResetError(104, "Connection reset by peer")
            return super().read(10)

    with refused("Connection reset by peer", kind=DataError):
        open_shakespeare(table(), cache_dir=tmp_path, opener=lambda url: Breaking(TEXT))
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_the_machines_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with refused("no space left", kind=StorageError):
        open_shakespeare(table("http://x/y"), cache_dir=tmp_path, opener=giving(TEXT))
    assert list(tmp_path.iterdir()) == []


def test_other_schemes_are_refused(tmp_path: Path) -> None:
    with refused("dataset.url", "ftp://x", kind=ConfigError):
        open_source(table("ftp://x"), cache_dir=tmp_path)


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/missing":
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(TEXT) + (50 if self.path == "/short" else 0)))
        self.end_headers()
        self.wfile.write(TEXT)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    """The address of a web server on this machine."""
    with HTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()
        thread.join()


def test_another_address_is_taken_unchecked_and_its_hash_noted(tmp_path: Path, server: str) -> None:
    source = open_source(table(f"{server}/input.txt"), cache_dir=tmp_path)
    assert documents(source) == [TEXT]
    assert hashlib.sha256(TEXT).hexdigest() in source.notes[0]
    assert cached_name(f"{server}/input.txt") not in (cached_name(f"{server}/other"), "tinyshakespeare.txt")


@pytest.mark.parametrize(("path", "reason"), [("missing", "Not Found"), ("short", "broke off")])
def test_a_bad_answer_is_one_line_and_leaves_nothing(
    tmp_path: Path, server: str, path: str, reason: str
) -> None:
    with refused(f"{server}/{path}", reason, kind=DataError):
        open_source(table(f"{server}/{path}"), cache_dir=tmp_path)
    assert list(tmp_path.iterdir()) == []
