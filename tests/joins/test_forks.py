"""A fork is a new run that goes on from a checkpoint of another one: exactly, where nothing is changed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import wyrmling
from wyrmling import Callback, Config
from wyrmling.__main__ import main
from wyrmling.checkpoint import checkpoint_path, list_checkpoints
from wyrmling.config import with_overrides
from wyrmling.config.launching import to_fork, to_go_on
from wyrmling.errors import CheckpointError, ConfigError
from wyrmling.runs import RunDirectory
from wyrmling.watch.events import Message, RunStarted, StepReport
from wyrmling.watch.overview import list_runs

Make = Callable[..., Config]
LIVELY = [
    "model.dropout=0.1",
    "training.tbptt_chunk_size=8",
    "training.tbptt_persist_across_steps=true",
    "training.continual_backprop.enabled=true",
    "training.continual_backprop.replacement_rate=0.1",
    "training.continual_backprop.maturity_steps=2",
    "training.continual_backprop.replace_interval_steps=2",
    "training.checkpoint_keep=9",
]


class Watch(Callback):
    """Keeps what is said; asks for the end after a step."""

    def __init__(self, stop_at: int | None = None) -> None:
        self.stop_at, self.messages, self.rates, self.began = stop_at, {}, {}, -1

    def on_start(self, report: RunStarted) -> None:
        self.began = report.step

    def on_message(self, report: Message) -> None:
        self.messages[report.name] = report.text

    def on_step(self, report: StepReport) -> None:
        self.rates[report.step] = report.learning_rate
        if report.step == self.stop_at:
            report.control.stop("the test asked for it")


def fork(run: RunDirectory, *overrides: str) -> Config:
    return with_overrides(run.training_config(), [*to_fork(run.path), *overrides])


def files(run: RunDirectory, step: int) -> dict[str, bytes]:
    return {
        file.name: file.read_bytes()
        for file in checkpoint_path(run.checkpoints, step).iterdir()
        if file.suffix == ".safetensors"
    }


def test_a_fork_without_a_change_is_the_same_run(tiny_config: Make) -> None:
    """Weights, moments, carried states, utilities of neurons and the order of the text go on bit for bit."""
    straight = wyrmling.train(tiny_config(*LIVELY)).run
    twin = wyrmling.train(fork(straight, "training.resume_checkpoint_step=4")).run
    assert twin.path != straight.path
    assert list_checkpoints(twin.checkpoints) == [4, 8, 12]
    for step in (4, 8, 12):
        assert files(twin, step) == files(straight, step)


def test_a_fork_learns_at_its_own_rate_and_says_from_where(tiny_config: Make) -> None:
    straight = wyrmling.train(tiny_config("training.checkpoint_keep=9", "optimizer.lr_schedule=none")).run
    before = {file: file.read_bytes() for file in straight.path.rglob("*") if file.is_file()}
    changes = ("training.resume_checkpoint_step=8", "optimizer.learning_rate=0.0005", "training.max_iters=10")
    seen = Watch()
    forked = wyrmling.train(fork(straight, *changes), callbacks=[seen])
    assert (seen.began, set(seen.rates), forked.step) == (8, {9, 10}, 10)
    assert set(seen.rates.values()) == {0.0005}
    rate = straight.training_config().optimizer.learning_rate
    changed = [f"optimizer.learning_rate: {rate} -> 0.0005", "training.max_iters: 12 -> 10"]
    assert forked.run.record()["forked_from"] == {
        "run": straight.name,
        "path": straight.path.resolve().as_posix(),
        "step": 8,
        "changed": changed,
    }
    assert all(text in seen.messages["fork"] for text in (straight.name, "step 8", *changed))
    assert {file: file.read_bytes() for file in before} == before, "the run that was left is as it was"
    listed = {run.name: run.figures for run in list_runs(straight.path.parent)}
    assert (listed[forked.run.name].status, listed[forked.run.name].step) == ("finished", 10)


def test_a_fork_is_a_run_from_its_first_instant(tiny_config: Make) -> None:
    """Stopped before its first step, or between two checkpoints, it goes on as if nothing had happened."""
    straight = wyrmling.train(tiny_config(*LIVELY)).run
    changes = ("training.resume_checkpoint_step=4", "optimizer.learning_rate=0.002")
    whole = wyrmling.train(fork(straight, *changes)).run
    first = wyrmling.train(fork(straight, *changes), callbacks=[Watch(stop_at=5)]).run
    for stop_at in (6, None):
        config = with_overrides(first.training_config(), to_go_on(first.path))
        wyrmling.train(config, callbacks=[Watch(stop_at)])
    assert files(first, 12) == files(whole, 12)
    assert first.training_config().training.launch_mode == "fork"


def test_what_a_fork_cannot_do_is_refused(tiny_config: Make) -> None:
    run = wyrmling.train(tiny_config()).run
    with pytest.raises(ConfigError, match=r"step 12 of 12.*training\.max_iters"):
        wyrmling.train(fork(run))
    for change in ("model.n_layer=3", "optimizer.name=muon", "training.seed=2", "training.batch_size=1"):
        key = change.partition("=")[0]
        with pytest.raises(CheckpointError, match=rf"another configuration: {key}"):
            wyrmling.train(fork(run, "training.max_iters=20", change))
    with pytest.raises(CheckpointError, match="step-000000003"):
        wyrmling.train(fork(run, "training.resume_checkpoint_step=3"))


def test_the_command_forks(tiny_config: Make, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    run = wyrmling.train(tiny_config()).run
    rate = "optimizer.learning_rate=0.0005"
    assert main(["train", "--resume", run.name, "--set", rate]) == 2
    assert f"--fork {run.name}" in capsys.readouterr().err
    assert main(["train", "--resume", run.name, "--fork", run.name]) == 2
    assert "leave one of them out" in capsys.readouterr().err
    assert main(["train", "--fork", run.name, "tiny"]) == 2
    assert "leave tiny out" in capsys.readouterr().err
    assert main(["train", "--fork", run.name, "--set", rate, "--set", "training.max_iters=14"]) == 0
    said = capsys.readouterr().err
    assert f"fork: from {run.name} at step 12" in said
    assert "-> 0.0005" in said
