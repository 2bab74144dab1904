"""Keyed randomness: pure, the same on every machine, bijective where it must be, near enough to uniform."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wyrmling.numerics.keyed import KeyedPermutation, WordStream, hash_int, hash_key, philox, uniform_integers

CHI_SQUARED_PER_DEGREE = 1.6  # far above what chance allows for the counts used here


def test_hashes_never_change() -> None:
    """A run resumed on another machine or NumPy draws what the first one drew: the values are a format."""
    assert hash_int() == 11400714819323198485
    assert hash_int(0) == 7960286522194355700
    assert hash_int("train", 1337, -1) == 3994380696350413361
    assert hash_key("w", np.arange(3)).tolist() == [
        2520826766203967609,
        6710726579553013369,
        1033163659902117877,
    ]
    assert uniform_integers(hash_key("w", np.arange(6)), 10).tolist() == [1, 3, 0, 0, 2, 3]
    assert KeyedPermutation(10, 1337, "train", 0)(np.arange(10)).tolist() == [5, 7, 3, 4, 9, 1, 2, 0, 6, 8]
    assert KeyedPermutation(1000003, 5)(np.array([0, 1, 1000002])).tolist() == [781184, 645943, 160171]
    assert philox("x", 3).random_raw(3).tolist() == [
        11897169519066342584,
        11679732645225855606,
        14280149433314387143,
    ]


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=8), st.integers(0, 2**63 - 1))
def test_an_array_is_hashed_as_its_elements_are(values: list[int], seed: int) -> None:
    together = hash_key(seed, "name", np.array(values, dtype=np.int64))
    assert together.tolist() == [hash_int(seed, "name", value) for value in values]


def test_array_parts_broadcast() -> None:
    table = hash_key(1, np.arange(3)[:, None], np.arange(5)[None, :])
    assert table.shape == (3, 5)
    assert table[2, 4] == hash_int(1, 2, 4)
    assert len(np.unique(table)) == 15


def test_the_order_and_the_kind_of_parts_matter() -> None:
    keys = [(1, 2), (2, 1), ("1", 2), ("1", "2"), (1,), (1, 2, 0)]
    assert len({hash_int(*key) for key in keys}) == len(keys)


def test_every_key_bit_moves_about_half_of_the_hash_bits() -> None:
    base = hash_int("avalanche", 12345)
    flips = [(base ^ hash_int("avalanche", 12345 ^ (1 << bit))).bit_count() for bit in range(63)]
    assert 28 < np.mean(flips) < 36
    assert min(flips) > 12


@given(st.integers(1, 2**63 - 1), st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=6))
def test_integers_are_the_high_word_of_the_product(n: int, hashes: list[int]) -> None:
    """The two code paths (below and above 2^32) are one definition."""
    drawn = uniform_integers(np.array(hashes, dtype=np.uint64), n)
    assert drawn.dtype == np.int64
    assert drawn.tolist() == [(h * n) >> 64 for h in hashes]


@pytest.mark.parametrize("n", [1, 2, 3, 7, 1000])
def test_integers_are_uniform(n: int) -> None:
    drawn = uniform_integers(hash_key("uniform", n, np.arange(20 * n + 20_000)), n)
    counts = np.bincount(drawn, minlength=n)
    assert len(counts) == n
    expected = len(drawn) / n
    assert ((counts - expected) ** 2 / expected).sum() <= CHI_SQUARED_PER_DEGREE * max(n - 1, 5)


@pytest.mark.parametrize("n", [0, -1])
def test_an_empty_range_is_refused(n: int) -> None:
    with pytest.raises(ValueError, match="range"):
        uniform_integers(hash_key(1, np.arange(2)), n)
    with pytest.raises(ValueError, match="n >= 1"):
        KeyedPermutation(n, 1)


@pytest.mark.parametrize("n", [*range(1, 70), 127, 128, 129, 255, 256, 257, 999, 4096, 4097])
def test_a_permutation_is_a_bijection(n: int) -> None:
    image = KeyedPermutation(n, 7, "train", n)(np.arange(n))
    assert image.dtype == np.int64
    np.testing.assert_array_equal(np.sort(image), np.arange(n))


@given(st.integers(1, 5000), st.integers(0, 2**63 - 1), st.data())
def test_a_permutation_answers_for_any_subset_in_any_shape(n: int, key: int, data: st.DataObject) -> None:
    permutation = KeyedPermutation(n, key)
    whole = permutation(np.arange(n))
    wanted = np.array(data.draw(st.lists(st.integers(0, n - 1), max_size=9)), dtype=np.int64)
    before = wanted.copy()
    np.testing.assert_array_equal(permutation(wanted), whole[wanted])
    np.testing.assert_array_equal(wanted, before)
    np.testing.assert_array_equal(permutation(wanted[:, None]), whole[wanted][:, None])
    assert permutation(np.int64(n - 1)) == whole[n - 1]


@pytest.mark.parametrize("index", [-1, 5, 16, 1 << 40])
def test_an_index_outside_a_permutation_is_refused(index: int) -> None:
    with pytest.raises(IndexError, match="permutation of 5"):
        KeyedPermutation(5, 1)(np.array([0, index]))


@pytest.mark.parametrize("n", [2, 3, 4, 6, 7, 17, 64])
def test_permutations_of_many_keys_send_every_index_everywhere(n: int) -> None:
    """How often i goes to j is uniform, small n (few documents, few windows) included."""
    keys = 1500
    counts = np.zeros((n, n))
    for key in range(keys):
        counts[np.arange(n), KeyedPermutation(n, 11, "epoch", key)(np.arange(n))] += 1
    expected = keys / n
    statistic = ((counts - expected) ** 2 / expected).sum()
    assert statistic <= CHI_SQUARED_PER_DEGREE * max((n - 1) ** 2, 6)


def test_streams_of_different_keys_differ() -> None:
    streams = {tuple(philox(*key).random_raw(2)) for key in [(1,), (2,), ("1",), (1, 0), (0, 1), ("a", 1)]}
    assert len(streams) == 6


def test_a_word_stream_is_splitmix64() -> None:
    """The published test vector of SplitMix64 with seed 1234567, and reuse of one stream for another key."""
    stream = WordStream(3)
    other = stream(42).copy()
    assert stream(1234567).tolist() == [6457827717110365317, 3203168211198807973, 9817491932198370423]
    np.testing.assert_array_equal(stream(42), other)


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=3), st.integers(0, 50), st.integers(1, 30))
def test_streams_can_be_read_together_and_from_any_word(keys: list[int], first: int, count: int) -> None:
    stream = WordStream(100)
    expected = [word for key in keys for word in stream(key).tolist()[first : first + count]]
    assert stream(*keys, first=first, count=count).tolist() == expected
