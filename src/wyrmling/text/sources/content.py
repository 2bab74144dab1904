"""What the first bytes of a file say it is: compressed, a format that is no text, text in another encoding, binary.

A name proves nothing, and a few odd bytes prove nothing either: a format counts only where its mark could not
begin a text, or where what follows the mark is no text.
"""

from __future__ import annotations

import codecs
import re
import unicodedata

HEAD_BYTES = 1 << 16
"""How much of the beginning of a file is looked at."""

CONTROLS = bytes([*range(0x09), 0x0B, *range(0x0E, 0x1B), *range(0x1C, 0x20), 0x7F])
"""Bytes that plain text does not hold: NUL and control characters (tab, line ends, form feed and escape it may)."""

_FEW_CONTROLS = 8
_UTF16_MARKS = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
_UTF32_MARKS = {codecs.BOM_UTF32_LE: "utf-32-le", codecs.BOM_UTF32_BE: "utf-32-be"}

PACKINGS = {
    "gzip": re.compile(rb"\x1f\x8b\x08[\x00-\x1f]"),
    "bzip2": re.compile(rb"BZh[1-9](?:1AY&SY|\x17rE8P\x90)"),
    "xz": re.compile(rb"\xfd7zXZ\x00"),
    "lzma": re.compile(rb"\x5d\x00\x00[\x00-\xff]{2}(?:\xff{8}|[\x00-\xff]{5}\x00{3})", re.DOTALL),
    "zstd": re.compile(rb"(?:\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18)"),
}
"""Packings that are undone, and how each begins."""

_COMPRESSED_NAMES = {
    ".gz": "gzip",
    ".bz2": "bzip2",
    ".xz": "xz",
    ".lzma": "lzma",
    ".zst": "zstd",
    ".zstd": "zstd",
}

_TOKENS = 'dataset.type = "pretokenized" reads it'
_UNPACK = "unpack it"
_A_PICKLE = "a Python pickle (which is never loaded)", "save its content as text, JSON lines or .npy"
_TENSORS = "a file of tensors of PyTorch (which is never loaded here)"
_PLAIN = "save its text as a plain text file"
_CONVERT = "convert it to text, JSON lines or parquet"
NO_TEXT = "name files of text only"

# (where the mark stands, the mark, what it is, what to do). Marks that a text may begin with are below.
_MARKS: tuple[tuple[int, bytes, str, str], ...] = (
    (0, b"\x93NUMPY", "a NumPy array", _TOKENS),
    (0, b"MMIDIDX\0", "an index of Megatron token files", _TOKENS),
    (0, b"\x88\xd8\x34\x01\x01\0\0\0", "token ids in the format of llm.c", _TOKENS),
    (0, b"\xa1\xd9\x34\x01", "token ids in the format of llm.c", _TOKENS),
    (0, b"LITPKDS\x01\0", "token ids in the format of LitGPT", _TOKENS),
    (
        0,
        b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.",
        _TENSORS,
        NO_TEXT,
    ),
    (0, b"WYRMTOKS\x01\0", "a token file of this program's cache", "name the text that it was made from"),
    (0, b"PK\x05\x06\0\0", "an empty zip archive", _UNPACK),
    (0, b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "an old Office document (.doc, .xls or .ppt)", _PLAIN),
    (0, b"SQLite format 3\0", "an SQLite database", _CONVERT),
    (0, b"\x89HDF\r\n\x1a\n", "an HDF5 file", _CONVERT),
    (0, b"\x7fELF", "a program (ELF)", NO_TEXT),
    (0, b"\0asm", "a program (WebAssembly)", NO_TEXT),
    (0, b"\xca\xfe\xba\xbe\0", "a program (Java or Mach-O)", NO_TEXT),
    (0, b"\xcf\xfa\xed\xfe", "a program (Mach-O)", NO_TEXT),
    (0, b"\x89PNG\r\n\x1a\n", "an image (PNG)", NO_TEXT),
    (0, b"\xff\xd8\xff", "an image (JPEG)", NO_TEXT),
    (0, b"II*\0", "an image (TIFF)", NO_TEXT),
    (0, b"MM\0*", "an image (TIFF)", NO_TEXT),
    (0, b"7z\xbc\xaf\x27\x1c", "a 7-Zip archive", _UNPACK),
    (0, b"Rar!\x1a\x07", "a RAR archive", _UNPACK),
    (0, b"\x04\x22\x4d\x18", "compressed with LZ4", _UNPACK),
    (0, b"\xff\x06\0\0sNaPpY", "compressed with Snappy", _UNPACK),
    (0, b"LZIP\x01", "compressed with lzip", _UNPACK),
    (0, b"ARROW1\0\0", "an Arrow file (Feather)", "convert it to parquet or JSON lines"),
    (0, b"Obj\x01", "an Avro file", "convert it to parquet or JSON lines"),
    (0, b"PACK\0\0\0", "a pack of a Git repository", NO_TEXT),
)

