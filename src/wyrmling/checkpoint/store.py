"""Checkpoints that are whole or not there.

A checkpoint is a directory with one safetensors file per part, `progress.json`, and a manifest with the
size and SHA-256 of each. It is written under a temporary name, every file is made durable, then the
directory is renamed: a process killed at any instant leaves the previous checkpoints as they were. Nothing
is ever pickled, and nothing that a pickle could hide in is ever opened.

One process writes a checkpoint root at a time (a run holds a lock); any number may read it meanwhile.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import CheckpointError, StorageError
from ..files import (
    make_folder,
    move_folder,
    publish,
    read_record,
    sha256_of,
    storage_errors,
    sync_directory,
    temporary_sibling,
)
from . import layout
from .manifest import (
    MANIFEST,
    PART_SUFFIX,
    PROGRESS,
    FileRecord,
    Manifest,
    Surroundings,
    TensorRecord,
    damaged_advice,
    one_line,
    part_file,
    read_manifest,
)

if TYPE_CHECKING:
    from torch import Tensor

# Other kinds of file that a person might take for a part, or a program might load.
_IMPOSTORS = {PART_SUFFIX, ".pt", ".pth", ".pkl", ".pickle", ".bin", ".ckpt", ".npy", ".npz", ".joblib"}
_READER_PATIENCE = 100
_COMFORT = "earlier checkpoints are untouched: put that right and resume the run"


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that has been read and verified. Tensors are on the CPU and belong to the caller.

    `run` is what it was saved under; None where it does not say.
    """

    step: int
    parts: dict[str, dict[str, Tensor]]
    progress: dict[str, Any]
    path: Path
    run: Surroundings | None = None


