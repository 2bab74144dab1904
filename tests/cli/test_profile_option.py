"""`--profile` stands alone or with a word, and never swallows what follows it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from small_texts import small_text
from wyrmling.cli.main import app
from wyrmling.cli.train import with_profile_named


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--profile"], ["--profile=summary"]),
        (["--profile", "tiny"], ["--profile=summary", "tiny"]),
        (["tiny", "--profile", "--set", "a=1"], ["tiny", "--profile=summary", "--set", "a=1"]),
        (["--profile", "detail", "tiny"], ["--profile", "detail", "tiny"]),
        (["--profile", "summary"], ["--profile", "summary"]),
        (["--profile=detail"], ["--profile=detail"]),
        (["--profile", "--", "detail"], ["--profile=summary", "--", "detail"]),
        (["--", "--profile"], ["--", "--profile"]),
        (["tiny"], ["tiny"]),
    ],
)
def test_a_word_is_filled_in(words: list[str], expected: list[str]) -> None:
    assert with_profile_named(words) == expected


def test_the_command_prints_the_table_and_leaves_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from wyrmling.training.profiling import run_profile

    monkeypatch.setattr(run_profile, "matrix_rate", lambda *_, **__: 1e12)
    (tmp_path / "text.txt").write_text(small_text(), encoding="utf-8", newline="")
    settings = {
        "dataset.type": "local_text",
        "dataset.path": f'"{(tmp_path / "text.txt").as_posix()}"',
        "dataset.split": "ratio",
        "training.max_iters": 4,
        "generation.max_tokens": 4,
        "run_layout.name": "measured",
        "runtime.threads": 1,
    }
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    done = CliRunner().invoke(app, ["train", "--profile", "tiny", *words])
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("stage")
    assert "tokens/s" in done.stdout
    folder = tmp_path / "runs" / "measured"
    assert json.loads((folder / "profile.json").read_text())["mode"] == "summary"
    assert (folder / "trace.json").is_file()
    refused = CliRunner().invoke(app, ["train", "--profile=lots", "tiny"])
    assert refused.exit_code == 2
