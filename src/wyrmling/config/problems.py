"""What a broken rule is: what to say, and which keys it ties together."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import ConfigError


@dataclass(frozen=True)
class Problem:
    """A broken rule: what to say, and the keys it ties together (the first that was written is blamed).

    Attributes:
        rule: the name of the rule; filled in when rules are checked.
    """

    text: str
    keys: tuple[str, ...]
    rule: str = ""


class RuleError(ConfigError):
    """A configuration that contradicts itself."""

    def __init__(self, problems: list[Problem]) -> None:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        super().__init__(f"{problems[0].text}{more}")
        self.problems = problems


def at_most(key: str, limit: str, value: float, bound: float) -> Problem:
    """The problem of a key that exceeds another."""
    return Problem(f"{key} must be <= {limit} ({value:g} > {bound:g})", (key, limit))


def exclusive(key: str, other: str) -> Problem:
    """The problem of two keys of which only one may be set."""
    return Problem(f"{key} cannot be combined with {other}", (key, other))


def requires(key: str, needed: str) -> Problem:
    """The problem of a key that needs another."""
    return Problem(f"{key} requires {needed}", (key, needed))
