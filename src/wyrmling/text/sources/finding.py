"""Finding the files that a `path` stands for: each once, whatever its names, and nothing left out without a word."""

from __future__ import annotations

import fnmatch
import glob
import os
import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ...errors import DataError, WyrmlingError
from .content import HEAD_BYTES, format_of, is_binary, looks_like_text, without_compression
from .files import InputFile, identity_of, kind_of, refusal, shown
from .tally import counted, listed

_SAMPLES = 4
_SHOWN_SUFFIXES = 6
_TYPES = {
    ".jsonl": "jsonl",
    ".csv": "csv",
    ".parquet": "parquet",
    ".npy": "pretokenized",
    ".txt": "local_text",
}


def find_files(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    suffixes: tuple[str, ...],
    chosen: tuple[str, ...] | None = None,
    texts: bool = True,
    key: str = "dataset.path",
    encoding: str = "utf-8",
    decompressed_limit: int | None = None,
) -> tuple[list[InputFile], list[str]]:
    """The files that a `path` setting stands for, in an order that no operating system or locale decides.

    Each entry is a file, a folder, or a pattern (`**` is recursive, into linked folders too). Entries keep their
    order; the files of a folder or pattern are sorted by their POSIX path. A folder is searched for names that end
    in one of `suffixes`: in any case, compressed or not, hidden ones left out. A file with several names (links, the
    same file by two entries) is read once; links that lead back are cut.

    Args:
        chosen: suffixes that the user named, instead of `suffixes`; then nothing that is left out is a mistake.
        texts: whether files of text are looked for, not of numbers or tables.
        key: what an error names.

    Returns:
        The files; what a person should know of those that are not read.

    Raises:
        DataError: nothing is there, nothing fits, no regular file is named, or most of a folder are left out.
        StorageError: a folder cannot be searched.
    """
    entries = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    if not entries:
        raise DataError(f"{key}: no file is named")
    files: dict[object, InputFile] = {}
    again: list[str] = []
    notes = []
    for entry in entries:
        search = _Search(
            os.path.expanduser(os.fspath(entry)), chosen or suffixes, chosen is not None, texts, key
        )
        for path, found in search.files():
            identity = identity_of(found, path)
            if identity in files:
                again.append(shown(path))
            files.setdefault(identity, InputFile(path, shown(path), encoding, decompressed_limit))
        if search.left_out():
            notes.append(f"{shown(search.entry)}: not read: {search.left_out()}")
    if again:
        notes.append(
            f"{counted(len(again), 'file')} named more than once (in {key}, or by links) "
            f"{'is' if len(again) == 1 else 'are'} read once: {listed(again)}"
        )
    return list(files.values()), notes


@dataclass
class _Left:
    """Files of one suffix that a search leaves out: how many, their bytes, and the first few of them."""

    files: int = 0
    size: int = 0
    samples: list[Path] = field(default_factory=list)

    def share(self, texts: bool) -> float:
        """The share of the samples that looks like text, or, with `texts` false, like other data that is read."""
        return sum(_is_meant(sample, texts) for sample in self.samples) / len(self.samples)


