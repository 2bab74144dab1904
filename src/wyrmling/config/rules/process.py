"""Rules of the table `parallel`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..problems import Problem
from .rulebook import Rulebook

if TYPE_CHECKING:
    from ..schema import Config

BOOK = Rulebook()


@BOOK.rule("one-process", '`parallel.world_size` is 1 when `parallel.mode` is "single".')
def _one_process(config: Config) -> Iterator[Problem]:
    if config.parallel.mode == "single" and config.parallel.world_size != 1:
        yield Problem(
            f'parallel.world_size must be 1 when parallel.mode is "single", got {config.parallel.world_size}',
            ("parallel.world_size",),
        )
