"""Quantities fit a line, stay in order, and text from a model cannot command a terminal."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wyrmling.watch import quantities


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0, "0"),
        (7, "7"),
        (12.34, "12.3"),
        (999, "999"),
        (999.9, "1.00k"),
        (31234, "31.2k"),
        (99_960, "100k"),
        (999_600, "1.00M"),
        (3_280_000, "3.28M"),
        (4.5e9, "4.50B"),
    ],
)
def test_counts(value: float | None, text: str) -> None:
    assert quantities.count(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 B"), (999, "999 B"), (512_000_000, "512 MB"), (1_250_000_000, "1.25 GB"), (2e12, "2.00 TB")],
)
def test_sizes(value: float, text: str) -> None:
    assert quantities.size(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (math.inf, "-"),
        (0.0451, "45ms"),
        (0.0999, "0.1s"),
        (0.44, "0.4s"),
        (9.96, "10s"),
        (59.7, "1m00s"),
        (72, "1m12s"),
        (3599.6, "1h00m"),
        (7500, "2h05m"),
        (86400 * 3 + 4 * 3600, "3d04h"),
    ],
)
def test_durations(seconds: float | None, text: str) -> None:
    assert quantities.duration(seconds) == text


@given(st.floats(0, 1e15))
def test_a_count_read_back_is_within_a_percent(value: float) -> None:
    text = quantities.count(value)
    factor = {"k": 1e3, "M": 1e6, "B": 1e9}.get(text[-1], 1)
    assert float(text.rstrip("kMB")) * factor == pytest.approx(value, rel=0.006, abs=0.06)


@given(st.lists(st.floats(), max_size=200), st.integers(-1, 60))
def test_a_sparkline_never_exceeds_its_width(values: list[float], width: int) -> None:
    finite = [value for value in values if math.isfinite(value)]
    line = quantities.sparkline([value for value in values if abs(value) < 1e300 or value != value], width)
    assert len(line) <= max(0, width)
    assert set(line) <= set(quantities.BLOCKS)
    assert finite or line == ""


def test_a_sparkline_shows_the_shape() -> None:
    assert quantities.sparkline(range(8), 8) == "▁▂▃▄▅▆▇█"
    assert quantities.sparkline(range(800), 8) == "▁▂▃▄▅▆▇█"
    assert quantities.sparkline([3, 3, 3], 8) == "▁▁▁"
    assert quantities.sparkline([8, math.nan, 1], 8, quantities.ASCII_BLOCKS) == "#_"


@given(st.text(), st.sampled_from(["ascii", "cp1252", "utf-8", None]))
def test_printable_text_holds_no_control_character_and_fits_the_encoding(
    text: str, encoding: str | None
) -> None:
    safe = quantities.printable(text, encoding)
    safe.encode(encoding or "utf-8")
    assert all(ord(char) >= 32 or char in "\n\t" for char in safe)
    assert "\x7f" not in safe
    assert not any(0x80 <= ord(char) < 0xA0 for char in safe)
    assert "\n" not in quantities.one_line(text, encoding)


def test_escapes_are_shown_and_ordinary_text_is_kept() -> None:
    assert quantities.printable("a\x1b[2Jb\x07\r\n", "utf-8") == "a\\x1b[2Jb\\x07\\x0d\n"
    assert quantities.printable("étrange ☃ 🐉", "utf-8") == "étrange ☃ 🐉"
    assert quantities.printable("é\ud800", "ascii") == "\\xe9\\ud800"
    assert quantities.printable("\u202eevil", "utf-8") == "\\u202eevil"