def save_checkpoint(
    root: Path,
    step: int,
    parts: Mapping[str, Mapping[str, Tensor]],
    progress: Mapping[str, Any],
    run: Surroundings | None = None,
) -> Path:
    """Write the checkpoint of an optimizer step; when this returns it is complete and durable.

    A checkpoint of the same step is replaced, and at every instant one of the two can be found.

    Args:
        root: directory of the run's checkpoints; created when missing.
        parts: part name ("model", "optimizer", "streams-0") to named tensors on any device; a part may be
            empty.
        progress: small JSON document.
        run: what stands around it, to be compared when it is loaded.

    Returns: the checkpoint's directory.

    Raises:
        StorageError: no space, no permission. Earlier checkpoints are untouched and nothing half-written
            stays.
        ValueError: a part name, a tensor or a progress entry that cannot be saved.
    """
    final = root / layout.step_name(step)
    progress_text = json.dumps(dict(progress), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    temporary = temporary_sibling(final)
    try:
        make_folder(root)
        with storage_errors(final):
            layout.recover(root)
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir()
        _fill(temporary, final, step, parts, progress_text, run)
        _put_in_place(temporary, final, step)
    except StorageError as error:
        raise StorageError(f"{error}; {_COMFORT}") from error
    except OSError as error:
        raise StorageError(f"cannot write {final}: {one_line(error)}; {_COMFORT}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return final


def read_checkpoint(path: Path, parts: Sequence[str] | None = None) -> Checkpoint:
    """Read a checkpoint directory and verify it.

    Args:
        parts: names of the parts to read (None: all). The size of every file is verified, the hash of those
            read.

    Raises:
        CheckpointError: missing, damaged, incomplete, or of a newer format: one line that names the file.
    """
    while True:
        seen = _identity(path)
        try:
            checkpoint = _read(path, parts)
        except CheckpointError:
            if seen is None or _identity(path) == seen:
                raise
        else:
            if _identity(path) == seen:
                return checkpoint
        # A writer replaced the directory under our hands: that is no damage, and no mixture may come of it.


def newest_good(
    root: Path,
    on_damaged: Callable[[Path, str], None] | None = None,
    parts: Sequence[str] | None = None,
) -> Checkpoint | None:
    """The newest checkpoint that verifies, or None when there is no checkpoint at all.

    Args:
        on_damaged: told the path and the reason (one line) of each newer checkpoint that had to be passed
            over.
        parts: as in `read_checkpoint`.

    Raises:
        CheckpointError: there are checkpoints and none of them is good. (Starting afresh would hide that.)
    """
    reported: dict[Path, str] = {}
    for _ in range(_READER_PATIENCE):
        steps = layout.list_checkpoints(root)
        if not steps:
            return None
        for step in reversed(steps):
            path = layout.checkpoint_path(root, step)
            before = _identity(path)
            try:
                return read_checkpoint(path, parts)
            except CheckpointError as error:
                now = _identity(path)
                if now is None or now != before:
                    break  # pruned or replaced meanwhile, so there is a newer one: look again
                if path not in reported and on_damaged is not None:
                    on_damaged(path, str(error))
                reported[path] = str(error)
        else:
            break
    newest = next(iter(reported.values()), "it is replaced faster than it can be read")
    raise CheckpointError(f"no checkpoint in {root} is good; the newest: {newest}")


def _fill(
    directory: Path,
    final: Path,
    step: int,
    parts: Mapping[str, Mapping[str, Tensor]],
    progress: str,
    run: Surroundings | None,
) -> None:
    """Write all files of a checkpoint into `directory`; errors name the places under `final`."""
    from .tensorfile import describe, write_tensors

    files: dict[str, FileRecord] = {}
    tensors: dict[str, dict[str, TensorRecord]] = {}
    for part, content in parts.items():
        name = part_file(part)
        tensors[part] = describe(content)
        with storage_errors(final / name):
            files[name] = write_tensors(directory / name, content)
    with storage_errors(final / PROGRESS):
        files[PROGRESS] = _write_text(directory / PROGRESS, progress)
    with storage_errors(final / MANIFEST):
        _write_text(directory / MANIFEST, Manifest(step, files, tensors, run).to_json())
        sync_directory(directory)


def _write_text(path: Path, text: str) -> FileRecord:
    """Write a durable file. (No reader knows the directory yet, so it need not appear at once.)"""
    content = text.encode("utf-8")
    with open(path, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return FileRecord(bytes=len(content), sha256=hashlib.sha256(content).hexdigest())


def _put_in_place(temporary: Path, final: Path, step: int) -> None:
    """Give the finished directory its name; the one that has it steps aside first and goes last."""
    if not final.exists():
        publish(temporary, final)
        return
    aside = layout.aside_path(final.parent, step)
    with storage_errors(final):
        move_folder(final, aside)
    try:
        publish(temporary, final)
    finally:
        layout.recover(final.parent)


def _identity(path: Path) -> tuple[int, int] | None:
    """What tells a directory from another one that has taken its name."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns


def _read(path: Path, parts: Sequence[str] | None) -> Checkpoint:
    """One attempt to read and verify.

    Raises:
        CheckpointError: damage, or the directory changed meanwhile.
    """
    if not path.is_dir():
        raise CheckpointError(
            f"there is no checkpoint at {path}; check the path, or list the run's checkpoints"
        )
    manifest = read_manifest(path)
    named = layout.parse_step(path.name.removeprefix(layout.ASIDE_PREFIX))
    if named is not None and named != manifest.step:
        raise CheckpointError(
            f"{path / MANIFEST} says step {manifest.step}, which is not the directory's; rename it to "
            f"{layout.step_name(manifest.step)}"
        )
    wanted = list(manifest.parts) if parts is None else list(parts)
    for part in wanted:
        if part not in manifest.parts:
            raise CheckpointError(
                f"{path} has no part {part!r} (it has {', '.join(sorted(manifest.parts)) or 'none'}); "
                "choose a checkpoint that was saved by a training run"
            )
    _check_files(path, manifest, [PROGRESS, *map(part_file, wanted)])
    return Checkpoint(
        step=manifest.step,
        parts={part: _read_part(path, part, manifest) for part in wanted},
        progress=_read_progress(path),
        path=path,
        run=manifest.run,
    )


def _check_files(path: Path, manifest: Manifest, to_hash: Sequence[str]) -> None:
    for name, record in manifest.files.items():
        file = path / name
        try:
            size = file.stat().st_size
            if size != record.bytes:
                raise _damaged(file, f"it has {size} bytes and the manifest says {record.bytes}")
            if name in to_hash and sha256_of(file) != record.sha256:
                raise _damaged(file, "its content is not what was saved (SHA-256 differs)")
        except FileNotFoundError:
            raise _damaged(file, "it is missing") from None
        except OSError as error:
            raise _damaged(file, f"it cannot be read ({one_line(error)})") from error
    try:
        entries = sorted(path.iterdir())
    except OSError as error:
        raise _damaged(path, f"it cannot be listed ({one_line(error)})") from error
    for entry in entries:
        if entry.suffix.lower() in _IMPOSTORS and entry.name not in manifest.files:
            raise CheckpointError(
                f"{entry} is not part of the checkpoint (the manifest does not list it) and was not opened; "
                "move it elsewhere"
            )


def _read_part(path: Path, part: str, manifest: Manifest) -> dict[str, Tensor]:
    from .tensorfile import describe, read_tensors

    file = path / part_file(part)
    try:
        tensors = read_tensors(file)
        found = describe(tensors)
    except (OSError, ValueError) as error:
        raise _damaged(file, one_line(error)) from error
    if found != manifest.parts[part]:
        raise _damaged(file, "its tensors are not those that the manifest lists")
    return tensors


def _read_progress(path: Path) -> dict[str, Any]:
    file = path / PROGRESS
    try:
        return read_record(file)
    except (OSError, ValueError) as error:
        raise _damaged(file, one_line(error)) from error


def _damaged(file: Path, reason: str) -> CheckpointError:
    return CheckpointError(f"{file} is damaged: {reason}; {damaged_advice(file.parent)}")
