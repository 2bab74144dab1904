"""Incremental decoding equals decoding at once; streams are cut where nothing is torn."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from wyrmling.text.sources.cutting import cut
from wyrmling.text.utf8 import IncrementalDecoder, Repair, cut_characters, find_invalid

FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467\ufe0f"
BITS = (
    b"a|\n|\xff|\xc3|\xa9|\xe2\x82|\xf0\x9f\x99\x82|\xe0\x80|\xed\xa0\x80|\xf4\x90|\xef\xbf\xbd|\xef\xbf|\xbd"
).split(b"|")
broken = st.lists(st.sampled_from([*BITS, FAMILY.encode()])).map(b"".join)
any_bytes = st.one_of(broken, st.binary())


def split_at(data: bytes, borders: list[int]) -> list[bytes]:
    edges = [0, *sorted(border % (len(data) + 1) for border in borders), len(data)]
    return [data[start:stop] for start, stop in itertools.pairwise(edges)]


@given(any_bytes, st.lists(st.integers(0, 100)))
@example(FAMILY.encode(), list(range(40)))
def test_decoding_in_parts_equals_decoding_at_once(data: bytes, borders: list[int]) -> None:
    decoder = IncrementalDecoder()
    text = "".join(decoder.push(part) for part in split_at(data, borders)) + decoder.finish()
    assert text == data.decode("utf-8", "replace")
    assert decoder.push(b"ok") == "ok"


def test_only_whole_characters_are_given_out() -> None:
    decoder = IncrementalDecoder()
    given_out = [decoder.push(bytes([byte])) for byte in "\U0001f642é".encode()]
    assert given_out == ["", "", "", "\U0001f642", "", "é"]


@given(st.text(), st.integers(0, 400), st.integers(0, 400))
def test_cut_characters_at_both_ends_are_found(text: str, one: int, other: int) -> None:
    whole = text.encode()
    begin, end = sorted((one % (len(whole) + 1), other % (len(whole) + 1)))
    data = whole[begin:end]
    start, stop = cut_characters(data)
    assert max(start, len(data) - stop) <= 3
    if start < stop:
        assert data[start:stop].decode() in text


@given(any_bytes)
def test_find_invalid_is_the_end_of_the_longest_valid_start(data: bytes) -> None:
    offset = find_invalid(data)
    if offset is None:
        data.decode("utf-8")
    else:
        data[:offset].decode("utf-8")
        with pytest.raises(UnicodeDecodeError):
            data.decode("utf-8")


@given(any_bytes, st.lists(st.integers(0, 100)))
@example(b"\xe2\x82\xef\xbf\xbd\xff", [1, 2, 3, 4, 5])
def test_repair_equals_decoding_with_replacement_and_counts_only_what_it_replaced(
    data: bytes, borders: list[int]
) -> None:
    repair = Repair()
    repaired = b"".join(repair(split_at(data, borders)))
    expected = data.decode("utf-8", "replace")
    assert repaired == expected.encode("utf-8")
    assert repair.replaced == expected.count("\ufffd") - data.count("\ufffd".encode())


lines = st.lists(st.sampled_from(["a", "bb ", "\n", "\r\n", "\r", "é", "€", FAMILY, " "])).map("".join)


@given(lines, st.integers(8, 30), st.lists(st.integers(0, 200)))
def test_a_cut_stream_is_the_stream_and_tears_nothing(text: str, limit: int, borders: list[int]) -> None:
    data = text.encode("utf-8")
    parts = list(cut(split_at(data, borders), limit))
    assert b"".join(parts) == data
    assert all(0 < len(part) <= limit for part in parts)
    for part in parts:
        part.decode("utf-8")
    for left, right in itertools.pairwise(parts):
        assert not (left.endswith(b"\r") and right.startswith(b"\n"))
        assert left.endswith(b"\n") or b"\n" not in left
    assert parts == list(cut([data], limit)), "where chunks end must not matter"


@given(st.binary(max_size=300), st.integers(8, 30))
def test_bytes_that_are_no_text_are_cut_too(data: bytes, limit: int) -> None:
    parts = list(cut([data], limit))
    assert b"".join(parts) == data
    assert all(0 < len(part) <= limit for part in parts)


def test_a_long_line_is_cut_before_a_space() -> None:
    assert list(cut([b"aaaa bbbb cccc dddd"], 12)) == [b"aaaa bbbb", b" cccc dddd"]
