"""A dataset repository of the Hugging Face hub, or a folder that already holds its files.

The extra `hub` (huggingface_hub, and pyarrow for parquet) is needed only for what it does.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from ...errors import ConfigError, DataError, to_install
from .base import Source
from .files import InputFile, reading_options, shown
from .finding import find_files
from .records import RecordFiles, choices, reader, rendering
from .tally import listed

if TYPE_CHECKING:
    from ...config.schema.sources import HuggingFaceSource

Download = Callable[..., str]


def open_hugging_face(config: HuggingFaceSource, *, cache_dir: Path, validation: bool = False) -> Source:
    """The source of a `hugging_face` table.

    With `local_dir`, files are taken from there and nothing is asked of the network. Otherwise each file is
    downloaded into `<cache_dir>/huggingface`, or found there when the network or the hub does not answer. Patterns
    are matched against the folder, or against the repository's list of files.

    Args:
        validation: read `validation_files` instead of `train_files`.

    Raises:
        ConfigError: settings that do not go together.
        DataError: a file cannot be had.
    """
    key = "validation_files" if validation else "train_files"
    given = config.validation_files if validation else config.train_files
    names = [given] if isinstance(given, str) else list(given)
    if not names:
        raise ConfigError(f"dataset.{key}: no file is named")
    render = rendering(config)
    read, settings = reader(config, config.format, render)
    if config.local_dir is not None:
        folder = Path(config.local_dir).expanduser()
        files, notes = _local_files(folder, names, f"dataset.{key}", reading_options(config))
    else:
        files, notes = _hub_files(config, names, f"dataset.{key}", cache_dir / "huggingface")
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


def _local_files(
    folder: Path, names: Sequence[str], key: str, options: Mapping[str, Any]
) -> tuple[list[InputFile], list[str]]:
    if not folder.is_dir():
        raise DataError(f"dataset.local_dir: {shown(folder)}: no such folder")
    entries = []
    for name in names:
        path = folder / PurePosixPath(name)
        if path.is_dir():
            raise DataError(f"{key}: {shown(path)}: is a folder; name files in it, or a pattern ({name}/*)")
        entries.append(str(path if path.exists() else Path(glob.escape(str(folder)), name)))
    return find_files(entries, key=key, suffixes=(), **options)


def _hub_files(
    config: HuggingFaceSource, names: Sequence[str], key: str, cache: Path
) -> tuple[list[InputFile], list[str]]:
    try:
        import huggingface_hub as hub
    except ImportError:
        raise DataError(
            "dataset.repo_id: huggingface_hub is not installed; "
            f"{to_install('huggingface_hub', 'pyarrow')}, or set dataset.local_dir"
        ) from None
    token = _token(config)
    notes: list[str] = []
    if any(glob.has_magic(name) for name in names):
        listing, answered = _listing(hub, config, cache, token)
        where = f"dataset {shown(config.repo_id)}"
        if not answered:
            where += " in the cache, as the hub did not answer,"
            notes.append("the hub did not answer; patterns were matched against what is in the cache")
        names = [file for name in names for file in _matching(name, listing, f"{key}: no file of {where}")]
    repeated = len(names) - len(set(names))
    if repeated:
        notes.append(f"{repeated} files named more than once in {key} are read once")
    files, cached = [], []
    for name in dict.fromkeys(names):
        path, from_cache = _download(hub.hf_hub_download, config, name, cache, token)
        shown_name = shown(f"{config.repo_id}/{name}")
        files.append(InputFile(path, shown_name, **reading_options(config)))
        if from_cache:
            cached.append(shown_name)
    if cached:
        notes.append(f"the hub did not answer; taken from the cache: {listed(cached)}")
    return files, notes


def _listing(hub: Any, config: Any, cache: Path, token: str | None) -> tuple[list[str], bool]:
    """The files of a repository, and whether the hub told them (else they are those that the cache holds)."""
    request = {"repo_id": config.repo_id, "repo_type": "dataset", "revision": config.revision}
    try:
        return list(hub.list_repo_files(**request, token=token)), True
    except Exception as error:  # as in `_download`
        refused = error
    try:
        folder = Path(hub.snapshot_download(**request, cache_dir=str(cache), local_files_only=True))
        return [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()], False
    except Exception:
        raise DataError(
            f"cannot list the files of dataset {shown(config.repo_id)} on the hub ({_first_line(refused)}), and "
            f"{shown(cache)} does not hold it; name the files without patterns, or set dataset.local_dir"
        ) from refused


def _matching(name: str, listing: Sequence[str], nothing: str) -> list[str]:
    """The files that a name or a pattern stands for, sorted; `*` ends at a `/`, `**` does not, as in `glob`.

    Raises:
        DataError: `nothing` matches.
    """
    if not glob.has_magic(name) or name in listing:
        return [name]
    found = sorted(file for file in listing if _fits(file.split("/"), name.split("/")))
    if not found:
        names = listed([shown(file) for file in sorted(listing)]) or "nothing"
        raise DataError(f"{nothing} matches {shown(name)} (there is: {names})")
    return found


def _fits(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    if not pattern or not parts:
        return not pattern and not parts
    if pattern[0] == "**" and len(pattern) > 1 and _fits(parts, pattern[1:]):
        return True
    if parts[0].startswith(".") and not pattern[0].startswith("."):
        return False
    if pattern[0] == "**":
        return (pattern == ["**"] and len(parts) == 1) or _fits(parts[1:], pattern)
    return fnmatchcase(parts[0], pattern[0]) and _fits(parts[1:], pattern[1:])


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
        raise DataError(
            f"cannot get {shown(name)} of dataset {shown(config.repo_id)} from the hub "
            f"({_first_line(refused)}), and {shown(cache)} does not hold it; "
            "check the name, or set dataset.local_dir"
        ) from refused


def _first_line(error: Exception) -> str:
    return shown((str(error).strip().splitlines() or [type(error).__name__])[0])


def _token(config: HuggingFaceSource) -> str | None:
    """The access token: the configured one, else HF_TOKEN; blank counts as none."""
    for token in (config.token, os.environ.get("HF_TOKEN")):
        if token and token.strip():
            return token.strip()
    return None
