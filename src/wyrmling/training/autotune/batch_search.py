"""The largest micro-batch that fits: a search over row counts, as pure functions.

What a step needs grows with its rows. So the search doubles from the smallest number until one does not fit or the
largest is reached, then halves the gap between the last that fits and the first that does not.
"""

from __future__ import annotations

from collections.abc import Callable

from ...config.rules import resolve_gradient_accumulation


def candidates(low: int, high: int) -> list[int]:
    """low, twice that, and so on below `high`, and `high` itself: 4 to 20 gives 4, 8, 16, 20."""
    found = []
    while low < high:
        found.append(low)
        low *= 2
    return [*found, high]


def largest_fitting(low: int, high: int, fits: Callable[[int], bool], *, bisect: bool) -> int | None:
    """The largest number from `low` to `high` that fits, as far as it was looked for; None when `low` does not.

    Args:
        fits: asked at most once about a number; where it says no, it is taken to say no about everything above.
        bisect: look between two candidates too; without it the answer is one of `candidates`.
    """
    best, limit = None, high + 1
    for rows in candidates(low, high):
        if not fits(rows):
            limit = rows
            break
        best = rows
    if best is None or not bisect:
        return best
    while limit - best > 1:
        middle = best + (limit - best) // 2
        if fits(middle):
            best = middle
        else:
            limit = middle
    return best


def nearest_to_target(rows: int, low: int, target: int | None) -> int:
    """The number of rows that comes nearest to the target with no more micro-batches than `rows` would take.

    21 rows of 64 take 4 micro-batches and make 84; 16 rows take 4 as well, and make 64. No target changes nothing.

    Args:
        low: the smallest number allowed.
    """
    if target is None:
        return rows
    return max(low, -(-target // resolve_gradient_accumulation(rows, 1, target)))


def bounds(batch: int, low: int, high: int | None, target: int | None) -> tuple[int, int]:
    """The smallest and the largest number of rows to try.

    Args:
        batch: `training.batch_size`, the largest where nothing else says so.
        low, high: as configured.
        target: rows wanted in an optimizer step; a micro-batch is never larger.
    """
    top = high or target or batch
    if target is not None:
        top = min(top, target)
    return low, max(low, top)
