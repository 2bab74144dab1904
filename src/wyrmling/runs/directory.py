"""The directory of a run: made once, written by one process at a time, found again by name.

runs/
  latest                    text file, the name of the run created last
  amber-wyvern/
    config.json             what the run is (see `records`)
    training_config.json    the whole configuration, every default filled in
    tokenizer.json
    checkpoint/             see `wyrmling.checkpoint`
    events.jsonl
    .lock                   held by the process that writes
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config import Config
from ..config.paths import run_root
from ..errors import CheckpointError, ConfigError
from ..files import TEMPORARY_PREFIX, storage_errors, sync_directory, temporary_sibling, write_atomically
from . import records
from .environment import RUN_NAME_VARIABLE, given_run
from .names import candidate_names, checked_name

if TYPE_CHECKING:
    from ..text.tokenizers import Tokenizer

LATEST = "latest"

_SHOWN = 5
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
            CheckpointError: the run has none (it never began), or the file does not parse.
            ConfigError: a value that this version does not accept.
        """
        return Config.from_dict(records.read_json(self.training_config_path), str(self.training_config_path))

    def record(self) -> dict[str, Any]:
        """What `config.json` holds: see `records.build_run_record`.

        Raises:
            CheckpointError: it is missing or does not parse.
        """
        return records.read_json(self.config_json)

    def tokenizer(self) -> Tokenizer:
        """The run's tokenizer.

        Raises:
            DataError: its file is missing or damaged.
        """
        from ..text.tokenizers import load_tokenizer

        return load_tokenizer(self.tokenizer_path)

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
        from filelock import FileLock, Timeout

        lock = FileLock(str(self.path / ".lock"))
        try:
            with storage_errors(self.path):
                lock.acquire(timeout=0)
        except Timeout:
            raise CheckpointError(
                f"{self.path} is being written by another process; wait for it, stop it, or start a new run"
            ) from None
        try:
            yield
        finally:
            lock.release()


Fill = Callable[["RunDirectory"], None]


def create_run(config: Config, fill: Fill | None = None) -> RunDirectory:
    """Make the directory of a new run, and let `latest` name it.

    The directory is filled under a temporary name and renamed: a process killed at any instant leaves a whole run or
    none.

    Directory and name are those of WYRMLING_RUN_DIR and WYRMLING_RUN_NAME, else `run_layout.name` under the run root,
    else a new random name.

    Args:
        fill: writes what the run has from its first instant (its records); called with the run's name and a
            temporary path.

    Raises:
        ConfigError: the run exists already, the variables are incomplete or contradict the configuration.
        StorageError: the file system refused.
    """
    given, wanted = given_run(), config.run_layout.name
    if given is not None:
        path, name = given
        if wanted is not None and wanted != name:
            raise ConfigError(
                f"{RUN_NAME_VARIABLE} is {name} and run_layout.name is {wanted}; unset one of them"
            )
        return _claimed(path, name, fill)
    root = run_root(config)
    if wanted is not None:
        return _claimed(root / checked_name(wanted, "run_layout.name"), wanted, fill)
    for name in candidate_names():
        with contextlib.suppress(FileExistsError):
            return _create(root / name, name, fill)
    raise AssertionError("candidate names do not end")


def latest_run(root: Path) -> RunDirectory | None:
    """The run that `latest` names; None when there is no pointer or the run is gone."""
    name = _read_latest(root)
    return _open(root / name) if name and _is_run(root / name) else None


def find_run(wanted: str | Path, root: Path | None = None) -> RunDirectory:
    """The run with a name, the run in a directory (or around a checkpoint), or "latest".

    Args:
        root: folder of the runs; None: WYRMLING_RUN_ROOT, else `runs`.

    Raises:
        CheckpointError: there is none; the line names the runs that come nearest.
    """
    root = run_root(Config()) if root is None else root
    text = str(wanted)
    if text == LATEST:
        return _find_latest(root)
    for candidate in (root / text, Path(text).expanduser()):
        path = _run_around(candidate)
        if path is not None:
            return _open(path)
    raise CheckpointError(f"there is no run {text!r} in {root}; {_nearest(text, root)}")