# Marks that a text may begin with by accident: they count only where what follows is no text.
_WEAK_MARKS: tuple[tuple[int, bytes, str, str], ...] = (
    (0, b"PAR1", "a parquet file", 'dataset.type = "parquet" reads it (dataset.format on the hub)'),
    (0, b"FEA1", "a Feather file", "convert it to parquet or JSON lines"),
    (0, b"\xff\xff\xff\xff", "an Arrow stream or other binary data", "convert it to parquet or JSON lines"),
    (0, b"ORC", "an ORC file", "convert it to parquet or JSON lines"),
    (257, b"ustar", "a tar archive", _UNPACK),
    (0, b"\x1f\x9d", "compressed with compress (.Z)", _UNPACK),
    (0, b"MZ", "a program (Windows)", NO_TEXT),
    (0, b"GIF8", "an image (GIF)", NO_TEXT),
    (0, b"BM", "an image (BMP)", NO_TEXT),
    (0, b"8BPS", "an image (Photoshop)", NO_TEXT),
    (0, b"RIFF", "a sound, image or film (RIFF)", NO_TEXT),
    (0, b"OggS", "a sound (Ogg)", NO_TEXT),
    (0, b"ID3", "a sound (MP3)", NO_TEXT),
    (0, b"fLaC", "a sound (FLAC)", NO_TEXT),
    (4, b"ftyp", "a film or sound (MP4)", NO_TEXT),
    (0, b"GGUF", "weights of a model (GGUF)", NO_TEXT),
    (0, b"%!PS-Adobe", "a PostScript document", _PLAIN),
)
_PDF = re.compile(rb"%PDF-\d\.\d[ \t]*[\r\n]")
_NOT_IN_TEXTS = ("Cc", "Cn", "Co", "Cs")
_WIDE_PUNCTUATION = "\u3000\u3001\u3002\u300c\u300d\uff01\uff08\uff09\uff0c\uff1a\uff1f"
_ZIP = re.compile(rb"PK(?:00PK)?\x03\x04[\x00-\x64]\x00")
_ZIP_MEMBER = re.compile(rb"PK\x03\x04.{22}(.{2})(.{2})", re.DOTALL)
_FRAMED_PICKLE = re.compile(rb"\x80[\x04\x05]\x95.{3}\x00{5}", re.DOTALL)
_PICKLE = re.compile(rb"\x80[\x02-\x05]")
_OLD_PICKLE = re.compile(rb"(?:\([dlt]p\d+\n|c[\w.]+\n\w+\np\d+\n|[}\])]q\x00)")
_ARCHIVES = re.compile(rb"(?:!<arch>\n[ -~]{58}`\n|07070[127][0-9A-Fa-f]{70})")
_SAFETENSORS = re.compile(rb".{5}\x00{3}\{\s*\"", re.DOTALL)


def compression_of(head: bytes) -> str | None:
    """The name of the compression that data which begins with `head` is in, None where it is not compressed."""
    return next((name for name, begins in PACKINGS.items() if begins.match(head)), None)


def compression_by_name(name: str) -> str | None:
    """The compression that the ending of a file's name promises."""
    return next(
        (compression for end, compression in _COMPRESSED_NAMES.items() if name.lower().endswith(end)), None
    )


def without_compression(name: str) -> str:
    """A file's name in lower case, without the ending that its compression gave it: `A.txt.gz` is `a.txt`."""
    lower = name.lower()
    return next((lower[: -len(end)] for end in _COMPRESSED_NAMES if lower.endswith(end)), lower)


