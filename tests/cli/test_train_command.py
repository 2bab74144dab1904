"""The whole way by command: train, resume, evaluate, generate, list, report; each in a process of its own."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from small_texts import small_text
from wyrmling.__main__ import main


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("commands")
    (folder / "text.txt").write_text(small_text(), encoding="utf-8", newline="")
    (folder / "small.toml").write_text(
        'extends = "tiny.toml"\n[dataset]\ntype = "local_text"\npath = "text.txt"\nsplit = "ratio"\n'
        '[generation]\nprompt = "to be"\nmax_tokens = 12\n',
        encoding="utf-8",
    )
    from wyrmling.config.recipes import recipe_path

    for name in ("tiny", "shakespeare"):
        (folder / f"{name}.toml").write_text(recipe_path(name).read_text(encoding="utf-8"), encoding="utf-8")
    done = run(folder, "train", "small.toml", "--set", "run_layout.name=first")
    assert done.returncode == 0, done.stderr
    return folder


def run(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    places = {"WYRMLING_RUN_ROOT": str(folder / "runs"), "WYRMLING_CACHE_DIR": str(folder / "cache")}
    return subprocess.run(
        [sys.executable, "-m", "wyrmling", *arguments],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", **places, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=240,
    )


def test_a_run_tells_what_it_does_and_leaves_what_it_promises(place: Path) -> None:
    done = run(place, "train", "small.toml", "--set", "run_layout.name=told")
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    for line in (
        "parallel runtime: ",
        "training path fingerprint: ",
        "train schedule: ",
        "training batching: ",
        "optimizer fingerprint: ",
    ):
        assert line in done.stderr
    folder = place / "runs" / "told"
    assert (place / "runs" / "latest").read_text().strip() == "told"
    assert {path.name for path in folder.iterdir()} >= {
        "config.json",
        "training_config.json",
        "tokenizer.json",
        "checkpoint",
        "events.jsonl",
    }
    record = json.loads((folder / "config.json").read_text())
    assert record["run_name"] == "told"
    assert {choice["name"] for choice in record["choices"]} >= {"device", "dtype", "threads", "executor"}
    assert record["origins"]["dataset.path"] == "small.toml:4"


def test_a_finished_run_is_left_alone(place: Path) -> None:
    done = run(place, "train", "--resume", "first")
    assert done.returncode == 0, done.stderr
    assert "first is finished: 20 of 20 steps" in done.stderr
    longer = run(place, "train", "--resume", "first", "--set", "training.max_iters=24")
    assert longer.returncode == 0, longer.stderr
    assert "step-000000024" in longer.stderr


def test_resume_and_a_configuration_do_not_go_together(place: Path) -> None:
    done = run(place, "train", "small.toml", "--resume", "first")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1


def test_figures_of_an_evaluation(place: Path) -> None:
    done = run(place, "evaluate", "first", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["perplexity"] == pytest.approx(math.exp(found["loss"]))
    assert found["bits_per_byte"] == pytest.approx(found["loss"] / math.log(2))
    again = run(place, "evaluate", str(place / "runs" / "first"), "--state", "reset", "--rows", "3")
    assert again.returncode == 0, again.stderr
    assert "bits per byte" in again.stdout


def test_generation_repeats_with_its_seed(place: Path) -> None:
    texts = [run(place, "generate", "first", "--seed", "5").stdout for _ in range(2)]
    assert texts[0] == texts[1]
    assert texts[0].startswith("to be")
    assert run(place, "generate", "first", "--seed", "6").stdout != texts[0]


def test_runs_are_listed_and_reported(place: Path) -> None:
    done = run(place, "runs", "--json")
    assert done.returncode == 0, done.stderr
    assert "first" in done.stdout
    page = run(place, "report", "first", "--output", "page.html")
    assert page.returncode == 0, page.stderr
    html = (place / "page.html").read_text(encoding="utf-8")
    assert "first" in html
    assert "http-equiv" in html
    assert "<script" not in html


def test_two_trainers_cannot_write_one_run(place: Path) -> None:
    from wyrmling.runs import find_run

    with find_run("first", place / "runs").lock():
        done = run(place, "train", "--resume", "first", "--set", "training.max_iters=40")
    assert done.returncode == 2
    assert "is being written by" in done.stderr
    assert "start a new run" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train", "nothing-of-the-kind"], "nothing-of-the-kind"),
        (["train", "small.toml", "--set", "training.batch_size=-1"], "training.batch_size"),
        (["train", "--resume", "nobody"], "there is no run 'nobody'"),
        (["evaluate", "nobody"], "there is no run 'nobody'"),
        (["generate", "nobody"], "there is no run 'nobody'"),
        (["report", "nobody"], "there is no run 'nobody'"),
        (["evaluate", "first", "--checkpoint", "7"], "no checkpoint of step 7"),
        (["evaluate", "first", "--text", "missing.txt"], "missing.txt"),
        (["train", "small.toml", "--set", "runtime.device=cuda"], "cuda is not available"),
    ],
)
def test_mistakes_get_one_line_and_exit_code_two(
    place: Path,
    arguments: list[str],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setenv("WYRMLING_RUN_ROOT", str(place / "runs"))
    before = sorted(path for path in (place / "runs").rglob("*"))
    assert main(arguments) == 2
    errors = capfd.readouterr().err
    assert words in errors
    assert errors.strip().splitlines()[-1].startswith("error: ")
    assert "Traceback" not in errors
    assert sorted(path for path in (place / "runs").rglob("*")) == before