def run_names(root: Path) -> list[str]:
    """Names of the runs in a folder, the one created last at the end."""
    if not root.is_dir():
        return []
    runs = [path for path in root.iterdir() if _is_run(path)]
    return [path.name for path in sorted(runs, key=lambda path: (path.stat().st_mtime, path.name))]


def _claimed(path: Path, name: str, fill: Fill | None) -> RunDirectory:
    """A run at a place that was asked for."""
    try:
        return _create(path, name, fill)
    except FileExistsError:
        raise ConfigError(
            f"{path} exists already, and a new run would write over it; choose another name, or go on with it "
            "(training.launch_mode = resume_exact_run)"
        ) from None


def _create(path: Path, name: str, fill: Fill | None) -> RunDirectory:
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        _sweep(path.parent)
        if fill is None:
            path.mkdir()
        else:
            _fill_and_claim(path, name, fill)
        sync_directory(path.parent)
    write_atomically(path.parent / LATEST, path.name + "\n")
    return RunDirectory(path, name)


def _fill_and_claim(path: Path, name: str, fill: Fill) -> None:
    """Fill a directory, then give it its name; of two processes that want one name, one gets it.

    Raises:
        FileExistsError: the other one did (a directory that is not empty cannot be renamed over).
    """
    if path.exists():
        raise FileExistsError(path)
    temporary = temporary_sibling(path)
    try:
        temporary.mkdir()
        fill(RunDirectory(temporary, name))
        sync_directory(temporary)
        os.rename(temporary, path)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST) and path.exists():
            raise FileExistsError(path) from error
        raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _sweep(root: Path) -> None:
    """Remove what processes that were killed while they made a run left here, when it is surely theirs no more."""
    for entry in root.glob(f"{TEMPORARY_PREFIX}*"):
        with contextlib.suppress(OSError):
            if entry.is_dir() and time.time() - entry.stat().st_mtime > _ABANDONED_SECONDS:
                shutil.rmtree(entry, ignore_errors=True)


def _open(path: Path) -> RunDirectory:
    """A run that exists, under the name it was given."""
    try:
        name = records.read_json(path / records.RECORD).get("run_name")
    except CheckpointError:
        name = None
    return RunDirectory(path, name if isinstance(name, str) else path.resolve().name)


def _is_run(path: Path) -> bool:
    marks = (records.RECORD, records.TRAINING_CONFIG, "events.jsonl")
    return any((path / mark).is_file() for mark in marks) or (path / "checkpoint").is_dir()


def _run_around(path: Path) -> Path | None:
    """The run that a directory is, or of whose checkpoints it is the folder, or one of them."""
    if _is_run(path):
        return path
    for inner in (path, path.parent):
        if inner.name == "checkpoint" and path.is_dir() and _is_run(inner.parent):
            return inner.parent
    return None


def _find_latest(root: Path) -> RunDirectory:
    name = _read_latest(root)
    if not name:
        raise CheckpointError(f"there is no latest run in {root}; {_nearest('', root)}")
    if not _is_run(root / name):
        raise CheckpointError(
            f"{root / LATEST} names {name!r}, which is not a run there; {_nearest(name, root)}"
        )
    return _open(root / name)


def _read_latest(root: Path) -> str | None:
    try:
        return (root / LATEST).read_text(encoding="utf-8", errors="replace").strip() or None
    except OSError:
        return None


def _nearest(wanted: str, root: Path) -> str:
    names = run_names(root)
    if not names:
        return "there are no runs yet: `wyrmling train` makes one"
    near = difflib.get_close_matches(Path(wanted).name, names, n=_SHOWN, cutoff=0.5)
    return f"did you mean {', '.join(near)}?" if near else f"there are {', '.join(names[: -_SHOWN - 1 : -1])}"
