"""What became of every tensor of a warm start."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

KEPT = "kept"
_CONSTANT = ("rope_theta", "alibi_slopes")


@dataclass
class Fates:
    """What happens to tensors, in order, by name."""

    steps: dict[str, list[str]] = field(default_factory=dict)

    def add(self, name: str, what: str) -> None:
        """One more step of a tensor."""
        self.steps.setdefault(name, []).append(what)

    def begin(self, name: str, what: str) -> None:
        """A new beginning: what happened before no longer counts."""
        self.steps[name] = [what]

    def text(self, name: str) -> str:
        """All steps of a tensor; "kept" where there were none."""
        return ", then ".join(self.steps.get(name, [])) or KEPT


@dataclass(frozen=True)
class TransferReport:
    """What a new run took from where.

    Attributes:
        sources: facts about the checkpoints, for the file.
        options: the keys of `training.init_transfer` that were set.
        vocabulary: how the tokens were found, or None where nothing was mapped.
        growth: what grew, or "".
        settings: `key: old -> new` for the settings of the model that differ.
        fates: (name, shape, what happened) of every tensor.
    """

    sources: dict[str, Any]
    options: dict[str, Any]
    vocabulary: str | None
    growth: str
    settings: tuple[str, ...]
    fates: tuple[tuple[str, tuple[int, ...], str], ...]

    def lines(self) -> list[str]:
        """The table in a few lines: tensors with the same fate stand together."""
        groups: dict[str, list[str]] = {}
        for name, _, fate in self.fates:
            groups.setdefault(fate, []).append(name)
        lines = [f"{fate}: {_listed(names, len(self.fates))}" for fate, names in groups.items()]
        if self.vocabulary is not None:
            lines.append(f"tokens: {self.vocabulary}")
        if self.settings:
            lines.append(f"settings of the model that differ: {'; '.join(self.settings)}")
        return lines

    def to_json(self) -> dict[str, Any]:
        """The whole table."""
        return {
            **self.sources,
            "init_transfer": self.options,
            "vocabulary": self.vocabulary,
            "growth": self.growth or None,
            "settings": list(self.settings),
            "tensors": [
                {"name": name, "shape": list(shape), "fate": fate} for name, shape, fate in self.fates
            ],
        }


def _listed(names: Sequence[str], total: int) -> str:
    return f"all {total} tensors" if len(names) == total else ", ".join(names)


def settings_that_differ(old: dict[str, Any], new: dict[str, Any], prefix: str = "model") -> Iterable[str]:
    """`key: old -> new` for every setting with another value; executors compute the same and do not count."""
    for key in sorted({*old, *new}):
        one, other, name = old.get(key), new.get(key), f"{prefix}.{key}"
        if isinstance(one, dict) and isinstance(other, dict):
            yield from settings_that_differ(one, other, name)
        elif one != other and key != "executor":
            kept = " (the weights keep theirs)" if key in _CONSTANT else ""
            yield f"{name}: {one} -> {other}{kept}"
