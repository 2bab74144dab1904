"""Where a run stands: what `progress.json` saves besides tensors, and what the reports are made of."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, fields
from typing import Any, TypeVar

from pydantic import BaseModel, NonNegativeFloat, NonNegativeInt, PositiveInt

from ..checkpoint import Checkpoint
from ..checkpoint.manifest import PROGRESS
from ..errors import CheckpointError
from ..files import check_shape
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
    def of(checkpoint: Checkpoint) -> Progress:
        """Where a run stood when it saved a checkpoint; keys of later versions are ignored.

        Raises:
            CheckpointError: a number that is missing or cannot be, or the progress of another step.
        """
        record, path = checkpoint.progress, checkpoint.path / PROGRESS
        try:
            check_shape(record, _Saved)
            if record["step"] != checkpoint.step:
                raise ValueError(f"it is the progress of step {record['step']}")
            if ((record.get("best") or {}).get("step") or 0) > checkpoint.step:
                raise ValueError(f"best.step is {record['best']['step']}, after its own step")
        except ValueError as error:
            raise CheckpointError(
                f"{path} cannot be gone on from: {error}; resume from another checkpoint, or start a new run from "
                "its weights with training.launch_mode = init_from_checkpoint"
            ) from error
        plain = [name for name in Progress.__dataclass_fields__ if name not in ("best", "window", "reason")]
        known = {name: record[name] for name in plain if name in record}
        return Progress(
            **known,
            best=_known(BestSoFar, record.get("best")),
            window=_known(Window, record.get("window")),
        )


class _SavedBest(BaseModel):
    """What `progress.json` says of the best validation."""

    loss: float | None = None
    step: NonNegativeInt | None = None
    reference: float | None = None
    without_improvement: NonNegativeInt = 0


class _SavedWindow(BaseModel):
    """What `progress.json` says of the steps since the last logged one."""

    loss_sum: NonNegativeFloat = 0.0
    targets: NonNegativeInt = 0
    text_bytes: NonNegativeInt = 0
    textless: NonNegativeInt = 0
    textless_loss_sum: NonNegativeFloat = 0.0
    unmeasured: NonNegativeInt = 0
    neurons_replaced: NonNegativeInt = 0


class _Saved(BaseModel):
    """What `progress.json` holds, as far as a run goes on from it."""

    step: NonNegativeInt
    tokens_seen: NonNegativeInt = 0
    seconds: NonNegativeFloat = 0.0
    loss: float | None = None
    validation_loss: float | None = None
    validation_step: NonNegativeInt | None = None
    validation_due: bool = False
    total_steps: PositiveInt | None = None
    best: _SavedBest | None = None
    window: _SavedWindow | None = None


def _known(kind: type[T], record: dict[str, Any] | None) -> T:
    """An object of a dataclass from those keys of a record that it has."""
    names = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: value for name, value in (record or {}).items() if name in names})
