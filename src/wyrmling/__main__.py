"""The entry of the command: runs it, and turns what goes wrong into one line and an exit code."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence

import typer

from ._version import __version__
from .errors import StorageError, WyrmlingError
from .files import refusal
from .watch.streams import note, prepare_standard_streams, silence

INTERRUPTED = 130
PIPE_CLOSED = 141
DEFECT = 1
REFUSED = 4
_USAGE_ERROR = typer.BadParameter.__bases__[0]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with these arguments (those of the process unless given) and return its exit code.

    0 done; 1 a defect of this program, with a traceback; 2 the user's mistake; 3 training diverged; 4 the
    machine refused; 129, 130, 143 ended by a signal; 141 the reader of the output went away. See `wyrmling.errors`.
    """
    words = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    prepare_standard_streams()
    _share_the_processor()
    try:
        _refuse_lost_folder()
        code = _run(words)
        sys.stdout.flush()
        return code
    except BaseException as error:
        return _explain(error, words)


def _run(words: list[str]) -> int:
    from .cli.main import app

    try:
        with typer.main.get_command(app).make_context("wyrmling", words) as context:
            result = context.command.invoke(context)
    except typer.Exit as ended:
        return ended.exit_code
    return result if isinstance(result, int) else 0


def _share_the_processor() -> None:
    """Let threads that wait for each other sleep after a short while instead of spinning.

    The OpenMP runtime that torch brings (libgomp, on Linux) spins for milliseconds at the end of every parallel
    region. Where something else runs too, the spinning takes the time that the last thread needs: one busy program
    beside a training made it 2 to 4 times slower. Spinning for tens of microseconds costs 5 % when nothing else runs.
    Read once, when torch is loaded; whoever sets a policy of their own keeps it.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "20000")


def _refuse_lost_folder() -> None:
    """Raises StorageError when the folder that relative paths start from is gone."""
    try:
        os.getcwd()
    except OSError as error:
        raise StorageError(
            "the current folder was removed or cannot be read: change to another one"
        ) from error


def _explain(error: BaseException, words: Sequence[str]) -> int:
    """Say on standard error what went wrong, in one line, and return the exit code."""
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    if isinstance(error, BrokenPipeError):
        silence(sys.stdout)
        return PIPE_CLOSED
    if isinstance(error, (KeyboardInterrupt, typer.Abort)):
        note("interrupted")
        return INTERRUPTED
    if isinstance(error, _USAGE_ERROR):
        return _explain_usage(error, words)
    if isinstance(error, WyrmlingError):
        if error.exit_code == DEFECT:
            note("".join(traceback.format_exception(error)))
        note(f"error: {_one_line(str(error))}")
        return error.exit_code
    if (reason := _refused(error)) is not None:
        silence(sys.stdout)
        note(f"error: {reason}")
        return REFUSED
    note("".join(traceback.format_exception(error)))
    note(f"error: a defect of wyrmling {__version__}; please report it with the lines above")
    return DEFECT


def _refused(error: BaseException) -> str | None:
    """What the machine refused, when that is what the error means: a place that cannot be used, memory."""
    if isinstance(error, OSError) and error.errno is not None:
        return f"{error.filename or 'the output'}: {refusal(error)}"
    text = _one_line(str(error))
    out_of_memory = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    if out_of_memory or (isinstance(error, RuntimeError) and "t allocate memory" in text):
        advice = (
            'lower training.batch_size or training.block_size, or set runtime.activation_memory = "recompute"'
        )
        return f"not enough memory ({text or 'MemoryError'}); {advice}"
    return None


def _explain_usage(error: BaseException, words: Sequence[str]) -> int:
    if type(error).__name__ == "NoArgsIsHelpError":
        note(str(error))
        return 2
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else _command_of(words)
    note(f"error: {_one_line(getattr(error, 'format_message', error.__str__)())}\nhint: {command} --help")
    return 2


def _command_of(words: Sequence[str]) -> str:
    """The command that the words name, for errors that do not say where they happened."""
    from .cli.main import app

    known = getattr(typer.main.get_command(app), "commands", {})
    return f"wyrmling {words[0]}" if words[0] in known else "wyrmling"


def _one_line(text: str) -> str:
    return " ".join(text.split())


if __name__ == "__main__":
    sys.exit(main())
