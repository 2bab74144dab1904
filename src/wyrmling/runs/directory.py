"""The directory of a run: made once, written by one process at a time, found again by name.

runs/
  latest                    text file, the name of the run created last (its path, where it lies in a folder)
  amber-wyvern/
    config.json             what the run is (see `records`)
    training_config.json    the whole configuration, every default filled in
    tokenizer.json
    checkpoint/             see `wyrmling.checkpoint`
    events.jsonl
    .lock                   held by the process that writes
  ablations/                a folder that `run_layout` asks for, with runs of its own
    latest
    silent-otter/
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..checkpoint import checkpoint_path, list_checkpoints
from ..checkpoint.manifest import MANIFEST, read_manifest
from ..config import Config
from ..config.load import recorded_config
from ..config.paths import run_folder, run_root
from ..errors import CheckpointError, ConfigError, StorageError, WyrmlingError
from ..files import (
    SEAL,
    TEMPORARY_NAME,
    TEMPORARY_PREFIX,
    hold_lock,
    make_folder,
    read_regular,
    storage_errors,
    sync_directory,
    temporary_sibling,
    write_name,
)
from . import records
from .environment import RUN_NAME_VARIABLE, given_run
from .names import candidate_names, checked_name

if TYPE_CHECKING:
    from ..text.tokenizers import Tokenizer

LATEST = "latest"

_ABANDONED_SECONDS = 3600


@dataclass(frozen=True)
class RunDirectory:
    """A run on the disk. Making this object touches nothing."""

    path: Path
    name: str

    @property
    def checkpoints(self) -> Path:
        """Root of the checkpoints (it need not exist yet)."""
        return self.path / "checkpoint"

    @property
    def events_path(self) -> Path:
        return self.path / "events.jsonl"

    @property
    def config_json(self) -> Path:
        return self.path / records.RECORD

    @property
    def training_config_path(self) -> Path:
        return self.path / records.TRAINING_CONFIG

    @property
    def tokenizer_path(self) -> Path:
        return self.path / records.TOKENIZER

    def training_config(self) -> Config:
        """The configuration that the run was last started with.

        Raises:
            CheckpointError: the run has none (it never began), or the file is damaged or changed.
            ConfigError: a value that this version does not accept.
        """
        path = self.training_config_path
        try:
            return recorded_config(records.read_json(path, records.ConfigRecord), str(path))
        except CheckpointError as error:
            raise CheckpointError(f"{error}{self._kept_elsewhere()}") from error

    def _kept_elsewhere(self) -> str:
        """How a line about a configuration that cannot be trusted ends: where it is kept, and what differs there."""
        for step in reversed(list_checkpoints(self.checkpoints)):
            with contextlib.suppress(CheckpointError):
                place = checkpoint_path(self.checkpoints, step) / MANIFEST
                saved = read_manifest(place.parent).run
                if saved is None:
                    continue
                edits: list[str] = []
                with contextlib.suppress(OSError, ValueError, RecursionError):
                    there = json.loads(read_regular(self.training_config_path))
                    if isinstance(there, dict):
                        edits = records.changes(saved.config, there, [SEAL])
                since = f", since which {records.listed(edits)[:400]}" if edits else ""
                return f": `run.config` in {place}{since}"
        return ""

    def record(self) -> dict[str, Any]:
        """What `config.json` holds: see `records.build_run_record`.

        Raises:
            CheckpointError: it is missing, damaged or changed.
        """
        return records.read_json(self.config_json, records.RunRecord)

    def tokenizer(self) -> Tokenizer:
        """The run's tokenizer.

        Raises:
            DataError: its file is missing or damaged.
        """
        from ..text.tokenizers import load_tokenizer

        return load_tokenizer(self.tokenizer_path)

    def identity(self) -> tuple[int, int] | None:
        """What tells the run's folder from another that takes its name; None when it is gone, or no run any more."""
        try:
            status = self.path.stat()
        except OSError:
            return None
        return (status.st_dev, status.st_ino) if self.config_json.is_file() else None

    def write_records(self, config: Config, tokenizer: Tokenizer, record: Mapping[str, Any]) -> None:
        """Write what a new run is; `config.json` comes last, so that with it all is there.

        Raises:
            StorageError: the file system refused.
        """
        records.write_records(self.path, config, tokenizer, record)

    def write_training_config(self, config: Config) -> None:
        """Replace the configuration of a run that goes on with changed settings.

        Raises:
            StorageError: the file system refused.
        """
        records.write_training_config(self.path, config)

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Be the only process that writes this run. The lock goes with the process, however that ends.

        Raises:
            CheckpointError: another process holds it.
            StorageError: the file system refused.
        """
        with locked(self.path):
            yield


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Be the only process that writes a folder; see `RunDirectory.lock`."""

    def refuse(holder: str) -> None:
        raise CheckpointError(
            f"{folder} is being written by {holder}; wait for it, stop it, or start a new run"
        )

    with hold_lock(folder / ".lock", refuse):
        yield


Fill = Callable[["RunDirectory"], None]


