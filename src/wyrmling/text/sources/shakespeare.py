"""Tiny Shakespeare: one text file of 1,115,394 bytes, downloaded once into the cache."""

from __future__ import annotations

import hashlib
import http.client
import os
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from ..._version import __version__
from ...errors import ConfigError, DataError
from ...files import make_folder, publish, sha256_of, storage_errors, temporary_sibling
from .base import Source
from .files import InputFile, refusal, shown
from .local import TextFiles

if TYPE_CHECKING:
    from ...config.schema.sources import ShakespeareSource

URL = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
SIZE = 1_115_394
FILE_NAME = "tinyshakespeare.txt"
_TIMEOUT_SECONDS = 30
_CHUNK = 1 << 16

Opener = Callable[[str], BinaryIO]


def open_shakespeare(config: ShakespeareSource, *, cache_dir: Path, opener: Opener | None = None) -> Source:
    """The source of a `shakespeare` table; downloads the file when the cache does not hold it.

    The well-known file is `<cache_dir>/tinyshakespeare.txt` and its size and SHA-256 are checked every
    time. Another `url` is kept beside it under a name made from the address, unchecked; its SHA-256 is
    noted.

    Args:
        opener: opens an address for reading bytes (the network, unless a test puts something else here).

    Raises:
        DataError: the download failed, or the content is not the well-known file.
        StorageError: the cache cannot be written.
    """
    url = config.url or URL
    genuine = url == URL
    path = cache_dir / cached_name(url)
    if not path.exists():
        _download(url, path, genuine, opener or _open_url)
    try:
        digest = sha256_of(path)
    except OSError as error:
        raise refusal(shown(path), error) from error
    if genuine and digest != SHA256:
        raise DataError(
            f"{shown(path)}: is not the well-known file (SHA-256 {digest}, expected {SHA256}); remove it"
        )
    notes = [] if genuine else [f"{shown(url)}: not checked, SHA-256 {digest}"]
    return TextFiles(
        "shakespeare", [InputFile(path, shown(path))], settings={"url": url, "sha256": digest}, notes=notes
    )


def cached_name(url: str) -> str:
    """The file name in the cache of what an address gives."""
    if url == URL:
        return FILE_NAME
    return f"tinyshakespeare-{hashlib.sha256(url.encode()).hexdigest()[:12]}.txt"


def _open_url(url: str) -> BinaryIO:
    request = urllib.request.Request(url, headers={"User-Agent": f"wyrmling/{__version__}"})
    stream: BinaryIO = urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS)
    return stream


def _download(url: str, path: Path, genuine: bool, opener: Opener) -> None:
    """Fetch into a temporary file beside `path`, check it, then give it its name."""
    if not url.lower().startswith(("http://", "https://", "file://")):
        raise ConfigError(f"dataset.url: {shown(url)} does not start with https://, http:// or file://")
    by_hand = f"without a network, put the file at {shown(os.path.abspath(path))}"
    if genuine:
        by_hand += f" ({SIZE} bytes, SHA-256 {SHA256})"
    make_folder(path.parent, "choose another dataset.cache_dir")
    temporary = temporary_sibling(path)
    try:
        size, digest = _fetch(url, temporary, SIZE if genuine else None, opener, by_hand)
        if genuine and digest != SHA256:
            raise DataError(
                f"{shown(url)}: gave other content than the well-known file "
                f"({size} bytes, SHA-256 {digest}); {by_hand}"
            )
        publish(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _fetch(url: str, temporary: Path, most: int | None, opener: Opener, by_hand: str) -> tuple[int, str]:
    """Stream an address into a file, durable; at most one chunk more than `most` bytes. (size, SHA-256)."""
    digest = hashlib.sha256()
    size = 0
    with storage_errors(temporary), open(temporary, "wb") as file:
        try:
            stream = opener(url)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise _unreachable(url, error, by_hand) from error
        with stream:
            announced = getattr(stream, "length", None)
            while most is None or size <= most:
                try:
                    chunk = stream.read(_CHUNK)
                except (OSError, http.client.HTTPException) as error:
                    raise _unreachable(url, error, by_hand) from error
                if not chunk:
                    break
                file.write(chunk)
                digest.update(chunk)
                size += len(chunk)
        if most is None and announced is not None and size != announced:
            raise DataError(
                f"{shown(url)}: the download broke off after {size} of {announced} bytes; "
                f"try again, or {by_hand}"
            )
        file.flush()
        os.fsync(file.fileno())
    return size, digest.hexdigest()


def _unreachable(url: str, error: Exception, by_hand: str) -> DataError:
    reason = " ".join(str(getattr(error, "reason", None) or error or type(error).__name__).split())
    return DataError(f"cannot download {shown(url)} ({reason}); {by_hand}")
