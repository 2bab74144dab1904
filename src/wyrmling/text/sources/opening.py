"""Opening a file for reading: what is compressed is decompressed as it comes, and a text arrives as UTF-8.

Every text of the program comes through here: sources, validation, `evaluate --text`, prompts from files.
"""

from __future__ import annotations

import bz2
import codecs
import io
import lzma
import zlib
from typing import Any, BinaryIO, cast

from ...errors import DataError, to_install
from .content import HEAD_BYTES, compression_of, count_controls, format_of, is_binary, is_utf8, wide_encoding
from .tally import Tally

CHUNK_BYTES = 1 << 18
RAW = "raw"
"""The encoding of files whose bytes are taken as they are: nothing is decompressed, decoded or refused."""

_SMALL_ENOUGH = 1 << 28
_USUAL_RATIO = 200
_MOST_LAYERS = 3
_XZ_MEMORY = 1 << 30
_ZSTD_WINDOW = 31  # the largest there is: public dumps are compressed with it
_INVALID = "wyrmling-invalid"


def decompressed(
    stream: io.BufferedReader, name: str, *, size: int, limit: int | None = None
) -> io.BufferedReader:
    """The bytes of a stream, decompressed while they look compressed (as `.gz` in `.gz`), in bounded memory.

    Args:
        size: bytes of the compressed file.
        limit: the most bytes that it may decompress to; None: 256 MiB, or 200 times its size where that is more.

    Raises:
        DataError: the reader of zstd is not installed; while reading: damaged, cut short, beyond the limit.
    """
    for _ in range(_MOST_LAYERS):
        compression = compression_of(stream.peek(HEAD_BYTES))
        if compression is None:
            return stream
        layer = _Decompressed(stream, compression, name, size, limit)
        stream = io.BufferedReader(layer, CHUNK_BYTES)
    if compression_of(stream.peek(HEAD_BYTES)) is not None:
        raise DataError(f"{name}: is compressed more than {_MOST_LAYERS} times over; unpack it")
    return stream


def as_text(
    stream: io.BufferedReader, name: str, encoding: str, tally: Tally, *, strict: bool = True
) -> tuple[io.BufferedReader, int]:
    """A stream of UTF-8 after a byte order mark, if there is one, and the offset at which it stands.

    UTF-8 is handed on as it is, invalid bytes too. Another encoding is decoded; bytes that are not in it are an
    error, or, where not `strict`, become the byte FF, which is never UTF-8.

    Raises:
        DataError: the stream is no plain text, or is in another encoding than `encoding`.
    """
    if encoding == RAW:
        return stream, 0
    head = stream.peek(HEAD_BYTES)[:HEAD_BYTES]
    found = format_of(head)
    if found is not None:
        raise DataError(f"{name}: is {found[0]}, not plain text; {found[1]}")
    wanted = codecs.lookup(encoding).name
    _check_width(head, name, wanted)
    if wanted not in ("utf-8", "utf-8-sig"):
        if not head.isascii() and is_utf8(head):
            tally.decoded_though_utf8.append(name)
        stream = io.BufferedReader(_Decoding(stream, name, encoding, strict), CHUNK_BYTES)
        head = stream.peek(HEAD_BYTES)[:HEAD_BYTES]
    if is_binary(head):
        raise DataError(
            f"{name}: is binary data, not plain text ({count_controls(head)} control characters in its first "
            f'{len(head)} bytes); name files of text, or set dataset.encoding = "{RAW}" to train on bytes as they are'
        )
    if head.startswith(codecs.BOM_UTF8):
        tally.byte_order_marks.append(name)
        return stream, len(stream.read(len(codecs.BOM_UTF8)))
    return stream, 0


def _check_width(head: bytes, name: str, wanted: str) -> None:
    """Refuse a text in UTF-16 or UTF-32 where another encoding is `wanted`, and the other way round."""
    wide = wide_encoding(head)
    expects_wide = wanted.startswith(("utf-16", "utf-32"))
    marked = head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_BE))
    if wide is not None and wide != wanted and not (marked and wide[:6] == wanted):
        advice = wide[:6] if marked else wide
        raise DataError(
            f'{name}: is written in {advice.upper()}, not in {wanted}; set dataset.encoding = "{advice}" '
            "(--encoding, for a text or prompt of its own), or save it as UTF-8"
        )
    if wide is None and expects_wide and is_utf8(head):
        raise DataError(
            f"{name}: is not written in {wanted} but, it seems, in UTF-8; correct dataset.encoding "
            "(--encoding, for a text or prompt of its own)"
        )


def text_of(data: bytes, name: str, encoding: str = "utf-8") -> bytes:
    """The UTF-8 of a text that is in memory, opened as a file is.

    Raises:
        DataError: it is no text, in another encoding, damaged.
    """
    stream = io.BufferedReader(cast(Any, io.BytesIO(data)), CHUNK_BYTES)
    if encoding != RAW:
        stream = decompressed(stream, name, size=len(data))
    return as_text(stream, name, encoding, Tally())[0].read()


