"""How many tokens a chunk has."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wyrmling.memory.rwkv8.chunking import runtime_chunk


def test_the_size_of_the_golden_run() -> None:
    """n_embd 128, 4 heads of 128 neurons, micro-batch 24, block 512."""
    assert runtime_chunk(24, 4, 512, 128, 128) == 64


@pytest.mark.parametrize(("length", "chunk"), [(1, 1), (40, 40), (64, 64), (65, 64)])
def test_a_chunk_is_no_longer_than_the_call(length: int, chunk: int) -> None:
    assert runtime_chunk(1, 1, length, 8, 8) == chunk


@given(
    rows=st.integers(1, 64),
    length=st.integers(1, 1000),
    neurons=st.integers(1, 9000),
    limit=st.integers(1, 1 << 36),
)
def test_halved_until_it_fits(rows: int, length: int, neurons: int, limit: int) -> None:
    """It fits, or is one token; twice as long would not have fitted."""
    chunk = runtime_chunk(rows, 4, length, neurons, 128, scratch_bytes=limit)

    def scratch(tokens: int) -> int:
        return 4 * (3 * rows * 4 * tokens * neurons * 128 + 2 * rows * 4 * tokens * neurons)

    assert chunk == 1 or scratch(chunk) <= limit
    assert chunk == min(64, length) or scratch(min(2 * chunk, length, 64)) > limit


def test_halving_rounds_up() -> None:
    one_token = 4 * (3 * 128 + 2) * 8
    assert runtime_chunk(1, 1, 37, 8, 128, scratch_bytes=18 * one_token) == 10
    assert runtime_chunk(1, 1, 37, 8, 128, scratch_bytes=19 * one_token) == 19


def test_an_override_wins() -> None:
    assert runtime_chunk(24, 4, 512, 8192, 128, override=100, scratch_bytes=1) == 100
    assert runtime_chunk(24, 4, 512, 8192, 128, override=1000) == 512


@pytest.mark.parametrize("override", [0, -3])
def test_an_override_that_is_not_positive_is_refused(override: int) -> None:
    with pytest.raises(ValueError, match=f"at least 1 token, got {override}$"):
        runtime_chunk(1, 1, 8, 8, 8, override=override)


def test_sizes_that_are_not_positive_are_refused() -> None:
    with pytest.raises(ValueError, match="positive sizes, got 1 rows, 0 heads"):
        runtime_chunk(1, 0, 8, 8, 8)
