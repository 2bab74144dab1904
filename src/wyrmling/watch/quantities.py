"""Quantities, curves and foreign text in a form that fits a line on a screen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

BLOCKS = "▁▂▃▄▅▆▇█"
ASCII_BLOCKS = "_.-:=+*#"


def loss(value: float | None) -> str:
    """`2.314`; `-` when there is none."""
    return "-" if value is None else f"{value:.3f}"


def learning_rate(value: float) -> str:
    """`1.9e-03`: two digits, always with an exponent, so that a column of them lines up."""
    return f"{value:.1e}"


def count(value: float | None) -> str:
    """`950`, `31.2k`, `1.25M`, `3.40B`: three digits and a power of 1000."""
    if value is None:
        return "-"
    for power, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= power * 0.9995:
            return f"{_three_digits(value / power)}{letter}"
    return f"{value:.0f}" if value >= 100 or float(value).is_integer() else f"{value:.1f}"


def size(bytes_: float | None) -> str:
    """`512 MB`, `1.25 GB`: powers of 1000."""
    if bytes_ is None:
        return "-"
    for power, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if abs(bytes_) >= power * 0.9995:
            return f"{_three_digits(bytes_ / power)} {unit}"
    return f"{bytes_:.0f} B"


def duration(seconds: float | None) -> str:
    """`45ms`, `0.4s`, `12s`, `1m12s`, `2h05m`, `3d04h`."""
    if seconds is None or not math.isfinite(seconds):
        return "-"
    if seconds < 0.0995:
        return f"{seconds * 1000:.0f}ms"
    if seconds < 9.95:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02d}h"


def sparkline(values: Sequence[float], width: int, blocks: str = BLOCKS) -> str:
    """A curve as at most `width` characters: the values in order, averaged in groups of about equal length.

    The lowest group is the first of `blocks`, the highest the last; values that are not finite are left out.
    """
    finite = [value for value in values if math.isfinite(value)]
    if not finite or width < 1:
        return ""
    columns = min(width, len(finite))
    borders = [round(i * len(finite) / columns) for i in range(columns + 1)]
    means = [sum(finite[a:b]) / (b - a) for a, b in pairwise(borders)]
    low, high = min(means), max(means)
    span = (high - low) or 1.0
    return "".join(blocks[min(len(blocks) - 1, int((mean - low) / span * len(blocks)))] for mean in means)


def printable(text: str, encoding: str | None) -> str:
    """`text` with nothing in it that a terminal obeys or that `encoding` cannot hold.

    A model of bytes writes any byte: control characters other than line feed and tab become `\\x1b` and the
    like, so that a sample can neither move the cursor nor ring the bell.
    """
    safe = "".join(char if char in "\n\t" or not _is_control(char) else _escape(char) for char in text)
    return safe.encode(encoding or "utf-8", "backslashreplace").decode(encoding or "utf-8")


def one_line(text: str, encoding: str | None = None) -> str:
    """`printable`, with line ends and tabs escaped too."""
    return printable(text.replace("\n", "\\n").replace("\t", "\\t"), encoding)


def can_print(characters: str, encoding: str | None) -> bool:
    """Whether a stream of this encoding can hold these characters."""
    try:
        characters.encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _is_control(char: str) -> bool:
    code = ord(char)
    return code < 32 or 127 <= code < 160 or code in (0x2028, 0x2029, 0x202E, 0x202D, 0x2066, 0x2067, 0x2068)


def _escape(char: str) -> str:
    code = ord(char)
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


def _three_digits(value: float) -> str:
    magnitude = abs(value)
    if magnitude >= 99.95:
        return f"{value:.0f}"
    return f"{value:.1f}" if magnitude >= 9.995 else f"{value:.2f}"
