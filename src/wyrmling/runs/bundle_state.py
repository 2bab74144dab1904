"""`bundle_state.json`: how far a bundle has got, and with which configuration each of its stages began.

Written whole before a stage begins and after it has ended, never in between: what happens inside a stage is told by
the stage's own run.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, PositiveInt

from ..errors import CheckpointError
from ..files import sealed, write_json_atomically
from .records import read_json

FILE = "bundle_state.json"
VERSION = 1

Status = Literal["pending", "running", "interrupted", "failed", "completed"]


@dataclass
class StageRecord:
    """One stage.

    Attributes:
        run: its directory, relative to the bundle's folder; None before it has begun.
        config: the configuration it was last started with (`Config.to_dict`); None before it has begun.
        init: what it began from: the names of stage and checkpoint (`latest`, `best`) and the step that this was;
            None: new weights, or those that its configuration names.
        began, ended: times in UTC, ISO 8601.
        step: optimizer steps done when it ended.
        error: why it failed, one line.
    """

    name: str
    status: Status = "pending"
    run: str | None = None
    config: dict[str, Any] | None = None
    init: dict[str, Any] | None = None
    began: str | None = None
    ended: str | None = None
    step: int | None = None
    error: str | None = None

    def begin(self, run: str, config: dict[str, Any], init: dict[str, Any] | None) -> None:
        """It is about to run."""
        self.status, self.run, self.config, self.init = "running", run, config, init
        self.began, self.ended, self.error = self.began or _now(), None, None

    def end(self, status: Status, step: int | None = None, error: str | None = None) -> None:
        """It has stopped running."""
        self.status, self.ended, self.error = status, _now(), error
        self.step = self.step if step is None else step


@dataclass
class BundleState:
    """All stages that ever were part of a bundle, in the order of its file, those that it has lost at the end."""

    name: str
    stages: list[StageRecord] = field(default_factory=list)

    def stage(self, name: str) -> StageRecord:
        """The record of a stage; a new one where there is none yet."""
        for record in self.stages:
            if record.name == name:
                return record
        self.stages.append(StageRecord(name))
        return self.stages[-1]

    def arrange(self, names: Iterable[str]) -> None:
        """Bring the records into the order of the file, with new ones for new stages."""
        first = [self.stage(name) for name in names]
        self.stages = [*first, *(record for record in self.stages if record not in first)]

    def write(self, folder: Path) -> None:
        """Replace the file in the bundle's folder.

        Raises:
            StorageError: the file system refused; the old state is untouched.
        """
        completed = [record.name for record in self.stages if record.status == "completed"]
        document = {
            "version": VERSION,
            "bundle_name": self.name,
            "latest_completed_stage": completed[-1] if completed else None,
            "stages": [asdict(record) for record in self.stages],
        }
        write_json_atomically(folder / FILE, sealed(document))


def read_bundle_state(folder: Path) -> BundleState | None:
    """The state in a bundle's folder; None when there is none yet.

    Raises:
        CheckpointError: the file is damaged or changed, or is of a later version.
    """
    path = folder / FILE
    if not os.path.lexists(path):
        return None
    document = read_json(path)
    version = document.get("version")
    if isinstance(version, int) and version > VERSION:
        raise CheckpointError(f"{path} was written by a later version of wyrmling: use that one")
    document = read_json(path, _Document)
    known = {item.name for item in fields(StageRecord)}
    stages = [
        StageRecord(**{key: value for key, value in record.items() if key in known})
        for record in document["stages"]
    ]
    return BundleState(document["bundle_name"], stages)


class _Document(BaseModel):
    """The shape of the file, in this version."""

    version: PositiveInt
    bundle_name: str
    stages: list[StageRecord]


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
