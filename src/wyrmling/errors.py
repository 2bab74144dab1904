"""Errors that are written for people.

Every error that a user can cause, or can do something about, is one of these classes. Its text is one line: what
is wrong, where (file, key, line), and what to do. The command prints it without a traceback and exits with
`exit_code`:

    0    done
    1    a defect of this program (a traceback is shown: please report it)
    2    the user's mistake: configuration, data, command line, checkpoint
    3    training diverged: a loss or a gradient is not finite; the last good checkpoint is untouched
    4    the machine refused: no space, no memory, no permission, a place that cannot be used
    129  stopped by SIGHUP (the terminal is gone) after the step was finished and saved
    130  stopped by SIGINT (Ctrl-C) after the step was finished and saved
    141  whoever read the output has closed it
    143  stopped by SIGTERM after the step was finished and saved
"""

from __future__ import annotations


def to_install(*packages: str) -> str:
    """What to do about packages that are missing: a line that works in a clone and for an installed package."""
    return f"run: pip install {' '.join(packages)}"


class WyrmlingError(Exception):
    """Base of all errors with a text for people."""

    exit_code = 1


class UserError(WyrmlingError):
    """Something that the user can put right."""

    exit_code = 2


class ConfigError(UserError):
    """A configuration that does not parse, does not validate, or contradicts itself."""


class DataError(UserError):
    """Text or tokens that are missing, empty, too short or malformed."""


class CheckpointError(UserError):
    """A checkpoint or run that is missing, damaged, or does not fit what is asked of it."""


class DivergedError(WyrmlingError):
    """A loss or a gradient is not finite. Nothing was updated and no checkpoint was overwritten."""

    exit_code = 3


class StorageError(WyrmlingError):
    """The file system refused: no space left, no permission, read-only, a place that cannot be used."""

    exit_code = 4
