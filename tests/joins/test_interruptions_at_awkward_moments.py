"""Interruptions where it hurts: inside a validation, before the first checkpoint, between two writes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import wyrmling
from wyrmling import Callback, Config
from wyrmling.checkpoint import Checkpoint, checkpoint_path, list_checkpoints, read_pointer, write_pointer
from wyrmling.config import with_overrides
from wyrmling.errors import CheckpointError, DataError, WyrmlingError
from wyrmling.training import loop
from wyrmling.watch.events import (
    CheckpointReport,
    Message,
    RunEnded,
    RunStarted,
    StepReport,
    ValidationReport,
)
from wyrmling.watch.jsonl import read_events

Make = Callable[..., Config]


def resume(config: Config, run: Path, *overrides: str) -> Config:
    place = f'training.resume_run_dir="{run.as_posix()}"'
    cleared = ["training.init_checkpoint_path=none", "training.init_checkpoint_step=none"]
    return with_overrides(config, [*cleared, "training.launch_mode=resume_exact_run", place, *overrides])


def weights(run: Path, step: int) -> bytes:
    return (checkpoint_path(run / "checkpoint", step) / "model.safetensors").read_bytes()


class Watcher(Callback):
    """Remembers what happened; stops or dies at a step."""

    def __init__(self, *, stop: int | None = None, die: int | None = None) -> None:
        self.stop, self.die = stop, die
        self.validated: list[int] = []
        self.started: list[int] = []
        self.ended: list[str] = []
        self.told: list[str] = []

    def on_start(self, report: RunStarted) -> None:
        self.started.append(report.step)

    def on_step(self, report: StepReport) -> None:
        if report.step == self.stop:
            report.control.stop("the test asked for it")
        if report.step == self.die:
            raise KeyboardInterrupt

    def on_validation(self, report: ValidationReport) -> None:
        self.validated.append(report.step)

    def on_message(self, report: Message) -> None:
        self.told.append(report.text)

    def on_end(self, report: RunEnded) -> None:
        self.ended.append(report.reason)


OFTEN = ("training.validation_interval_iters=3", "training.early_stopping={patience = 9}")


@pytest.mark.parametrize("stop", [6, 12])
def test_a_validation_that_was_abandoned_is_made_up_for(tiny_config: Make, stop: int) -> None:
    """Also after the last step: the run is not finished before it was validated."""
    config = tiny_config(*OFTEN)
    whole, first, second = Watcher(), Watcher(stop=stop), Watcher()
    straight = wyrmling.train(config, callbacks=[whole])
    stopped = wyrmling.train(config, callbacks=[first])
    assert (stopped.step, stopped.reason) == (stop, "the test asked for it")
    again = wyrmling.train(resume(config, stopped.run.path), callbacks=[second])
    assert again.reason == "finished"
    assert first.validated + second.validated == whole.validated == [0, 3, 6, 9, 12]
    assert again.validation_loss == straight.validation_loss
    assert weights(again.run.path, 12) == weights(straight.run.path, 12)
    progress = [
        json.loads((checkpoint_path(run.run.checkpoints, 12) / "progress.json").read_text())
        for run in (straight, again)
    ]
    assert progress[0]["best"] == progress[1]["best"]


def test_an_early_stopped_run_stays_where_it_ended(tiny_config: Make) -> None:
    config = tiny_config(
        "training.early_stopping={patience = 2, min_delta = 10.0}", "training.validation_interval_iters=2"
    )
    done = wyrmling.train(config)
    assert (done.step, done.reason) == (6, "early stopping")
    before = list_checkpoints(done.run.checkpoints)
    watcher = Watcher()
    again = wyrmling.train(resume(config, done.run.path), callbacks=[watcher])
    assert again.step == 6
    assert "patience" in again.reason
    assert list_checkpoints(done.run.checkpoints) == before
    longer = wyrmling.train(resume(config, done.run.path, "training.early_stopping.patience=4"))
    assert (longer.step, longer.reason) == (10, "early stopping")


def test_borrowed_weights_are_not_forgotten(tiny_config: Make) -> None:
    """A warm start killed before its first own checkpoint goes on from the weights it borrowed."""
    lender = wyrmling.train(tiny_config())
    place = f'training.init_checkpoint_path="{lender.run.path.as_posix()}"'
    config = tiny_config("training.launch_mode=init_from_checkpoint", place)
    straight = wyrmling.train(config)
    with pytest.raises(KeyboardInterrupt):
        wyrmling.train(
            tiny_config("training.launch_mode=init_from_checkpoint", place, "run_layout.name=killed"),
            callbacks=[Watcher(die=2)],
        )
    killed = straight.run.path.parent / "killed"
    assert list_checkpoints(killed / "checkpoint") == [0]
    again = wyrmling.train(resume(config, killed))
    assert weights(again.run.path, 12) == weights(straight.run.path, 12)
    recorded = again.run.training_config().training
    assert recorded.launch_mode == "init_from_checkpoint"
    assert recorded.init_checkpoint_path is not None


def test_an_earlier_step_is_asked_for_once_not_for_ever(tiny_config: Make) -> None:
    config = tiny_config("training.checkpoint_keep=9")
    done = wyrmling.train(config)
    wyrmling.train(
        resume(config, done.run.path, "training.resume_checkpoint_step=4"), callbacks=[Watcher(stop=9)]
    )
    assert done.run.training_config().training.resume_checkpoint_step is None
    watcher = Watcher()
    recorded = resume(done.run.training_config(), done.run.path)
    wyrmling.train(recorded, callbacks=[watcher])
    assert watcher.started == [9]


def test_pointers_are_mended_after_a_kill_between_two_writes(tiny_config: Make) -> None:
    """Also those of a run that was finished by then."""
    config = tiny_config("training.checkpoint_keep=9", "training.validation_interval_iters=4")
    done = wyrmling.train(config)
    best = read_pointer(done.run.checkpoints, "best")
    for name in ("best", "latest"):
        write_pointer(done.run.checkpoints, name, 4)
    wyrmling.train(resume(config, done.run.path))
    assert read_pointer(done.run.checkpoints, "best") == best
    assert read_pointer(done.run.checkpoints, "latest") == 12
    assert wyrmling.load_run(done.run.path, checkpoint="best").step == best


def test_what_a_killed_write_left_is_gone_after_a_resume(tiny_config: Make) -> None:
    """In the run's own folder too, where the records lie."""
    config = tiny_config("training.max_iters=4")
    run = wyrmling.train(config).run.path
    left = [run / ".tmp-training_config.json-4242-4242", run / "checkpoint" / ".tmp-latest-4242-4242"]
    for path in left:
        path.write_text("{")
    wyrmling.train(resume(config, run, "training.max_iters=5"))
    assert not [path for path in left if path.exists()]


