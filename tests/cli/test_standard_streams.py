"""The streams of the command, as shells, pipes and terminals leave them: closed, full, of any encoding, or gone."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

import wyrmling
from wyrmling import Config
from wyrmling.__main__ import main
from wyrmling.training.stopping import SIGNALS

Make = Callable[..., Config]
FOREIGN = "é👩 ≤"


class Streams:
    """Standard output and error of one encoding."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, encoding: str) -> None:
        self.encoding = encoding
        self._out, self._err = io.BytesIO(), io.BytesIO()
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(self._out, encoding=encoding))
        monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(self._err, encoding=encoding))

    @property
    def out(self) -> str:
        sys.stdout.flush()
        return self._out.getvalue().decode(self.encoding)

    @property
    def err(self) -> str:
        return self._err.getvalue().decode(self.encoding)


every_encoding = pytest.mark.parametrize("encoding", ["ascii", "cp1252", "utf-16", "cp037"])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on a text with letters that few encodings have, in a file whose name has some too."""
    folder = tmp_path_factory.mktemp("é👩")
    (folder / "ü👩.txt").write_text(f"{FOREIGN} to be or not to be\n" * 60, encoding="utf-8")
    settings = [
        "dataset.type=local_text",
        "dataset.split=ratio",
        f"dataset.path={folder / 'ü👩.txt'}",
        f"dataset.cache_dir={folder / 'cache'}",
        f"run_layout.base_dir={folder / 'runs'}",
        "run_layout.name=plain",
        "training.max_iters=2",
        "training.block_size=16",
        "training.batch_size=2",
        "optimizer.lr_schedule.warmup_steps=1",
        "generation.max_tokens=4",
        "runtime.threads=1",
    ]
    return wyrmling.train(wyrmling.load_config("tiny", settings)).run.path


@every_encoding
def test_json_is_valid_in_every_encoding(encoding: str, monkeypatch: pytest.MonkeyPatch, run: Path) -> None:
    streams = Streams(monkeypatch, encoding)
    text = str(run.parents[1] / "ü👩.txt")
    for words in (
        ["generate", run, "--prompt", FOREIGN, "--output", "json"],
        ["evaluate", run, "--text", text, "--json"],
        ["runs", "--root", run.parent, "--json"],
    ):
        before = len(streams.out)
        assert main([str(word) for word in words]) == 0, streams.err
        json.loads(streams.out[before:])


@every_encoding
def test_a_configuration_is_toml_in_every_encoding(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    streams = Streams(monkeypatch, encoding)
    assert main(["config", "show", "tiny", "--set", f"generation.prompt={FOREIGN}"]) == 0
    assert tomllib.loads(streams.out)["generation"]["prompt"] == FOREIGN


@every_encoding
def test_texts_and_refusals_are_written_with_what_the_encoding_has(
    encoding: str, monkeypatch: pytest.MonkeyPatch, run: Path
) -> None:
    streams = Streams(monkeypatch, encoding)
    assert main(["generate", str(run), "--prompt", FOREIGN]) == 0
    assert main(["report", str(run)]) == 0
    assert main(["evaluate", str(run), "--text", str(run.parents[1] / "ü👩.txt")]) == 0
    assert main(["generate", FOREIGN]) == 2
    (line,) = [line for line in streams.err.splitlines() if line.startswith("error: ")]
    assert "there is no run" in line
    assert "Traceback" not in streams.err


def shell(redirected: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the command with its streams redirected as a shell writes it; `$ERR` keeps what is told."""
    return subprocess.run(
        ["sh", "-c", f'exec "$0" -m wyrmling "$@" {redirected}', sys.executable, *words],
        capture_output=True,
        text=True,
    )


unix = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="these streams are a Unix matter")


@unix
@pytest.mark.parametrize("words", [["--version"], ["--help"], ["config", "recipes"]])
@pytest.mark.parametrize(("redirected", "reason"), [(">&-", "closed"), (">/dev/full", "no space left")])
def test_a_result_that_cannot_be_written_is_told(words: list[str], redirected: str, reason: str) -> None:
    done = shell(redirected, *words)
    assert done.returncode == 4
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: the output: ")
    assert reason in line


@unix
@pytest.mark.parametrize("redirected", ["2>&-", "2>/dev/full", "<&- 2>&-"])
@pytest.mark.parametrize(("words", "code"), [(["config", "recipes"], 0), (["config", "show", "nothing"], 2)])
def test_what_nobody_can_be_told_changes_no_result(redirected: str, words: list[str], code: int) -> None:
    done = shell(redirected, *words)
    assert (done.returncode, done.stderr) == (code, "")
    assert bool(done.stdout) == (code == 0)


@unix
def test_what_is_printed_never_ends_in_a_file_of_the_run(tmp_path: Path, tiny_config: Make) -> None:
    """Files that are opened get the numbers that are free: those of closed streams among them."""
    text = tiny_config().to_dict()["dataset"]["path"]
    words = ["dataset.type=local_text", f"dataset.path={text}", "dataset.split=ratio", "training.max_iters=4"]
    options = [word for pair in (*words, "run_layout.name=shut") for word in ("--set", pair)]
    done = shell("<&- >&- 2>&-", "train", "tiny", *options)
    assert done.returncode == 0
    for line in (tmp_path / "runs" / "shut" / "events.jsonl").read_text(encoding="utf-8").splitlines():
        json.loads(line)
    assert main(["evaluate", "shut"]) == 0


@unix
def test_a_folder_that_is_gone_is_told_once(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    script = f'cd "{tmp_path}/gone" && rmdir ../gone && exec "{sys.executable}" -P -m wyrmling runs'
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (4, "")
    assert done.stderr == "error: the current folder was removed or cannot be read: change to another one\n"


@unix
def test_a_run_whose_terminal_goes_away_saves_and_ends(tmp_path: Path, tiny_config: Make) -> None:
    """The hangup arrives, and every line that the run writes from then on fails."""
    import pty

    text = tiny_config().to_dict()["dataset"]["path"]
    words = [f"dataset.path={text}", "dataset.type=local_text", "dataset.split=ratio", "run_layout.name=lost"]
    words += ["training.max_iters=100000", "training.checkpoint_interval_iters=100000", "runtime.threads=1"]
    command = [sys.executable, "-m", "wyrmling", "train", "tiny"]
    process, terminal = pty.fork()
    if process == 0:
        os.execv(command[0], [*command, *(word for pair in words for word in ("--set", pair))])
    shown = b""
    while b"step 1" not in shown.replace(b"steps", b""):
        shown += os.read(terminal, 4096)
    os.close(terminal)
    _, status = os.waitpid(process, 0)
    assert os.waitstatus_to_exitcode(status) == 128 + 1
    assert SIGNALS[1] == "SIGHUP"
    (saved,) = (tmp_path / "runs" / "lost" / "checkpoint").glob("step-*")
    assert (saved / "manifest.json").is_file()


def test_commands_write_through_one_layer() -> None:
    """What prints by itself fails where an encoding lacks a character, or a stream is closed."""
    folder = Path(wyrmling.__file__).parent / "cli"
    calls = re.compile(r"(?<![.\w])(print|typer\.(echo|secho)|sys\.(stdout|stderr)\.write)\(")
    assert [file.name for file in folder.glob("*.py") if calls.search(file.read_text("utf-8"))] == []
