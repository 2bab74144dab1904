"""Who watches a command that trains."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..watch.console import ConsoleReporter
    from ..watch.events import Callback


@contextlib.contextmanager
def watchers(track: bool) -> Iterator[tuple[ConsoleReporter, list[Callback]]]:
    """The console, and all that watch: it, and with `track` the writer of TensorBoard files. Closed at the end."""
    from ..watch.console import ConsoleReporter

    console = ConsoleReporter()
    callbacks: list[Callback] = [console]
    if track:
        from ..watch.tensorboard import TensorBoardWriter

        callbacks.append(TensorBoardWriter())
    try:
        yield console, callbacks
    finally:
        console.close()