def test_a_run_is_locked_before_anything_of_it_is_read(tiny_config: Make) -> None:
    config = tiny_config()
    done = wyrmling.train(config, callbacks=[Watcher(stop=4)])
    with done.run.lock(), pytest.raises(CheckpointError, match="is being written by process"):
        wyrmling.train(resume(config, done.run.path))
    assert wyrmling.train(resume(config, done.run.path)).step == 12  # and released again


@pytest.mark.parametrize("named", [True, False])
def test_an_unattended_restart_goes_on_from_before_the_first_checkpoint(
    tiny_config: Make, named: bool
) -> None:
    settings = ["training.launch_mode=resume_latest_checkpoint_if_present"]
    settings += ["run_layout.name=fixed"] if named else []
    config = tiny_config(*settings)
    straight = wyrmling.train(tiny_config("run_layout.name=straight"))
    with pytest.raises(KeyboardInterrupt):
        wyrmling.train(config if named else tiny_config("run_layout.name=other"), callbacks=[Watcher(die=2)])
    again = wyrmling.train(config)
    assert again.run.name == ("fixed" if named else "other")
    assert weights(again.run.path, 12) == weights(straight.run.path, 12)


def test_an_unattended_first_start_takes_the_weights_it_is_given(tiny_config: Make) -> None:
    lender = wyrmling.train(tiny_config())
    place = f'training.init_checkpoint_path="{lender.run.path.as_posix()}"'
    direct = wyrmling.train(tiny_config("training.launch_mode=init_from_checkpoint", place))
    mode = "training.launch_mode=resume_latest_checkpoint_if_present"
    unattended = wyrmling.train(tiny_config(mode, place, "run_layout.name=unattended"))
    assert weights(unattended.run.path, 12) == weights(direct.run.path, 12)


