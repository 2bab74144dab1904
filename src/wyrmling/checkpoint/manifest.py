"""The manifest: what a checkpoint consists of, so that damage is seen before anything is loaded.

`manifest.json` lists every file with its size and SHA-256, and every tensor of every part with dtype and
shape. It says what stood around the checkpoint in its run, so that another configuration or tokenizer that is put
there is seen too. Its own last entry is the SHA-256 of the rest, so that a changed byte in the manifest is seen as
well.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..errors import CheckpointError
from ..files import read_record, sealed

FORMAT = "wyrmling-checkpoint"
FORMAT_VERSION = 1

MANIFEST = "manifest.json"
PROGRESS = "progress.json"
PART_SUFFIX = ".safetensors"

_PART_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


@dataclass(frozen=True)
class FileRecord:
    """Size in bytes and SHA-256 (hexadecimal) of a file."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class TensorRecord:
    """A tensor's dtype, in the safetensors notation ("F32"), and shape."""

    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Surroundings:
    """What a checkpoint was saved under.

    Attributes:
        config: tables of the run's configuration, as `training_config.json` holds them; not a digest of them, so that
            a later version, which may have more keys, can compare too and can say what differs.
        tokenizer, data: fingerprints; no data is "".
    """

    config: Mapping[str, Any]
    tokenizer: str
    data: str


@dataclass(frozen=True)
class Manifest:
    """Content of `manifest.json`. `files` maps file names to records, `parts` part names to their tensors.

    `run` is None in checkpoints that earlier versions wrote, and in those that belong to no run.
    """

    step: int
    files: Mapping[str, FileRecord]
    parts: Mapping[str, Mapping[str, TensorRecord]]
    run: Surroundings | None = None

    def to_json(self) -> str:
        """The document, with its own hash as the last entry."""
        body: dict[str, Any] = {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "step": self.step,
            "files": {
                name: {"bytes": record.bytes, "sha256": record.sha256} for name, record in self.files.items()
            },
            "parts": {
                part: {
                    name: {"dtype": record.dtype, "shape": list(record.shape)}
                    for name, record in tensors.items()
                }
                for part, tensors in self.parts.items()
            },
        }
        if self.run is not None:
            body["run"] = asdict(self.run)
        return json.dumps(sealed(body), indent=1, ensure_ascii=False) + "\n"


def part_file(part: str) -> str:
    """The file name of a part.

    Raises:
        ValueError: a name that is not a plain file name.
    """
    if not _PART_NAME.fullmatch(part):
        raise ValueError(f"{part!r} is not a name for a part of a checkpoint")
    return part + PART_SUFFIX


def one_line(error: BaseException) -> str:
    """An error's text without line breaks."""
    return " ".join(str(error).split())


def read_manifest(directory: Path) -> Manifest:
    """Read and check the manifest of a checkpoint directory.

    Raises:
        CheckpointError: it is missing, does not parse, was changed, or has a format that this version does
            not know.
    """
    path = directory / MANIFEST
    try:
        body = read_record(path, must_be_sealed=True)
    except FileNotFoundError:
        raise CheckpointError(
            f"{directory} is not a checkpoint: it has no {MANIFEST}; choose a directory that `wyrmling` saved"
        ) from None
    except ValueError as error:
        raise _damaged(path, one_line(error)) from error
    if body.get("format") != FORMAT:
        raise _damaged(path, f"it does not say that its format is {FORMAT!r}")
    version = body.get("format_version")
    if not isinstance(version, int) or version < 1:
        raise _damaged(path, f"its format version is {version!r}")
    if version > FORMAT_VERSION:
        raise CheckpointError(
            f"{path}: format version {version} is newer than {FORMAT_VERSION}, the newest that this version "
            "of wyrmling reads; upgrade wyrmling"
        )
    try:
        return _parse(body)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _damaged(
            path, f"an entry is missing or malformed ({type(error).__name__}: {one_line(error)})"
        ) from error


def _parse(body: dict[str, Any]) -> Manifest:
    files = {
        str(name): FileRecord(bytes=int(record["bytes"]), sha256=str(record["sha256"]))
        for name, record in body["files"].items()
    }
    parts = {
        str(part): {
            str(name): TensorRecord(dtype=str(record["dtype"]), shape=tuple(int(n) for n in record["shape"]))
            for name, record in tensors.items()
        }
        for part, tensors in body["parts"].items()
    }
    expected = {PROGRESS, *map(part_file, parts)}
    if set(files) != expected:
        # Not a file name chosen by the manifest is ever opened: only those that follow from the names of
        # parts.
        raise ValueError(f"files {sorted(files)} where the parts say {sorted(expected)}")
    run = body.get("run")
    if run is not None:
        run = Surroundings(dict(run["config"]), str(run["tokenizer"]), str(run["data"]))
    return Manifest(step=int(body["step"]), files=files, parts=parts, run=run)


def damaged_advice(directory: Path) -> str:
    """What to do about a damaged checkpoint."""
    return f"resume from an earlier checkpoint, or delete {directory.name}"


def _damaged(path: Path, reason: str) -> CheckpointError:
    return CheckpointError(f"{path} is damaged: {reason}; {damaged_advice(path.parent)}")