class _Search:
    """The search for the files of one entry of `path`."""

    def __init__(self, entry: str, suffixes: tuple[str, ...], chosen: bool, texts: bool, key: str) -> None:
        self.entry, self._texts, self._key = entry, texts, key
        self._suffixes = tuple(suffix.lower().lstrip("*") for suffix in suffixes)
        self._chosen = chosen
        self._by_suffix: dict[str, _Left] = {}
        self._others: Counter[str] = Counter()

    def files(self) -> list[tuple[Path, os.stat_result]]:
        """The files, sorted, with what the system says about each."""
        if not self.entry:
            raise DataError(f"{self._key}: an empty string names no file")
        path = Path(self.entry)
        try:
            found = path.stat()
        except FileNotFoundError as error:
            if glob.has_magic(self.entry):
                return self._sorted(
                    self._regular(self._matches(path)), f"no file matches {shown(self.entry)}"
                )
            link = f" (a link to {shown(os.readlink(path))})" if path.is_symlink() else ""
            raise DataError(f"{self._key}: {shown(self.entry)}{link}: no such file or folder") from error
        except ValueError as error:
            raise DataError(f"{self._key}: {shown(self.entry)} is not a path ({error})") from error
        except OSError as error:
            raise refusal(shown(self.entry), error) from error
        if stat.S_ISDIR(found.st_mode):
            nothing = f"no file in {shown(self.entry)} ends in {', '.join(self._suffixes)}"
            files = self._sorted(self._regular(self._fitting(self._walk(path))), nothing)
            if not self._chosen:
                self._refuse_most_left_out(sum(info.st_size for _, info in files), len(files))
            return files
        if not stat.S_ISREG(found.st_mode):
            raise DataError(
                f"{self._key}: {shown(self.entry)} is {kind_of(found)}, not a file or folder; save what it gives"
                " to a file"
            )
        return [(path, found)]

    def left_out(self) -> str:
        """What was met and is not read, the most bytes first; nothing where all is read."""
        groups = sorted(self._by_suffix.items(), key=lambda item: -item[1].size)
        parts = [f"{left.files} {suffix} ({left.size:,} bytes)" for suffix, left in groups[:_SHOWN_SUFFIXES]]
        rest = [left for _, left in groups[_SHOWN_SUFFIXES:]]
        if rest:
            parts.append(
                f"{sum(left.files for left in rest)} others ({sum(left.size for left in rest):,} bytes)"
            )
        parts += [counted(number, what) for what, number in sorted(self._others.items())]
        return ", ".join(parts)

    def _sorted(
        self, files: Iterator[tuple[Path, os.stat_result]], nothing: str
    ) -> list[tuple[Path, os.stat_result]]:
        found = sorted(files, key=lambda file: file[0].as_posix())
        if not found:
            left = self.left_out()
            advice = (
                f" (there are: {left}); set dataset.suffixes"
                if self._by_suffix
                else f" ({left})"
                if left
                else ""
            )
            raise DataError(f"{self._key}: {nothing}{advice}")
        return found

    def _regular(self, paths: Iterator[Path]) -> Iterator[tuple[Path, os.stat_result]]:
        """Those that are files and can be read; the others are counted."""
        for path in paths:
            try:
                found = path.stat()
            except OSError:  # nothing there, or links that lead in a circle
                self._others["dangling link"] += 1
                continue
            if stat.S_ISDIR(found.st_mode):
                self._others["folder"] += 1
            elif not stat.S_ISREG(found.st_mode):
                self._others[kind_of(found).removeprefix("a ")] += 1
            elif not os.access(path, os.R_OK):
                self._others["unreadable file"] += 1
            else:
                yield path, found

    def _fitting(self, paths: Iterator[Path]) -> Iterator[Path]:
        """Those whose name ends in one of the suffixes; the others are counted by their own."""
        for path in paths:
            bare = without_compression(path.name)
            if bare.endswith(self._suffixes) or path.name.lower().endswith(self._suffixes):
                yield path
                continue
            for file, found in self._regular(iter([path])):
                left = self._by_suffix.setdefault(Path(bare).suffix or "without suffix", _Left())
                left.files += 1
                left.size += found.st_size
                if found.st_size and len(left.samples) < _SAMPLES:
                    left.samples.append(file)

    def _walk(self, folder: Path) -> Iterator[Path]:
        """What lies in a folder and in all below it but is no folder itself; hidden names are counted."""
        for below in self._folders(folder):
            for path in _inside(below):
                if path.name.startswith("."):
                    self._others["hidden name"] += 1
                elif not os.path.isdir(path):
                    yield path

    def _folders(self, folder: Path) -> Iterator[Path]:
        """A folder and all below it but hidden ones, each once: links are followed last, circles cut."""
        visited: set[object] = set()
        waiting, linked = [folder], list[Path]()
        while waiting or linked:
            folder = waiting.pop() if waiting else linked.pop(0)
            identity = identity_of(folder.stat(), folder)
            if identity in visited or os.path.exists(folder / "training_config.json"):
                self._others["repeated folder" if identity in visited else "run folder"] += 1
                continue
            visited.add(identity)
            yield folder
            for path in _inside(folder):
                if os.path.isdir(path) and not path.name.startswith("."):
                    (linked if path.is_symlink() else waiting).append(path)

    def _matches(self, pattern: Path) -> Iterator[Path]:
        """What a pattern names; `**` stands for a folder and all below it, at the end for what lies in them."""
        anchor, *parts = pattern.parts if pattern.anchor else ("", *pattern.parts)
        reached = [Path(anchor)]
        for part in parts:
            if part == "**":
                below = [folder for path in reached if os.path.isdir(path) for folder in self._folders(path)]
                reached = list(dict.fromkeys(below))
            elif glob.has_magic(part):
                inside = [path for folder in reached if os.path.isdir(folder) for path in _inside(folder)]
                reached = [path for path in inside if _fits(path.name, part)]
            else:
                reached = [path / part for path in reached if os.path.lexists(path / part)]
        if parts[-1] == "**":
            reached = [path for folder in reached for path in _inside(folder) if _fits(path.name, "*")]
            reached = [path for path in reached if not os.path.isdir(path)]
        yield from reached

    def _refuse_most_left_out(self, size: int, files: int) -> None:
        """Refuse a folder of which most, by bytes, or by number with much of the bytes, is not read.

        Args:
            size, files: bytes and number of the files that are read.
        """
        shares = {suffix: left.share(self._texts) for suffix, left in self._by_suffix.items() if left.samples}
        meant = {suffix: self._by_suffix[suffix] for suffix, share in shares.items() if share}
        left_size = round(sum(left.size * shares[suffix] for suffix, left in meant.items()))
        left_files = sum(left.files for left in meant.values())
        if left_size > size or (left_files > files and 3 * left_size > size):
            named = ", ".join(f'"{suffix}"' for suffix in (*self._suffixes, *meant) if suffix.startswith("."))
            types = "".join(f', or dataset.type = "{_TYPES[suffix]}"' for suffix in meant if suffix in _TYPES)
            raise DataError(
                f"{self._key}: most of {shown(self.entry)} would not be read: {self.left_out()}, against "
                f"{counted(files, 'file')} ({size:,} bytes) in {', '.join(self._suffixes)}; set dataset.suffixes to "
                f"what you mean, such as [{named}]{types}"
            )


def _inside(folder: Path) -> list[Path]:
    """What lies in a folder, sorted."""
    try:
        return sorted(folder.iterdir())
    except OSError as error:
        raise refusal(shown(folder), error) from error


def _fits(name: str, pattern: str) -> bool:
    """Whether a name matches a pattern; a hidden one only a pattern that begins with a dot."""
    return fnmatch.fnmatch(name, pattern) and (not name.startswith(".") or pattern.startswith("."))


def _is_meant(path: Path, texts: bool) -> bool:
    """Whether a file looks like text, or, with `texts` false, like binary data; or as what another type reads."""
    try:
        with InputFile(path, shown(path)).open() as stream:
            head = stream.peek()[:HEAD_BYTES]
    except WyrmlingError:
        return False
    found = format_of(head)
    if found is not None:
        return "dataset.type" in found[1]
    return looks_like_text(head) if texts else is_binary(head)
