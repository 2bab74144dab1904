"""What a rule is: a name, one line that says what must hold, and a function that finds where it does not.

Each module of rules has a `Rulebook`; `rules` puts them together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..problems import Problem

if TYPE_CHECKING:
    from ..schema import Config

Find = Callable[["Config"], Iterator[Problem]]


@dataclass(frozen=True)
class Rule:
    """One rule.

    Attributes:
        name: short, for pages and tests.
        text: what must hold, in one line of Markdown.
        broken: every way in which a configuration breaks it.
    """

    name: str
    text: str
    broken: Find


class Rulebook:
    """The rules of one part of the configuration, in the order in which they are told."""

    def __init__(self) -> None:
        self._rules: list[Rule] = []

    def __iter__(self) -> Iterator[Rule]:
        return iter(self._rules)

    def rule(self, name: str, text: str) -> Callable[[Find], Find]:
        """Enter the decorated function as a rule."""

        def enter(find: Find) -> Find:
            self._rules.append(Rule(name, text, find))
            return find

        return enter
