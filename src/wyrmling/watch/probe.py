"""The picture of a probe of the state: losses by distance, and the gain with its interval."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from ..files import write_atomically


class Measured(Protocol):
    """What was measured at one distance; see `training.probing.Distance`."""

    @property
    def upto(self) -> int: ...
    @property
    def live(self) -> float: ...
    @property
    def reset(self) -> float: ...
    @property
    def gain(self) -> float: ...
    @property
    def interval(self) -> float: ...


def write_probe(distances: Sequence[Measured], path: Path) -> Path:
    """Draw into a PNG file, whole or not at all.

    Raises:
        StorageError: the file system refused.
    """
    from matplotlib.figure import Figure  # not pyplot, whose windows and backend are the program's

    figure = Figure(figsize=(7, 6), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    places = [distance.upto for distance in distances]
    above.plot(places, [distance.live for distance in distances], "o-", label="living state")
    above.plot(places, [distance.reset for distance in distances], "s--", label="emptied state")
    above.set_ylabel("nats per token")
    above.legend()
    below.errorbar(
        places,
        [distance.gain for distance in distances],
        yerr=[distance.interval for distance in distances],
        fmt="o-",
        capsize=3,
    )
    below.axhline(0, color="grey", linewidth=0.8)
    below.set_ylabel("gain, 95 % interval")
    below.set_xlabel("tokens since the state was emptied, up to")
    below.set_xscale("log", base=2)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=120)
    write_atomically(path, buffer.getvalue())
    return path