def create_run(config: Config, fill: Fill | None = None) -> RunDirectory:
    """Make the directory of a new run, and let `latest` name it.

    The directory is filled under a temporary name and renamed: a process killed at any instant leaves a whole run or
    none.

    Directory and name are those of WYRMLING_RUN_DIR and WYRMLING_RUN_NAME, else `run_layout.name` in the folder of
    `run_layout`, else a new random name there.

    Args:
        fill: writes what the run has from its first instant (its records); called with the run's name and a
            temporary path.

    Raises:
        ConfigError: the run exists already, its folder lies inside another run, the variables are incomplete or
            contradict the configuration.
        StorageError: the file system refused.
    """
    place = _fixed_place(config)
    if place is not None:
        path, name, root = place
        try:
            return _create(path, name, fill, root)
        except _Taken:
            raise _taken(path) from None
    root, folder = run_root(config), run_folder(config)
    for name in candidate_names():
        with contextlib.suppress(_Taken):
            return _create(folder / name, name, fill, root)
    raise StorageError(f"no name for a new run is free in {folder}: give one with run_layout.name")


def refuse_taken(config: Config) -> None:
    """Raise what `create_run` would say of the place of a new run, before any work is done for it.

    Raises:
        ConfigError: as `create_run`.
    """
    place = _fixed_place(config)
    if place is not None and os.path.lexists(place[0]):
        raise _taken(place[0])


def open_run(path: Path) -> RunDirectory:
    """A run that exists, under the name it was given."""
    try:
        name = records.read_json(path / records.RECORD).get("run_name")
    except CheckpointError:
        name = None
    return RunDirectory(path, name if isinstance(name, str) else path.resolve().name)


def is_run(path: Path) -> bool:
    """Whether a directory is a run, whole or not; one that cannot be looked into is none."""
    marks = (records.RECORD, records.TRAINING_CONFIG, "events.jsonl")
    return any(os.path.isfile(path / mark) for mark in marks) or os.path.isdir(path / "checkpoint")


def _refuse_inside_a_run(folder: Path, root: Path) -> None:
    """Raises ConfigError when a folder that `run_layout` asks for is a run, or lies in one."""
    for place in (folder, *folder.parents):
        if place == root:
            return
        if is_run(place):
            raise ConfigError(
                f"run_layout puts the run into {folder}, but {place} is a run itself; choose another "
                "run_layout.category"
            )


def _fixed_place(config: Config) -> tuple[Path, str, Path] | None:
    """Directory, name and root of a new run that is told where to lie; None where a name is made up."""
    given, wanted = given_run(), config.run_layout.name
    if given is not None:
        path, name = given
        if wanted is not None and wanted != name:
            raise ConfigError(
                f"{RUN_NAME_VARIABLE} is {name} and run_layout.name is {wanted}; unset one of them"
            )
        return path, name, path.parent
    root, folder = run_root(config), run_folder(config)
    _refuse_inside_a_run(folder, root)
    if wanted is None:
        return None
    return folder / checked_name(wanted, "run_layout.name"), wanted, root


def _taken(path: Path) -> WyrmlingError:
    if not path.is_dir():
        return StorageError(f"{path} is not a folder and none can be made there; choose another name")
    return ConfigError(
        f"{path} exists already, and a new run would write over it; choose another name, or go on with it "
        "(training.launch_mode = resume_exact_run)"
    )


class _Taken(Exception):
    """Something has the name of the new run already."""


def _create(path: Path, name: str, fill: Fill | None, root: Path) -> RunDirectory:
    make_folder(path.parent, "choose another folder for the runs")
    with storage_errors(path):
        _sweep(path.parent)
        _fill_and_claim(path, name, fill)
        for folder in path.parents:
            sync_directory(folder)
            if folder == root:
                break
    write_name(path.parent / LATEST, path.name)
    if path.parent != root:
        write_name(root / LATEST, path.relative_to(root).as_posix())
    return RunDirectory(path, name)


def _fill_and_claim(path: Path, name: str, fill: Fill | None) -> None:
    """Fill a directory, then give it its name; of two processes that want one name, one gets it.

    Raises:
        _Taken: the other one did (a directory that is not empty cannot be renamed over).
    """
    if os.path.lexists(path):
        raise _Taken
    temporary = temporary_sibling(path)
    try:
        if fill is None:
            path.mkdir()
            return
        temporary.mkdir()
        fill(RunDirectory(temporary, name))
        sync_directory(temporary)
        os.rename(temporary, path)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR) and os.path.lexists(path):
            raise _Taken from error
        raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _sweep(root: Path) -> None:
    """Remove what processes that were killed while they made a run left here, when it is surely theirs no more.

    The folder may be anybody's: only what looks like a run that was begun is taken, an hour after its last write.
    """
    for entry in root.glob(f"{TEMPORARY_PREFIX}*"):
        with contextlib.suppress(OSError):
            begun = entry.is_dir() and TEMPORARY_NAME.fullmatch(entry.name) and _is_begun(entry)
            if begun and time.time() - _last_write(entry) > _ABANDONED_SECONDS:
                shutil.rmtree(entry, ignore_errors=True)


def _is_begun(path: Path) -> bool:
    """Whether a directory holds nothing but what a run has from its first instant, or a part of it."""
    own = {records.RECORD, records.TRAINING_CONFIG, records.TOKENIZER, "checkpoint"}
    return all(entry.name in own or entry.suffix == ".json" for entry in path.iterdir())


def _last_write(path: Path) -> float:
    """When something in a directory was written last."""
    return max(entry.stat().st_mtime for entry in (path, *path.rglob("*")))
