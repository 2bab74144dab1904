"""Random numbers that are functions of a key, never of a history.

Law 3: what step k draws follows from (seed, names, k, row) alone, so nothing has to be saved to resume, and
another number of processes draws the same numbers. Keys are mixed by SplitMix64's finaliser (Steele, Lea,
Flood 2014); long streams are SplitMix64 itself, which is the same finaliser applied to a counter; samplers
that need NumPy's distributions take the counter-based generator Philox4x64 (Salmon et al. 2011).
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

U64 = np.uint64
_GAMMA = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1

KeyPart = int | str | npt.NDArray[np.integer]


def _mix(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """SplitMix64's finaliser: a bijection of 64-bit words; every output bit depends on every input bit."""
    x = (x ^ (x >> U64(30))) * U64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> U64(27))) * U64(0x94D049BB133111EB)
    return x ^ (x >> U64(31))


def _word(part: KeyPart) -> npt.NDArray[np.uint64]:
    if isinstance(part, str):
        digest = hashlib.blake2b(part.encode(), digest_size=8).digest()
        return np.asarray(int.from_bytes(digest, "little"), dtype=U64)
    if isinstance(part, int):
        return np.asarray(part & _MASK, dtype=U64)
    return part.astype(np.int64).astype(U64)


def hash_key(*parts: KeyPart) -> npt.NDArray[np.uint64]:
    """A 64-bit hash of a key. Parts are integers, names, or integer arrays (broadcast against each other).

    Returns: uint64, shape the broadcast of the array parts (zero-dimensional if there are none).
    """
    with np.errstate(over="ignore"):
        h = np.asarray(_GAMMA, dtype=U64)
        for part in parts:
            h = _mix((h ^ _word(part)) + U64(_GAMMA))
    return h


def hash_int(*parts: KeyPart) -> int:
    """`hash_key` of scalar parts as a Python int in [0, 2^64)."""
    return int(hash_key(*parts))


def uniform_integers(hashes: npt.NDArray[np.uint64], n: int) -> npt.NDArray[np.int64]:
    """Map 64-bit hashes to integers in [0, n): floor(hash · n / 2^64), so the bias is below n / 2^64.

    Raises:
        ValueError: n < 1, a range that holds nothing.
    """
    if n < 1:
        raise ValueError(f"cannot draw from a range of {n} integers")
    if n >= 1 << 32:
        high = [(int(h) * n) >> 64 for h in np.asarray(hashes).ravel()]
        return np.asarray(high, dtype=np.int64).reshape(np.shape(hashes))
    # The high word of the 96-bit product, from two 32-bit halves; no step can overflow 64 bits.
    low = (hashes & U64(0xFFFFFFFF)) * U64(n)
    return (((hashes >> U64(32)) * U64(n) + (low >> U64(32))) >> U64(32)).astype(np.int64)


def philox(*parts: int | str) -> np.random.Philox:
    """A counter-based bit generator keyed by `parts`; equal keys give equal streams on every machine."""
    return np.random.Philox(key=[hash_int(0, *parts), hash_int(1, *parts)])


class WordStream:
    """Words of the SplitMix64 streams of keys, up to n at a time, without allocation.

    Word i is mix(key + (i + 1) gamma). A third of a nanosecond per 16 random bits: several times faster than
    any generator of NumPy or torch, and the same on every machine and for any number of threads.
    """

    def __init__(self, n: int) -> None:
        self.words = n
        with np.errstate(over="ignore"):
            self._counters = np.arange(1, n + 1, dtype=U64) * U64(_GAMMA)
        self._words = np.empty(n, dtype=U64)
        self._shifted = np.empty(n, dtype=U64)

    def __call__(self, *keys: int, first: int = 0, count: int | None = None) -> npt.NDArray[np.uint64]:
        """uint64 [len(keys) count], the words from number `first` on of one key's stream after the other's.

        Valid until the next call. `count` is by default what there is room for.
        """
        count = self.words // len(keys) if count is None else count
        x, y = self._words[: len(keys) * count], self._shifted[: len(keys) * count]
        starts = np.array([(key + first * _GAMMA) & _MASK for key in keys], dtype=U64)
        np.add(self._counters[:count], starts[:, None], out=x.reshape(len(keys), count))
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, None)):
            np.right_shift(x, U64(shift), out=y)
            np.bitwise_xor(x, y, out=x)
            if factor is not None:
                np.multiply(x, U64(factor), out=x)
        return x


class KeyedPermutation:
    """A permutation of range(n) that is a function of its key: no table, constant memory.

    An eight-round Feistel network over the smallest even number of bits that holds n, with cycle walking
    (Black and Rogaway 2002), so `permutation(indices)` is a bijection of [0, n) for every n >= 1. Four rounds
    would do for large n; over halves of one or two bits they leave a visible bias.
    """

    _ROUNDS = 8

    def __init__(self, n: int, *key: int | str) -> None:
        if n < 1:
            raise ValueError(f"a permutation needs n >= 1, got {n}")
        self.n = n
        bits = max((n - 1).bit_length(), 2)
        self._half = U64((bits + 1) // 2)
        self._low = U64((1 << int(self._half)) - 1)
        # Hashed once more here, so that a round only has to mix the half into it: hash_key(key of the round, half).
        self._round_keys = [hash_key(hash_int("feistel", r, *key)) for r in range(self._ROUNDS)]

    def _encrypt(self, x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        left, right = x >> self._half, x & self._low
        with np.errstate(over="ignore"):
            for round_key in self._round_keys:
                left, right = right, left ^ (_mix((round_key ^ right) + U64(_GAMMA)) & self._low)
        return (left << self._half) | right

    def __call__(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Images of `indices` (int64, any shape, each in [0, n)).

        Raises:
            IndexError: an index outside [0, n).
        """
        flat = np.asarray(indices, dtype=np.int64).ravel()
        if flat.size and (flat.min() < 0 or flat.max() >= self.n):
            raise IndexError(f"a permutation of {self.n} has no image of {flat.min()}..{flat.max()}")
        x = self._encrypt(flat.astype(U64))
        outside = x >= U64(self.n)
        while outside.any():
            x[outside] = self._encrypt(x[outside])
            outside = x >= U64(self.n)
        return x.astype(np.int64).reshape(np.shape(indices))
