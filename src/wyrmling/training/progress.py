"""Where a run stands: what `progress.json` saves besides tensors, and what the reports are made of."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, fields
from typing import Any, TypeVar

from .evaluation import Tally
from .stopping import BestSoFar

T = TypeVar("T")
FINISHED = "finished"
EARLY = "early stopping"


@dataclass
class Window(Tally):
    """Sums over the steps since the last logged one. Saved too, so that a resumed run logs the same losses."""

    neurons_replaced: int = 0


@dataclass
class Progress:
    """What a checkpoint remembers besides tensors, and what the reports are made of."""

    step: int = 0
    tokens_seen: int = 0
    seconds: float = 0.0
    loss: float | None = None
    validation_loss: float | None = None
    validation_step: int | None = None
    best: BestSoFar = field(default_factory=BestSoFar)
    window: Window = field(default_factory=lambda: Window())
    validation_due: bool = False
    reason: str | None = None

    def to_json(self, total_steps: int) -> dict[str, Any]:
        """The content of `progress.json`."""
        for name in ("loss_sum", "textless_loss_sum"):
            setattr(self.window, name, float(getattr(self.window, name)))
        record = {**asdict(self), "total_steps": total_steps, "finished": self.reason in (FINISHED, EARLY)}
        for name in ("loss", "validation_loss"):  # JSON has no NaN
            if record[name] is not None and not math.isfinite(record[name]):
                record[name] = None
        return record

    @staticmethod
    def from_json(record: dict[str, Any]) -> Progress:
        """From `progress.json`; keys of later versions are ignored."""
        plain = [name for name in Progress.__dataclass_fields__ if name not in ("best", "window", "reason")]
        known = {name: record[name] for name in plain if name in record}
        return Progress(
            **known,
            best=_known(BestSoFar, record.get("best")),
            window=_known(Window, record.get("window")),
        )


def _known(kind: type[T], record: dict[str, Any] | None) -> T:
    """An object of a dataclass from those keys of a record that it has."""
    names = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: value for name, value in (record or {}).items() if name in names})
