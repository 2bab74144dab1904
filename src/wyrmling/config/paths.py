"""Where things lie when the configuration does not say."""

from __future__ import annotations

import os
from pathlib import Path

from ..errors import ConfigError
from .schema import Config

CACHE_VARIABLE = "WYRMLING_CACHE_DIR"
RUN_ROOT_VARIABLE = "WYRMLING_RUN_ROOT"


def cache_directory(config: Config) -> Path:
    """The folder of fetched and tokenized data (it need not exist).

    `dataset.cache_dir`, else the variable WYRMLING_CACHE_DIR, else `wyrmling` in the user's cache:
    XDG_CACHE_HOME or `~/.cache`, on Windows LOCALAPPDATA.

    Raises:
        ConfigError: none of these is known.
    """
    if config.dataset.cache_dir is not None:
        return config.dataset.cache_dir
    if chosen := _from_environment(CACHE_VARIABLE):
        return chosen
    user_cache = _from_environment("LOCALAPPDATA" if os.name == "nt" else "XDG_CACHE_HOME")
    try:
        return (user_cache or Path.home() / ".cache") / "wyrmling"
    except RuntimeError as error:  # a user that the system does not know, and no HOME
        raise ConfigError(
            f"no home directory is known for the cache: set dataset.cache_dir, or {CACHE_VARIABLE}"
        ) from error


def run_root(config: Config) -> Path:
    """The folder of the runs: `run_layout.base_dir`, else WYRMLING_RUN_ROOT, else `runs`."""
    if config.run_layout.base_dir is not None:
        return config.run_layout.base_dir
    return _from_environment(RUN_ROOT_VARIABLE) or Path("runs")


def bundle_folder(config: Config) -> Path:
    """The folder of a bundle: `run_root`, then the category, then `bundles/<bundle>`, as far as these are set."""
    layout = config.run_layout
    return _below(run_root(config), (None, layout.category), ("bundles", layout.bundle))


def run_folder(config: Config) -> Path:
    """The folder in which a new run's directory is made: `bundle_folder`, `stages/<stage>`, `variants/<variant>`."""
    layout = config.run_layout
    return _below(bundle_folder(config), ("stages", layout.stage), ("variants", layout.variant))


def _below(folder: Path, *parts: tuple[str | None, str | None]) -> Path:
    for marker, name in parts:
        if name is not None:
            folder = folder / (marker or "") / name
    return folder


def _from_environment(name: str) -> Path | None:
    value = os.environ.get(name, "").strip()
    return Path(os.path.expanduser(value)) if value else None