class _Gunzip:
    """One member of a gzip file, with the interface that the other decompressors have."""

    def __init__(self) -> None:
        self._inflate = zlib.decompressobj(31)

    @property
    def eof(self) -> bool:
        return self._inflate.eof

    @property
    def unused_data(self) -> bytes:
        return self._inflate.unused_data

    @property
    def needs_input(self) -> bool:
        return not self._inflate.unconsumed_tail

    def decompress(self, data: bytes, most: int) -> bytes:
        return self._inflate.decompress(self._inflate.unconsumed_tail + data, most)


def _decompressor(compression: str, name: str) -> Any:
    """A fresh decompressor for one member (stream, frame) of a compressed file."""
    match compression:
        case "gzip":
            return _Gunzip()
        case "bzip2":
            return bz2.BZ2Decompressor()
        case "xz" | "lzma":
            return lzma.LZMADecompressor(memlimit=_XZ_MEMORY)
    try:
        from compression import zstd  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        try:
            from backports import zstd
        except ImportError:
            raise DataError(
                f"{name}: is compressed with zstd, which this Python reads with one more package; "
                f"{to_install('backports.zstd')}, or unpack the file"
            ) from None
    return zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: _ZSTD_WINDOW})


class _Decompressed(io.RawIOBase):
    """The bytes that a compressed stream holds: all its members, one after the other, to the last byte."""

    def __init__(
        self, compressed: BinaryIO, compression: str, name: str, size: int, limit: int | None
    ) -> None:
        self._compressed, self._compression, self._name = compressed, compression, name
        self._limit = limit or max(_SMALL_ENOUGH, _USUAL_RATIO * size)
        self._limited = limit is not None
        self._given = 0
        self._waiting = b""
        self._member = _decompressor(compression, name)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        room = memoryview(buffer)
        filled = 0
        while filled < len(room):
            data = self._unpack(len(room) - filled)
            if not data:
                break
            room[filled : filled + len(data)] = data
            filled += len(data)
        self._given += filled
        if self._given > self._limit:
            reason = "" if self._limited else f", {_USUAL_RATIO} times its size"
            raise DataError(
                f"{self._name}: decompresses to more than {self._limit >> 20} MiB{reason}; if it is meant to, "
                "set dataset.max_decompressed_mb"
            )
        return filled

    def _unpack(self, most: int) -> bytes:
        """1 to `most` more bytes; none at the end."""
        while True:
            if self._member.eof and not self._next_member():
                return b""
            data = b""
            if self._member.needs_input:
                data, self._waiting = self._waiting or self._compressed.read(CHUNK_BYTES), b""
                if not data:
                    raise self._damaged("it ends too early")
            try:
                found = self._member.decompress(data, most)
            except (
                Exception
            ) as error:  # each of the four libraries has an error of its own, OSError among them
                raise self._damaged(str(error).rstrip(".")) from error
            if found:
                return cast(bytes, found)

    def _next_member(self) -> bool:
        """Begin the member that follows; zeros between and after members are padding."""
        following = self._member.unused_data
        while not following.lstrip(b"\0"):
            following = self._compressed.read(CHUNK_BYTES)
            if not following:
                return False
        self._waiting = following.lstrip(b"\0")
        self._member = _decompressor(self._compression, self._name)
        return True

    def _damaged(self, reason: str) -> DataError:
        return DataError(
            f"{self._name}: damaged or cut short {self._compression} data ({reason}); copy or compress it again"
        )


class _Decoding(io.RawIOBase):
    """UTF-8 of a stream in another encoding; characters may lie across the chunks that are read."""

    def __init__(self, stream: BinaryIO, name: str, encoding: str, strict: bool) -> None:
        self._stream, self._name, self._encoding = stream, name, encoding
        self._decoder = codecs.getincrementaldecoder(encoding)("strict" if strict else _INVALID)
        self._read = 0
        self._decoded = memoryview(b"")
        self._ended = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        room = memoryview(buffer)
        filled = 0
        while filled < len(room) and (self._decoded or self._decode()):
            part = self._decoded[: len(room) - filled]
            room[filled : filled + len(part)] = part
            filled += len(part)
            self._decoded = self._decoded[len(part) :]
        return filled

    def _decode(self) -> bool:
        """Decode the next chunk; False at the end."""
        while not self._ended and not self._decoded:
            chunk = self._stream.read(CHUNK_BYTES)
            self._ended = not chunk
            try:
                text = self._decoder.decode(chunk, final=self._ended)
            except UnicodeDecodeError as error:
                kept = len(error.object) - len(chunk)  # of a character that began in the chunk before
                raise DataError(
                    f"{self._name}: byte 0x{error.object[error.start]:02x} at offset {self._read - kept + error.start} "
                    f"is not {self._encoding} ({error.reason}); correct dataset.encoding (--encoding, for a text or "
                    'prompt of its own), or set dataset.invalid_utf8 = "replace"'
                ) from error
            except UnicodeError as error:  # without a mark there is no telling which half comes first
                raise DataError(
                    f"{self._name}: is not {self._encoding} ({error}); correct dataset.encoding (--encoding, for a "
                    "text or prompt of its own)"
                ) from error
            self._read += len(chunk)
            self._decoded = memoryview(text.encode("utf-8", "surrogateescape"))
        return bool(self._decoded)


def _mark_invalid(error: UnicodeError) -> tuple[str, int]:
    """What stands for bytes that cannot be decoded: written as UTF-8 it is the byte FF, which no text holds."""
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return "\udcff", error.end


codecs.register_error(_INVALID, _mark_invalid)
