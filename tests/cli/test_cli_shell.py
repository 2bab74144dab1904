"""The command as a whole: light to start, one line for every mistake, an exit code that says what happened."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from wyrmling import __version__, errors
from wyrmling.__main__ import main
from wyrmling.cli import main as cli
from wyrmling.errors import CheckpointError, ConfigError, DataError, DivergedError, StorageError
from wyrmling.watch import CallbackError

HEAVY = ("torch", "numpy", "pydantic", "matplotlib", "safetensors", "tokenizers", "pyarrow", "rich")


def run_python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)


@pytest.mark.parametrize(
    "words",
    [["--help"], ["--version"], ["train", "--help"], ["generate", "--help"], ["config", "--help"], ["x"]],
)
def test_the_command_starts_without_heavy_packages(words: list[str]) -> None:
    """Newer versions of typer load pydantic by themselves when they read the options of a command."""
    code = (
        "import sys; from wyrmling.__main__ import main; main(sys.argv[1:]); "
        f"print('loaded', *sorted(set({HEAVY!r}) & set(sys.modules)), file=sys.stderr)"
    )
    loaded = set(run_python(code, *words).stderr.splitlines()[-1].split()[1:])
    assert loaded <= (set() if words[0].startswith("--") else {"pydantic"})


def test_importing_the_package_loads_nothing_heavy() -> None:
    child = run_python(f"import sys, wyrmling; print(sorted(set({HEAVY!r}) & set(sys.modules)))")
    assert child.stdout == "[]\n", child.stderr


def test_help_lists_every_command_with_a_whole_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    help_text = capsys.readouterr().out
    for name in ("train", "evaluate", "generate", "runs", "report", "doctor", "config", "import-bdh"):
        line = next(line for line in help_text.splitlines() if line.strip().startswith(f"{name} "))
        assert len(line.split()) > 2
        assert not line.endswith("...")


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"wyrmling {__version__}\n"


@pytest.mark.parametrize(
    ("words", "error", "hint"),
    [
        (["trian"], "No such command 'trian'", "wyrmling --help"),
        (["--colour"], "No such option: --colour", "wyrmling --help"),
        (["generate", "--max-token", "3"], "No such option: --max-token", "wyrmling generate --help"),
        (["doctor", "--seconds", "soon"], "--seconds", "wyrmling doctor --help"),
        (["doctor", "--seconds", "-1"], "--seconds", "wyrmling doctor --help"),
        (["runs", "too", "many"], "unexpected extra argument", "wyrmling runs --help"),
        (["runs", "--root"], "requires an argument", "wyrmling runs --help"),
        (["config", "shwo"], "No such command 'shwo'", "wyrmling config --help"),
    ],
)
def test_a_mistyped_command_is_one_line_and_a_hint(
    words: list[str], error: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("error: ")
    assert error in first
    assert second == f"hint: {hint}"


def test_a_group_without_a_command_shows_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config"]) == 2
    captured = capsys.readouterr()
    assert "schema" in captured.out + captured.err
    assert "Traceback" not in captured.err


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> list[BaseException]:
    """The command replaced by one that raises what the test puts in the list."""
    errors: list[BaseException] = []
    app = typer.Typer(pretty_exceptions_enable=False)

    @app.command()
    def fail() -> None:
        typer.echo("some output")
        raise errors[0]

    @app.command()
    def other() -> None:
        """A second command, so that there are names."""

    monkeypatch.setattr(cli, "app", app)
    return errors


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("base.toml, line 3: no"), 2),
        (DataError("no"), 2),
        (CheckpointError("no"), 2),
        (DivergedError("no"), 3),
        (StorageError("no"), 4),
    ],
)
def test_errors_for_people_are_one_line_with_their_exit_code(
    error: BaseException, code: int, failing: list[BaseException], capsys: pytest.CaptureFixture[str]
) -> None:
    failing.append(error)
    assert main(["fail"]) == code
    captured = capsys.readouterr()
    assert captured.err == f"error: {error}\n"
    assert captured.out == "some output\n"


def test_line_ends_inside_an_error_do_not_break_the_line(
    failing: list[BaseException], capsys: pytest.CaptureFixture[str]
) -> None:
    failing.append(DataError("bad\n  file\tname"))
    assert main(["fail"]) == 2
    assert capsys.readouterr().err == "error: bad file name\n"


def test_a_defect_shows_its_traceback_and_asks_for_a_report(
    failing: list[BaseException], capsys: pytest.CaptureFixture[str]
) -> None:
    failing.append(ZeroDivisionError("really"))
    assert main(["fail"]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("Traceback")
    assert "ZeroDivisionError: really" in lines
    assert lines[-1].startswith(f"error: a defect of wyrmling {__version__}")
    assert "report" in lines[-1]


def test_a_callback_that_fails_shows_where(
    failing: list[BaseException], capsys: pytest.CaptureFixture[str]
) -> None:
    error = CallbackError("the callback Mine failed in on_step: KeyError: 'x'")
    error.__cause__ = KeyError("x")
    failing.append(error)
    assert main(["fail"]) == 1
    text = capsys.readouterr().err
    assert "Traceback" in text
    assert text.splitlines()[-1].startswith("error: the callback Mine failed in on_step")


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (KeyboardInterrupt(), 130, "interrupted\n"),
        (typer.Abort(), 130, "interrupted\n"),
        (typer.Exit(7), 7, ""),
        (SystemExit(5), 5, ""),
        (BrokenPipeError(errno.EPIPE, "Broken pipe"), 141, ""),
        (PermissionError(errno.EACCES, "x", "/some/file"), 4, "error: /some/file: permission denied\n"),
    ],
)
def test_endings_that_are_no_errors_of_the_program(
    error: BaseException,
    code: int,
    text: str,
    failing: list[BaseException],
    capsys: pytest.CaptureFixture[str],
) -> None:
    failing.append(error)
    assert main(["fail"]) == code
    assert capsys.readouterr().err == text


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        type("OutOfMemoryError", (RuntimeError,), {})("CUDA out of memory"),
        RuntimeError(
            "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"
        ),
    ],
)
def test_too_little_memory_says_what_to_lower(
    error: BaseException, failing: list[BaseException], capsys: pytest.CaptureFixture[str]
) -> None:
    failing.append(error)
    assert main(["fail"]) == 4
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: not enough memory")
    assert "training.batch_size" in line


def test_the_result_of_a_command_is_its_exit_code_only_when_it_is_a_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app = typer.Typer()
    app.command("three")(lambda: 3)
    app.command("nothing")(lambda: None)
    monkeypatch.setattr(cli, "app", app)
    assert main(["three"]) == 3
    assert main(["nothing"]) == 0


@pytest.mark.skipif(os.name == "nt", reason="pipes of this kind are a Unix matter")
def test_a_reader_that_leaves_is_no_error() -> None:
    child = subprocess.Popen(
        [sys.executable, "-m", "wyrmling", "config", "schema"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert child.stderr is not None
    child.stdout.close()
    assert child.stderr.read() == ""
    child.stderr.close()
    assert child.wait() == 141


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_output_to_a_full_disk_is_the_machines_refusal() -> None:
    with open("/dev/full", "w") as full:
        child = subprocess.run(
            [sys.executable, "-m", "wyrmling", "--version"], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert child.returncode == 4
    assert child.stderr == "error: the output: no space left on the device\n"


def test_the_module_runs_as_the_command(tmp_path: Path) -> None:
    child = subprocess.run(
        [sys.executable, "-m", "wyrmling", "runs", "--root", str(tmp_path)], capture_output=True, text=True
    )
    assert (child.returncode, child.stdout) == (0, "")
    assert child.stderr.startswith(f"no runs in {tmp_path}")


@pytest.mark.parametrize(
    ("given", "expected"),
    [({}, "20000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "")],
)
def test_threads_do_not_spin_for_long_unless_somebody_says_so(given: dict[str, str], expected: str) -> None:
    """Decided before torch is loaded; a policy that is set already stays."""
    code = (
        "import os, sys\n"
        "from wyrmling.__main__ import main\n"
        "main(['--version'])\n"
        "assert 'torch' not in sys.modules\n"
        "print(os.environ.get('GOMP_SPINCOUNT', ''))\n"
    )
    clean = {
        name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
    }
    done = subprocess.run(
        [sys.executable, "-c", code], env={**clean, **given}, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == expected


def test_the_exit_codes_are_documented_as_they_are() -> None:
    page = (Path(__file__).parents[2] / "docs" / "tour.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([\d, ]+) \|", page, re.MULTILINE)
    told = [int(code) for row in rows for code in row.split(",")]
    listed = [int(code) for code in re.findall(r"^    (\d+) ", errors.__doc__ or "", re.MULTILINE)]
    assert sorted(told) == sorted(listed)