def format_of(head: bytes, *, sure: bool = False) -> tuple[str, str] | None:
    """The known format, and what to do about it, of data that is no text; None where it may be text.

    Args:
        sure: only formats whose marks are too long to come about by chance, for data that may be anything.
    """
    if _ZIP.match(head):
        return _zip(head)
    for place, mark, what, remedy in _MARKS:
        if head.startswith(mark, place) and (len(mark) > 3 or not sure):
            return what, remedy
    if _FRAMED_PICKLE.match(head):
        return _A_PICKLE
    if sure:
        return None
    if _SAFETENSORS.match(head):
        return "a file of tensors (safetensors)", NO_TEXT
    binary = is_binary(head) or is_binary(head[:512])
    if _PDF.match(head) and (binary or b" obj" in head):
        return "a PDF document", _PLAIN
    if _ARCHIVES.match(head):
        return "an archive (ar or cpio)", _UNPACK
    if _OLD_PICKLE.match(head) or (_PICKLE.match(head) and (binary or count_controls(head[:32]) > 2)):
        return _A_PICKLE
    for place, mark, what, remedy in _WEAK_MARKS:
        if binary and head.startswith(mark, place):
            return what, remedy
    return None


def _zip(head: bytes) -> tuple[str, str]:
    """What kind of zip archive it is, by the names of its first members."""
    names = []
    for member in _ZIP_MEMBER.finditer(head):
        length = int.from_bytes(member[1], "little")
        names.append(head[member.end() : member.end() + length])
    first = names[0] if names else b""
    if any(name.startswith((b"word/", b"xl/", b"ppt/")) or name == b"[Content_Types].xml" for name in names):
        return "an Office document (.docx, .xlsx or .pptx)", _PLAIN
    if first == b"mimetype":
        return ("an e-book (EPUB)" if b"application/epub" in head[:128] else "an OpenDocument file"), _PLAIN
    if any(name.endswith(b"data.pkl") for name in names):
        return _TENSORS, NO_TEXT
    if first.endswith(b".npy"):
        return "an archive of NumPy arrays (.npz)", "save each array with numpy.save"
    return "a zip archive", _UNPACK


def is_binary(data: bytes) -> bool:
    """Whether there are more control characters (see `CONTROLS`) than a text has by accident. NUL alone is no format:
    such a file is legal, if dull.
    """
    controls = count_controls(data)
    return controls > _FEW_CONTROLS and controls * 100 > len(data) and bool(data.strip(b"\0"))


def looks_like_text(head: bytes) -> bool:
    """Whether it may be plain text: no known format, and few control characters."""
    return format_of(head) is None and not is_binary(head)


def count_controls(data: bytes) -> int:
    """How many bytes are of `CONTROLS`."""
    return len(data) - len(data.translate(None, CONTROLS))


def wide_encoding(head: bytes) -> str | None:
    """The UTF-16 or UTF-32 encoding, with its byte order, that a text is in; None where it is in none of them.

    With a byte order mark, what follows must decode, and not be UTF-8 as it stands; without one, it must hold NUL
    and decode to what texts are made of.
    """
    for marks in (_UTF32_MARKS, _UTF16_MARKS):
        for mark, name in marks.items():
            rest = head[len(mark) :]
            plain = is_utf8(rest) and not {*b" \n"}.isdisjoint(rest)
            if head.startswith(mark) and _decoded(rest, name) is not None and not plain:
                return name
    others = head.replace(b"\0", b"")
    if b"\0" not in head or (5 * len(others) > 3 * len(head) and is_utf8(others) and not is_binary(others)):
        return None  # where the rest is plain UTF-8, it would have a NUL for every character
    likeness = {name: _likeness(head, name) for name in (*_UTF32_MARKS.values(), *_UTF16_MARKS.values())}
    best = max(likeness, key=lambda name: likeness[name])
    return best if likeness[best] else None


def is_utf8(head: bytes) -> bool:
    """Whether it is UTF-8 without NUL, and not empty; a character that the end of the head cuts is no fault."""
    return bool(head) and b"\0" not in head and _decoded(head, "utf-8") is not None


def _decoded(head: bytes, encoding: str) -> str | None:
    """The text of the head, without a character that its end cuts; None where it is not in this encoding."""
    try:
        return codecs.getincrementaldecoder(encoding)().decode(head)
    except UnicodeDecodeError:
        return None


def _likeness(head: bytes, encoding: str) -> float:
    """The share of spaces, ASCII characters and wide punctuation, of which numbers and texts in a wrong byte order
    have next to none; 0 where there are too few, or too many characters that texts do not hold.
    """
    text = _decoded(head[:4096], encoding)
    if not text:
        return 0.0
    strange = sum(c not in "\t\n\r\f" and unicodedata.category(c) in _NOT_IN_TEXTS for c in text)
    common = sum(" " <= c <= "~" or c in "\t\n\r" or c in _WIDE_PUNCTUATION for c in text)
    return common / len(text) if strange * 20 <= len(text) and common * 50 >= len(text) else 0.0
