"""From scores to a token.

Everything is computed in float64 on the CPU, so a seed gives the same tokens wherever the same scores come
from. The random number of a token is a function of (seed, row, position) and of nothing else: the other
rows of a batch, or a pause to save a conversation, cannot change a row's text.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ..errors import DivergedError
from ..numerics.keyed import U64, hash_key
from .settings import SamplingSettings

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


def draws(seed: int, rows: Sequence[int], positions: Sequence[int]) -> Floats:
    """Uniform numbers in [0, 1), one per row: functions of (seed, row, position), 53 random bits each."""
    hashes = hash_key("sample", seed, np.asarray(rows, np.int64), np.asarray(positions, np.int64))
    return (hashes >> U64(11)).astype(np.float64) * 2.0**-53


def sample(scores: Floats, settings: SamplingSettings, uniform: Floats) -> Integers:
    """Draw one token per row.

    Args:
        scores: logits [R, V]; -inf excludes a token.
        uniform: numbers in [0, 1) [R], as from `draws`; not looked at when the temperature is 0.
    Returns: token ids int64 [R].
    Raises:
        DivergedError: a row with NaN or +inf, or without any finite score.
    """
    return np.asarray(
        [_sample_row(row, settings, float(u)) for row, u in zip(scores, uniform, strict=True)], np.int64
    )


def probabilities(scores: Floats, settings: SamplingSettings) -> Floats:
    """What the tokens of one row are drawn with: float64 [V], sums to 1, after temperature, top_k and top_p.

    Of equal scores the lower id counts as the likelier, so exactly k tokens survive top_k. top_p looks at the
    probabilities that top_k has left.
    """
    _check(scores)
    if settings.temperature == 0:
        return np.eye(1, len(scores), int(np.argmax(scores)))[0]
    with np.errstate(over="ignore"):  # a tiny temperature: -inf is the right limit
        weights = np.exp((scores - scores.max()) / settings.temperature)
    if settings.top_k is not None and settings.top_k < len(weights):
        weights = np.where(_largest(scores, settings.top_k), weights, 0.0)
    weights = weights / weights.sum()
    if settings.top_p is not None and settings.top_p < 1:
        weights = np.where(_nucleus(weights, settings.top_p), weights, 0.0)
        weights = weights / weights.sum()
    return weights


def _sample_row(scores: Floats, settings: SamplingSettings, u: float) -> int:
    if settings.temperature == 0:
        _check(scores)
        return int(np.argmax(scores))
    cumulative = np.cumsum(probabilities(scores, settings))
    # the first token whose cumulative probability exceeds u: never one of probability 0
    return int(np.searchsorted(cumulative, u * cumulative[-1], side="right"))


def _check(scores: Floats) -> None:
    if not len(scores):
        raise ValueError("there are no tokens to choose from")
    best = scores.max()
    if np.isfinite(best):
        return
    found = "NaN" if np.isnan(best) else "infinity" if best > 0 else "no token that is possible"
    raise DivergedError(
        f"the model's scores for the next token hold {found}: its weights are damaged or its training "
        "diverged; use an earlier checkpoint"
    )


def _largest(scores: Floats, k: int) -> npt.NDArray[np.bool_]:
    """The k largest; of equal ones at the border those with the lowest ids."""
    threshold = np.partition(scores, len(scores) - k)[len(scores) - k]
    kept = scores > threshold
    tied = np.flatnonzero(scores == threshold)
    kept[tied[: k - int(kept.sum())]] = True
    return kept


def _nucleus(weights: Floats, p: float) -> npt.NDArray[np.bool_]:
    """The fewest likeliest tokens whose probabilities reach p; at least one."""
    order = np.argsort(-weights, kind="stable")
    before = np.concatenate([[0.0], np.cumsum(weights[order])[:-1]])
    kept = np.zeros(len(weights), dtype=np.bool_)
    kept[order[before < p]] = True
    return kept
