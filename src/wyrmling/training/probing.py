"""Does memory help? The same weights score the same tokens, with a living state and with one that was emptied.

Both read the text in order. Every `period` tokens the second state is emptied; the first never is. The tokens after
such a point are grouped by their distance from it: 1 .. 64, 65 .. 128, 129 .. 256 and so on. The difference of the two
losses is what the tokens before the point are worth, at that distance. Segments (from one point to the next) are taken
as independent: their spread gives the interval. Where a run reads documents apart, so does the probe: both states are
new where a document begins, and distances count from there.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch

from ..data.order import IGNORED
from ..data.store import Split
from ..data.streams import Documents
from ..errors import ConfigError, DataError
from ..generation.mode import evaluating
from ..model import Model, State
from .evaluation import continued, read_side_by_side, shares
from .machine import Machine

NEAREST, FARTHEST = 64, 65536
SEGMENTS = 32  # wanted at least, for an interval that means something
NORMAL = 1.96  # half a 95 % interval, in standard errors


@dataclass(frozen=True)
class Distance:
    """Tokens at a distance of more than `after` and at most `upto` from the point where a state was emptied.

    Attributes:
        tokens: how many were scored.
        live, reset: nats per token with the living and with the emptied state.
        gain: mean over segments of reset - live.
        interval: half of its 95 % interval; NaN with a single segment.
    """

    after: int
    upto: int
    tokens: int
    live: float
    reset: float
    gain: float
    interval: float


def edges(period: int) -> list[int]:
    """0, 64, 128, 256 .. period."""
    found = [0]
    while found[-1] < period:
        found.append(min(max(NEAREST, 2 * found[-1]), period))
    return found


def longest_period(targets: npt.NDArray[np.int64]) -> int:
    """Tokens between two points: the largest power of two that leaves `SEGMENTS` segments, within the limits.

    The first segment of a stretch is not counted: there both states are equally new.

    Args:
        targets: of each stretch that is read from an empty state, int64 [stretches].
    """
    period = FARTHEST
    while period > NEAREST and int(np.maximum(targets // period - 1, 0).sum()) < SEGMENTS:
        period //= 2
    return period


def probe_state(
    model: Model,
    split: Split,
    machine: Machine,
    *,
    rows: int,
    period: int | None = None,
    documents: Documents | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[Distance]:
    """Score a split twice, side by side.

    Args:
        rows: shares of the split, or documents, that are read side by side.
        period: tokens between two points where the second state is emptied; default `longest_period`.
        documents: what is read apart; None reads the split as one text.
        progress: told of targets done and in all.
    Raises:
        ConfigError: a period that is no multiple of 64.
        DataError: a split that has no room for two segments in a row.
    """
    stretches = shares(len(split), NEAREST, rows) if documents is None else documents
    length = period or longest_period(stretches.targets)
    if length % NEAREST:
        raise ConfigError(f"a state is emptied after a multiple of {NEAREST} tokens, not after {length}")
    if stretches.targets.max() < 2 * length:
        where, advice = f"{len(split) - 1:,} tokens in {rows} rows", "fewer rows, or a longer text"
        if documents is not None:
            where = f"{len(documents):,} documents of up to {documents.targets.max() + 1:,} tokens"
            advice = "longer documents" if length == NEAREST else "a smaller --probe-length"
        raise DataError(
            f"{split.where}: {where} hold no two stretches of {length:,} tokens; probe with {advice}"
        )
    stretches = stretches.take(np.flatnonzero(stretches.targets > length))
    borders = edges(length)
    sums, total = _Sums(len(borders) - 1), int(stretches.targets.sum())
    done = at = segment = 0
    live: State | None = None
    emptied: State | None = None
    with evaluating(model):
        for number, reading in enumerate(read_side_by_side(split, stretches, NEAREST, rows)):
            at = 0 if reading.first else at + NEAREST
            tokens, wanted = reading.tokens.to(machine.device), reading.targets.to(machine.device)
            live = continued(live, reading)
            emptied = continued(emptied, reading) if at % length else None
            segment = number if at % length == 0 else segment
            with machine.autocast():
                hidden, live = model(tokens, live)
                one = model.token_losses(hidden, wanted)
                hidden, emptied = model(tokens, emptied)
                other = model.token_losses(hidden, wanted)
            counted = (wanted != IGNORED).sum(1)
            if at >= length:
                place = next(i for i, end in enumerate(borders[1:]) if at % length < end)
                sums.add(segment, place, one.sum(1), other.sum(1), counted)
            done += int(counted.sum())
            if progress is not None:
                progress(done, total)
    return sums.distances(borders)


class _Sums:
    """Losses by segment, row and distance."""

    def __init__(self, bins: int) -> None:
        self._bins = bins
        self._found: dict[tuple[int, int], np.ndarray] = {}  # (segment, row) -> [bins, 3]

    def add(
        self, segment: int, place: int, live: torch.Tensor, reset: torch.Tensor, counted: torch.Tensor
    ) -> None:
        """One block of a segment of R rows: losses [R] summed over its tokens, and how many of them count."""
        table = torch.stack([live.double(), reset.double(), counted.double()], dim=1).cpu().numpy()
        for row, numbers in enumerate(table):
            self._found.setdefault((segment, row), np.zeros((self._bins, 3)))[place] += numbers

    def distances(self, borders: list[int]) -> list[Distance]:
        """One `Distance` per pair of borders; segments without a token there are left out."""
        table = np.stack(list(self._found.values()))  # [segments, bins, 3]
        result = []
        for place, (after, upto) in enumerate(pairwise(borders)):
            own = table[table[:, place, 2] > 0, place]
            if not len(own):
                continue
            live, reset, tokens = own.sum(0)
            gains = (own[:, 1] - own[:, 0]) / own[:, 2]
            error = gains.std(ddof=1) / math.sqrt(len(own)) if len(own) > 1 else math.nan
            result.append(
                Distance(
                    after,
                    upto,
                    int(tokens),
                    live / tokens,
                    reset / tokens,
                    float(gains.mean()),
                    float(NORMAL * error),
                )
            )
        return result
