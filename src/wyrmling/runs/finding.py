"""Runs, found again under what a person would type: a name, a folder, a checkpoint, `latest`."""

from __future__ import annotations

import contextlib
import difflib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from ..config import Config
from ..config.paths import run_root
from ..config.rules.layout import is_folder_name
from ..errors import CheckpointError, ConfigError, StorageError
from ..files import TEMPORARY_PREFIX, read_name, refusal
from . import records
from .directory import LATEST, RunDirectory, is_run, open_run
from .environment import given_run

_SHOWN = 5
_DEEPEST = 20
"""Folders between the root and a run, at most: more than `run_layout` can ask for."""


def latest_run(root: Path) -> RunDirectory | None:
    """The run that `latest` names; None when there is no pointer or the run is gone."""
    named = _named_by_latest(root)
    return open_run(root / named) if named and _is_run_below(root, named) else None


def newest_in(folder: Path) -> RunDirectory | None:
    """The newest run of those that lie in a folder itself; `latest` may name one in a folder below it."""
    latest = latest_run(folder)
    if latest is None or latest.path.parent == folder:
        return latest
    own = [folder / name for name in run_names(folder) if "/" not in name]
    own.sort(key=_created)  # a folder's own time changes with every file that is put into it
    return open_run(own[-1]) if own else None


def find_run(wanted: str | Path, root: Path | None = None) -> RunDirectory:
    """The run with a name, the run in a directory (or around a checkpoint), or "latest".

    A name is looked for in the root first, then in all folders below it that `run_layout` can have made; the end of a
    path (`short/curriculum-short`) is understood too, and the name that a run was given where its folder has another
    one, there or at WYRMLING_RUN_DIR.

    Args:
        root: folder of the runs; None: WYRMLING_RUN_ROOT, else `runs`.

    Raises:
        CheckpointError: there is none (the line names the runs that come nearest), or several in different folders.
    """
    root = run_root(Config()) if root is None else root
    text = str(wanted)
    if text == LATEST:
        return _find_latest(root)
    for candidate in (root / text, Path(os.path.expanduser(text))):
        path = _run_around(candidate)
        if path is not None:
            return open_run(path)
    names = run_names(root)
    ending = Path(text).parts
    found = [name for name in names if ending and Path(name).parts[-len(ending) :] == ending]
    found = found or [name for name in names if open_run(root / name).name == text]
    if len(found) > 1:
        raise CheckpointError(
            f"{len(found)} runs in {root} are called {text!r}: {', '.join(found[:_SHOWN])}; say which, by its path"
        )
    if found:
        return open_run(root / found[0])
    with contextlib.suppress(ConfigError):  # only one of the variables is set, which concerns new runs
        given = given_run()
        if given is not None and text in (given[1], given[0].name) and is_run(given[0]):
            return open_run(given[0])
    raise CheckpointError(f"there is no run {text!r} in {root}; {_nearest(text, names)}")


def run_names(root: Path) -> list[str]:
    """The runs of a folder, the one created last at the end: by name, and by their path where they lie in folders.

    Raises:
        StorageError: the folder is none, or cannot be read. (One that is not there yet has no runs.)
    """
    try:
        os.scandir(root).close()
    except OSError as error:
        if error.errno == errno.ENOENT and not root.is_symlink():
            return []
        raise StorageError(f"cannot look for runs in {root}: {refusal(error)}") from error
    runs = sorted(_runs(root, 0), key=lambda path: (changed(path), path.as_posix()))
    return [path.relative_to(root).as_posix() for path in runs]


def changed(path: Path) -> float:
    """When a folder was changed last, in seconds; 0 for one that is gone meanwhile."""
    with contextlib.suppress(OSError):
        return path.stat().st_mtime
    return 0.0


def _created(path: Path) -> str:
    """When a run was created, in UTC as its record says; nothing where that does not say."""
    with contextlib.suppress(CheckpointError):
        return str(records.read_json(path / records.RECORD).get("created", ""))
    return ""


def _runs(folder: Path, depth: int) -> Iterator[Path]:
    """Runs in a folder, and in the folders of it that can be folders of runs."""
    inside: list[Path] = []
    with contextlib.suppress(OSError):
        inside = [
            path
            for path in folder.iterdir()
            if os.path.isdir(path) and not path.name.startswith(TEMPORARY_PREFIX)
        ]
    for path in inside:
        if is_run(path):
            if depth == 0 or os.path.isfile(path / records.TRAINING_CONFIG):
                yield path
        elif depth < _DEEPEST and is_folder_name(path.name) and not path.is_symlink():
            yield from _runs(path, depth + 1)


def _run_around(path: Path) -> Path | None:
    """The run that a directory is, or of whose checkpoints it is the folder, or one of them."""
    if is_run(path):
        return path
    if os.path.isdir(path) and not os.access(path, os.R_OK | os.X_OK):
        raise StorageError(f"cannot look into {path}: permission denied")
    for inner in (path, path.parent):
        if inner.name == "checkpoint" and os.path.isdir(path) and is_run(inner.parent):
            return inner.parent
    return None


def _find_latest(root: Path) -> RunDirectory:
    named = _named_by_latest(root)
    if not named:
        raise CheckpointError(f"there is no latest run in {root}; {_nearest('', run_names(root))}")
    if not _is_run_below(root, named):
        raise CheckpointError(
            f"{root / LATEST} names {named[:80]!r}, which is not a run there; {_nearest(named, run_names(root))}"
        )
    return open_run(root / named)


def _named_by_latest(root: Path) -> str | None:
    name = read_name(root / LATEST)
    return name if name is None or name.isprintable() else None


def _is_run_below(root: Path, named: str) -> bool:
    """Whether a path names a run in a folder, and does not lead out of it."""
    path = Path(named)
    with contextlib.suppress(OSError):  # longer than a name can be
        return not path.is_absolute() and ".." not in path.parts and is_run(root / path)
    return False


def _nearest(wanted: str, names: list[str]) -> str:
    if not names:
        return "there are no runs yet: `wyrmling train` makes one"
    by_name = {Path(name).name: name for name in names}
    near = difflib.get_close_matches(Path(wanted).name, by_name, n=_SHOWN, cutoff=0.5)
    if near:
        return f"did you mean {', '.join(by_name[name] for name in near)}?"
    return f"there are {', '.join(names[: -_SHOWN - 1 : -1])}"
