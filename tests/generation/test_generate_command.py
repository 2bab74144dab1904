"""`wyrmling generate`: what reaches standard output, what is refused, and when."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from generation_fakes import MACHINE, Machine, Recurrent
from typer.testing import CliRunner

from wyrmling.cli.generate import generate
from wyrmling.config import Config
from wyrmling.errors import CheckpointError, ConfigError, DataError
from wyrmling.text.tokenizers import ByteTokenizer

Result = Any
Command = Callable[..., Result]


@dataclass
class Loaded:
    model: Recurrent
    tokenizer: ByteTokenizer
    config: Config
    step: int
    path: Path
    machine: Machine = MACHINE


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """The runs that were loaded; all of them are the same small model."""
    asked: list[tuple[str, Any]] = []

    def load_run(run: str, *, checkpoint: str | int = "latest", root: Path | None = None) -> Loaded:
        asked.append((run, checkpoint))
        table = {"generation": {"max_tokens": 6, "prompt": "once", "seed": 5}}
        model = Recurrent(256, seed=7 if checkpoint == "best" else 0).train()
        return Loaded(model, ByteTokenizer(), Config.model_validate(table), 12, Path("runs") / run)

    training = types.ModuleType("wyrmling.training")
    training.load_run = load_run
    training.keep_freed_memory = lambda: None
    monkeypatch.setitem(sys.modules, "wyrmling.training", training)
    return asked


@pytest.fixture
def command(loads: list[tuple[str, Any]]) -> Command:
    app = typer.Typer()
    app.command()(generate)

    def invoke(*arguments: str, stdin: bytes | None = None) -> Result:
        return CliRunner().invoke(app, list(arguments), input=stdin)

    return invoke


def test_the_text_is_on_standard_output_and_everything_else_on_standard_error(
    command: Command, loads: list[tuple[str, Any]]
) -> None:
    result = command("--prompt", "hello", "--output", "json")
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    assert (record["prompt"], record["seed"], len(record["ids"])) == ("hello", 5, 6)
    assert "step 12" in result.stderr
    assert "6 tokens" in result.stderr
    assert "stopped by max_tokens" in result.stderr
    text = command("--prompt", "hello").stdout
    assert text == f"hello{record['text']}\n".encode(errors="backslashreplace").decode()
    assert loads == [("latest", "latest")] * 2


def test_without_a_prompt_the_runs_own_is_used(command: Command) -> None:
    assert json.loads(command("--output", "json").stdout)["prompt"] == "once"


@pytest.mark.parametrize("given", ["--prompt", "--prompt-file", "stdin"])
def test_an_empty_prompt_starts_somewhere_and_says_where(
    command: Command, tmp_path: Path, given: str
) -> None:
    (tmp_path / "empty").write_bytes(b"")
    arguments = {
        "--prompt": ["--prompt", ""],
        "--prompt-file": ["--prompt-file", str(tmp_path / "empty")],
        "stdin": ["--prompt-file", "-"],
    }[given]
    result = command(*arguments, "--output", "ids", stdin=b"")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("10 ")
    assert "is empty: starting from a newline (token 10)" in result.stderr


def test_a_closed_standard_input_is_one_line(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wyrmling.cli.generate.sys", types.SimpleNamespace(stdin=None))
    result = command("--prompt-file", "-")
    assert isinstance(result.exception, DataError)
    assert "standard input, which is closed" in str(result.exception)


def test_prompts_come_from_arguments_files_and_standard_input(command: Command, tmp_path: Path) -> None:
    (tmp_path / "story").write_bytes(b"\xef\xbb\xbfa file\r\n")
    result = command(
        "--prompt", "one", "--prompt", "two", "--prompt-file", str(tmp_path / "story"), "--output", "json"
    )
    prompts = [json.loads(line)["prompt"] for line in result.stdout.splitlines()]
    assert prompts == ["one", "two", "a file\r\n"]
    piped = command("--prompt-file", "-", "--output", "json", stdin=b"from a pipe")
    assert json.loads(piped.stdout)["prompt"] == "from a pipe"
    missing = command("--prompt-file", str(tmp_path / "absent"))
    assert isinstance(missing.exception, DataError)


def test_a_prompt_is_opened_as_texts_are(command: Command, tmp_path: Path) -> None:
    packed, wide, pipe = (tmp_path / name for name in ("packed", "wide", "pipe"))
    packed.write_bytes(gzip.compress(b"a file"))
    wide.write_bytes("a file".encode("utf-16"))
    assert json.loads(command("--prompt-file", str(packed), "--output", "json").stdout)["prompt"] == "a file"
    piped = command("--prompt-file", "-", "--output", "json", stdin=packed.read_bytes())
    assert json.loads(piped.stdout)["prompt"] == "a file"
    refused = {wide: "utf-16", tmp_path: "folder"}
    if hasattr(os, "mkfifo"):
        os.mkfifo(pipe)
        refused[pipe] = "pipe"
    for path, word in refused.items():
        found = command("--prompt-file", str(path))
        assert isinstance(found.exception, DataError)
        assert word in str(found.exception)


def test_values_of_the_command_beat_those_of_the_run(command: Command, loads: list[tuple[str, Any]]) -> None:
    result = command("mine", "--seed", "8", "--max-tokens", "3", "--checkpoint", "40", "--output", "json")
    record = json.loads(result.stdout)
    assert (record["seed"], len(record["ids"])) == (8, 3)
    assert loads == [("mine", 40)]
    unlimited = command("--max-tokens", "unlimited", "--max-chars", "30", "--output", "json")
    assert len(json.loads(unlimited.stdout)["text"]) == 30
    windowed = command("--prompt", "a" * 50, "--context-window", "8")
    assert "prompt 1 has 50 tokens, the window 8" in windowed.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["--temperature", "-1"],
        ["--temperature", "nan"],
        ["--temperature", "inf"],
        ["--top-k", "0"],
        ["--top-k", "-3"],
        ["--top-p", "0"],
        ["--top-p", "1.1"],
        ["--max-tokens", "0"],
        ["--max-tokens", "many"],
        ["--max-chars", "-1"],
        ["--seed", "-1"],
        ["--context-window", "0"],
        ["--checkpoint", "newest"],
        ["--state-out", "no-such-folder/talk"],
        ["--state-in", "talk", "--prompt", "a", "--prompt", "b"],
    ],
)
def test_invalid_values_are_refused_before_anything_is_loaded(
    command: Command, loads: list[tuple[str, Any]], arguments: list[str]
) -> None:
    result = command(*arguments)
    assert isinstance(result.exception, ConfigError)
    assert "\n" not in str(result.exception)
    assert loads == []
    assert result.stdout == ""


def test_invalid_values_are_refused_before_torch_is_imported() -> None:
    program = (
        "import sys\n"
        "from wyrmling.cli.generate import generate\n"
        "from wyrmling.errors import ConfigError\n"
        "try:\n"
        "    generate(top_p=1.1)\n"
        "except ConfigError as error:\n"
        "    print(error, 'torch' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "top_p must be above 0 and at most 1 (1 keeps all), got 1.1 False\n"


def test_a_conversation_goes_on_where_it_stopped(command: Command, tmp_path: Path) -> None:
    whole = json.loads(command("--prompt", "hello", "--max-tokens", "9", "--output", "json").stdout)
    file = str(tmp_path / "talk")
    first = command("--prompt", "hello", "--max-tokens", "4", "--output", "json", "--state-out", file)
    assert "conversation of 9 tokens saved" in first.stderr
    more = ["--max-tokens", "5", "--output", "json", "--state-in", file, "--state-out", file]
    second = command(*more)
    assert json.loads(first.stdout)["ids"] + json.loads(second.stdout)["ids"] == whole["ids"]
    assert "is empty" not in second.stderr
    assert "conversation of 14 tokens saved" in second.stderr


def test_a_conversation_with_another_checkpoint_is_refused(command: Command, tmp_path: Path) -> None:
    file = str(tmp_path / "talk")
    assert command("--prompt", "hello", "--state-out", file).exit_code == 0
    refused = command("--prompt", "more", "--state-in", file, "--checkpoint", "best")
    assert isinstance(refused.exception, CheckpointError)
    assert "belongs to another model" in str(refused.exception)


def test_the_same_seed_gives_the_same_text_and_a_drawn_seed_is_printed(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert command("--seed", "3").stdout == command("--seed", "3").stdout
    assert len({command("--seed", str(seed)).stdout for seed in range(4)}) == 4
    seedless = Loaded(Recurrent(256), ByteTokenizer(), Config(), 12, Path("runs"))
    monkeypatch.setattr(sys.modules["wyrmling.training"], "load_run", lambda run, checkpoint: seedless)
    torch.manual_seed(0)
    drawn = command("--prompt", "a", "--output", "json")
    seed = json.loads(drawn.stdout)["seed"]
    assert f"--seed {seed} repeats it" in drawn.stderr
    assert command("--prompt", "a", "--output", "json", "--seed", str(seed)).stdout == drawn.stdout