def test_giving_up_exactness_allows_another_machine_and_records_it(tiny_config: Make) -> None:
    config = tiny_config()
    done = wyrmling.train(config, callbacks=[Watcher(stop=4)])
    changed = resume(config, done.run.path, "runtime.dtype=bfloat16", "runtime.threads=2")
    with pytest.raises(CheckpointError, match=r"runtime\.dtype"):
        wyrmling.train(changed)
    wyrmling.train(changed, allow_inexact=True, callbacks=[Watcher(stop=6)])
    choices = {choice["name"]: choice["value"] for choice in done.run.record()["choices"]}
    assert (choices["dtype"], choices["threads"]) == ("bfloat16", "2")
    assert done.run.training_config().runtime.dtype == "bfloat16"
    with pytest.raises(CheckpointError, match="float64"):
        wyrmling.train(resume(config, done.run.path, "runtime.dtype=float64"), allow_inexact=True)


def test_the_end_is_told_however_a_run_ends(tiny_config: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """A callback that fails twice, or before the first step: the first error is shown, and `on_end` is sent."""

    class Broken(Callback):
        def __init__(self, where: str) -> None:
            self.where = where

        def on_start(self, report: RunStarted) -> None:
            if self.where == "start":
                raise RuntimeError("no start")

        def on_step(self, report: StepReport) -> None:
            if self.where == "step":
                raise RuntimeError("no step")

        def on_message(self, report: Message) -> None:
            if report.name == "stage profile":
                raise RuntimeError("no message")

    for where in ("start", "step"):
        watcher = Watcher()
        with pytest.raises(WyrmlingError, match=f"no {where}"):
            wyrmling.train(tiny_config(), callbacks=[watcher, Broken(where)])
        assert len(watcher.ended) == 1
        events = read_events(wyrmling_latest_events())
        assert events[-1]["event"] == "ended"


def wyrmling_latest_events() -> Path:
    from wyrmling.runs import find_run

    return find_run("latest").events_path


def test_what_is_said_before_the_record_is_open_stands_in_it(tiny_config: Make) -> None:
    config = tiny_config("training.checkpoint_keep=9")
    done = wyrmling.train(config, callbacks=[Watcher(stop=9)])
    damaged = checkpoint_path(done.run.checkpoints, 9) / "model.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    wyrmling.train(resume(config, done.run.path))
    texts = [event["text"] for event in read_events(done.run.events_path) if event["event"] == "message"]
    assert any("step-000000009 is passed over" in text for text in texts)


def test_a_text_that_changed_is_not_evaluated_as_if_it_had_not(tiny_config: Make) -> None:
    config = tiny_config()
    done = wyrmling.train(config)
    text = Path(config.dataset.path)
    text.write_text(text.read_text() * 2, encoding="utf-8", newline="")
    with pytest.raises(DataError, match="has changed"):
        wyrmling.evaluate(wyrmling.load_run(done.run.path))


def test_progress_of_a_later_version_is_read_for_what_is_known() -> None:
    progress = loop.Progress(step=3, tokens_seen=9)
    record = progress.to_json(12)
    record["best"]["later"] = 1
    record["window"] = None
    record["more"] = {"a": 1}
    saved = Checkpoint(3, {}, json.loads(json.dumps(record)), Path("step-000000003"))
    assert loop.Progress.of(saved) == progress


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("step", 2, "progress of step 2"),
        ("step", "3", "step .*integer"),
        ("tokens_seen", -1, "tokens_seen"),
        ("loss", [1.0], "loss"),
        ("best", {"step": 4}, "best.step is 4"),
        ("window", {"targets": 1.5}, "window.targets"),
    ],
)
def test_a_number_of_the_progress_that_cannot_be_is_named(key: str, value: object, told: str) -> None:
    record = {**loop.Progress(step=3, tokens_seen=9).to_json(12), key: value}
    with pytest.raises(CheckpointError, match=told) as caught:
        loop.Progress.of(Checkpoint(3, {}, record, Path("step-000000003")))
    assert "progress.json" in str(caught.value)


def test_a_checkpoint_report_comes_after_the_checkpoint(tiny_config: Make) -> None:
    seen = []

    class Reader(Callback):
        def on_checkpoint(self, report: CheckpointReport) -> None:
            copy = report.path.parent / "copy"
            shutil.copytree(report.path, copy)
            seen.append(sum(file.stat().st_size for file in copy.iterdir()) == report.bytes)
            shutil.rmtree(copy)

    wyrmling.train(tiny_config(), callbacks=[Reader()])
    assert seen
    assert all(seen)
