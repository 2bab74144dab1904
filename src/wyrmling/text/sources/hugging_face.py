"""A dataset repository of the Hugging Face hub, or a folder that already holds its files.

The extra `hub` (huggingface_hub, and pyarrow for parquet) is needed only for what it does.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from ...errors import ConfigError, DataError
from .base import Source
from .files import InputFile, reading_options, shown
from .records import RecordFiles, choices, reader, rendering

if TYPE_CHECKING:
    from ...config.schema.sources import HuggingFaceSource

INSTALL = 'run: pip install "wyrmling[hub]"'
Download = Callable[..., str]


def open_hugging_face(config: HuggingFaceSource, *, cache_dir: Path, validation: bool = False) -> Source:
    """The source of a `hugging_face` table.

    With `local_dir`, files are taken from there and nothing is asked of the network. Otherwise each file is
    downloaded into `<cache_dir>/huggingface`, or found there when the network or the hub does not answer.

    Args:
        validation: read `validation_files` instead of `train_files`.

    Raises:
        ConfigError: settings that do not go together.
        DataError: a file cannot be had.
    """
    key = "validation_files" if validation else "train_files"
    names = list(config.validation_files if validation else config.train_files)
    if not names:
        raise ConfigError(f"dataset.{key}: no file is named")
    render = rendering(config)
    read, settings = reader(config, config.format, render)
    if config.local_dir is not None:
        folder = Path(config.local_dir).expanduser()
        files = _local_files(folder, names, key, reading_options(config))
        notes: list[str] = []
    else:
        files, notes = _hub_files(config, names, cache_dir)
    return RecordFiles(
        "hugging_face",
        files,
        read=read,
        render=render,
        settings={
            "repo_id": config.repo_id,
            "revision": config.revision,
            "format": config.format,
            **settings,
        },
        notes=notes,
        **choices(config),
    )


def _local_files(folder: Path, names: Sequence[str], key: str, options: Mapping[str, Any]) -> list[InputFile]:
    if not folder.is_dir():
        raise DataError(f"dataset.local_dir: {shown(folder)}: no such folder")
    files = []
    for name in names:
        path = folder / PurePosixPath(name)
        if not path.is_file():
            reason = "is a folder, a file is needed" if path.is_dir() else "no such file"
            raise DataError(f"dataset.{key}: {shown(path)}: {reason}")
        files.append(InputFile(path, shown(path), **options))
    return files


def _hub_files(
    config: HuggingFaceSource, names: Sequence[str], cache_dir: Path
) -> tuple[list[InputFile], list[str]]:
    try:
        from huggingface_hub import hf_hub_download
    except ImportError:
        raise DataError(
            f"dataset.repo_id: huggingface_hub is not installed; {INSTALL}, or set dataset.local_dir"
        ) from None
    token = _token(config)
    files, cached = [], []
    for name in names:
        path, from_cache = _download(hf_hub_download, config, name, cache_dir / "huggingface", token)
        shown_name = shown(f"{config.repo_id}/{name}")
        files.append(InputFile(path, shown_name, **reading_options(config)))
        if from_cache:
            cached.append(shown_name)
    notes = [f"the hub did not answer; taken from the cache: {', '.join(cached)}"] if cached else []
    return files, notes


def _download(
    download: Download, config: Any, name: str, cache: Path, token: str | None
) -> tuple[Path, bool]:
    """The file's place in the cache, and whether the cache alone had to do."""
    request = {
        "repo_id": config.repo_id,
        "filename": name,
        "repo_type": "dataset",
        "revision": config.revision,
        "cache_dir": str(cache),
    }
    try:
        return Path(download(**request, token=token)), False
    except Exception as error:  # the hub client raises the errors of whichever transport it uses
        refused = error
    try:
        return Path(download(**request, local_files_only=True)), True
    except Exception:
        lines = str(refused).strip().splitlines() or [type(refused).__name__]
        raise DataError(
            f"cannot get {shown(name)} of dataset {shown(config.repo_id)} from the hub "
            f"({shown(lines[0])}), and {shown(cache)} does not hold it; "
            "check the name, or set dataset.local_dir"
        ) from refused


def _token(config: HuggingFaceSource) -> str | None:
    """The access token: the configured one, else HF_TOKEN; blank counts as none."""
    for token in (config.token, os.environ.get("HF_TOKEN")):
        if token and token.strip():
            return token.strip()
    return None
