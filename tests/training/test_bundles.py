"""Bundles: stages in order, each from where it says; interrupted ones go on, finished ones stay, changes are seen."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from small_texts import small_text
from wyrmling import Callback, errors
from wyrmling.checkpoint import (
    checkpoint_path,
    locate_checkpoint,
    read_checkpoint,
    read_pointer,
    save_checkpoint,
)
from wyrmling.config import Bundle, load_bundle
from wyrmling.runs import find_run, run_names
from wyrmling.runs.bundle_state import FILE, BundleState, read_bundle_state
from wyrmling.training.bundles import described, plan_bundle, run_bundle
from wyrmling.watch.events import Message, StepReport

COMMON = """
    "dataset.type=local_text",
    "dataset.split=ratio",
    "training.checkpoint_interval_iters=3",
    "training.log_frequency=2",
    "training.validation_batches=2",
    "training.max_iters=6",
    "model.dropout=0.1",
    "generation.max_tokens=4",
    "runtime.dtype=float32",
    "runtime.threads=1",
"""
BUNDLE = """
name = "plays"
config = "tiny"
set = [{common} 'dataset.path="{text}"']

[[stages]]
name = "short"
set = ["training.block_size=16"]

[[stages]]
name = "long"
init_from = "short"
init_checkpoint = "best"
set = ["training.block_size=32", "training.seed=2"]
"""
Load = Callable[..., Bundle]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    text = tmp_path / "text.txt"
    text.write_text(small_text(), encoding="utf-8", newline="")
    (tmp_path / "plays.toml").write_text(BUNDLE.format(common=COMMON, text=text.as_posix()), encoding="utf-8")

    def load(*overrides: str, name: str | None = None) -> Bundle:
        return load_bundle(tmp_path / "plays.toml", overrides, name)

    return load


class Watcher(Callback):
    """Remembers messages and steps; asks the run to stop after a step."""

    def __init__(self, stop: tuple[str, int] | None = None) -> None:
        self.stop, self.told, self.steps, self.name = stop, [], [], ""

    def on_start(self, report) -> None:
        self.name = report.name

    def on_message(self, report: Message) -> None:
        if report.name == "bundle":
            self.told.append(report.text)

    def on_step(self, report: StepReport) -> None:
        self.steps.append((self.name, report.step))
        if self.stop == (self.name, report.step):
            report.control.stop("the test asked for it")


def weights(bundle: Bundle) -> dict[str, bytes]:
    """Weights and moments of both stages after their last step, by path below the stages' runs."""
    found = {}
    for stage in bundle.stages:
        folder = checkpoint_path(stage.run / "checkpoint", 6)
        found.update(
            {f"{stage.name}/{file.name}": file.read_bytes() for file in folder.glob("*.safetensors")}
        )
    return found


def statuses(bundle: Bundle) -> list[tuple[str, str]]:
    state = read_bundle_state(bundle.folder)
    assert state is not None
    return [(record.name, record.status) for record in state.stages]


def test_a_stage_begins_with_the_checkpoint_it_names(load: Load) -> None:
    """The second stage's step 0 is the first one's best checkpoint, bit for bit; runs are found by name."""
    bundle, watcher = load(), Watcher()
    result = run_bundle(bundle, callbacks=[watcher])
    assert result.exit_code == 0
    assert list(result.runs) == ["short", "long"]
    assert watcher.steps == [("plays-short", n) for n in range(1, 7)] + [
        ("plays-long", n) for n in range(1, 7)
    ]
    assert watcher.told == [
        "plays, stage 1 of 2: short begins with new weights, 6 steps of 4 x 16 tokens",
        "plays, stage 2 of 2: long begins with the best checkpoint of short, 6 steps of 4 x 32 tokens",
    ]
    assert statuses(bundle) == [("short", "completed"), ("long", "completed")]
    short, long = find_run("plays-short"), find_run("latest")
    best = read_pointer(short.checkpoints, "best")
    assert long.training_config().training.init_checkpoint_step == best
    noted = json.loads((long.path / "pre_step_validation.json").read_text(encoding="utf-8"))
    assert noted["init_checkpoint_step"] == best
    state = read_bundle_state(bundle.folder)
    assert state.stage("long").init == {"stage": "short", "checkpoint": "best", "step": best}
    assert run_names(find_run("latest").path.parents[4]) == [
        "bundles/plays/stages/short/plays-short",
        "bundles/plays/stages/long/plays-long",
    ]


def test_the_best_is_lent_even_where_it_is_not_the_last(load: Load) -> None:
    bundle = load("training.checkpoint_keep=3")
    lender = run_bundle(bundle, stop_after="short").runs["short"]
    newest = read_checkpoint(locate_checkpoint(lender.path))
    best = {**newest.progress["best"], "step": 3}
    save_checkpoint(lender.checkpoints, newest.step, newest.parts, {**newest.progress, "best": best})
    run = run_bundle(bundle).runs["long"]
    assert run.training_config().training.init_checkpoint_step == 3
    lent, begun = (
        checkpoint_path(one.checkpoints, step) / "model.safetensors" for one, step in ((lender, 3), (run, 0))
    )
    assert lent.read_bytes() == begun.read_bytes()


def test_stages_on_other_text_share_the_first_ones_tokens(load: Load, tmp_path: Path) -> None:
    (tmp_path / "other.txt").write_text(small_text(seed=1) + "to be or not\n" * 50, encoding="utf-8")
    bundle = load("dataset.tokenizer.type=char", f'long:dataset.path="{(tmp_path / "other.txt").as_posix()}"')
    watcher = Watcher()
    runs = run_bundle(bundle, callbacks=[watcher]).runs
    assert runs["long"].tokenizer().fingerprint() == runs["short"].tokenizer().fingerprint()
    assert "begins with the best checkpoint and the tokenizer of short" in watcher.told[1]
    assert run_bundle(bundle).last is None


def test_ctrl_c_stops_the_bundle_and_not_only_the_stage(load: Load) -> None:
    class Interrupts(Watcher):
        def on_step(self, report: StepReport) -> None:
            super().on_step(report)
            if self.steps == [("plays-short", 1), ("plays-short", 2)]:
                signal.raise_signal(signal.SIGINT)

    bundle, first, second = load(), Interrupts(), Watcher()
    with pytest.raises(KeyboardInterrupt):  # a loop over bundles ends too
        run_bundle(bundle, callbacks=[first])
    assert statuses(bundle) == [("short", "interrupted"), ("long", "pending")]
    assert run_bundle(bundle, callbacks=[second]).exit_code == 0
    assert second.steps[0] == ("plays-short", 3)


def test_a_finished_bundle_is_left_alone(load: Load) -> None:
    bundle = load()
    run_bundle(bundle)
    before = {file: file.read_bytes() for file in bundle.folder.rglob("*") if file.is_file()}
    watcher = Watcher()
    again = run_bundle(load("generation.max_tokens=9", "runtime.device=cpu"), callbacks=[watcher])
    assert (again.exit_code, again.last, list(again.runs)) == (0, None, ["short", "long"])
    assert watcher.steps == []
    assert watcher.told[0].endswith("short is finished at step 6")
    assert {file: file.read_bytes() for file in bundle.folder.rglob("*") if file.is_file()} == before


@pytest.mark.parametrize(
    "stop", [("plays-short", 2), ("plays-short", 5), ("plays-long", 1), ("plays-long", 4)]
)
def test_an_interrupted_stage_goes_on_exactly(load: Load, stop: tuple[str, int]) -> None:
    straight = load(name="straight")
    run_bundle(straight)
    bundle, first, second = load(), Watcher(stop), Watcher()
    stopped = run_bundle(bundle, callbacks=[first])
    assert first.steps[-1] == stop
    assert not stopped.last.finished
    assert statuses(bundle)[stop[0] == "plays-long"][1] == "interrupted"
    assert run_bundle(bundle, callbacks=[second]).last.finished
    assert second.steps[0] == (stop[0], stop[1] + 1)
    assert weights(bundle) == weights(straight)


class Killed(BaseException):
    """Stands for the death of the process."""


def test_death_around_every_write_of_the_state(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    """Just before and just after each of them: the same weights in the end, no step done twice."""
    straight = load(name="straight")
    run_bundle(straight)
    write, left = BundleState.write, [0]

    def deadly(self: BundleState, folder: Path) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise Killed
        write(self, folder)
        left[0] -= 1
        if left[0] == 0:
            raise Killed

    monkeypatch.setattr(BundleState, "write", deadly)
    bundle, watcher = load(), Watcher()
    for moment in (1, 2, 3, 4) * 2:  # around the beginning and around the end of either stage
        left[0] = moment
        with pytest.raises(Killed):
            run_bundle(bundle, callbacks=[watcher])
    assert run_bundle(bundle, callbacks=[watcher]).last is None
    assert watcher.steps == [("plays-short", n) for n in range(1, 7)] + [
        ("plays-long", n) for n in range(1, 7)
    ]
    assert weights(bundle) == weights(straight)


def test_stopping_after_a_stage(load: Load) -> None:
    bundle = load()
    assert list(run_bundle(bundle, stop_after="short").runs) == ["short"]
    assert statuses(bundle) == [("short", "completed"), ("long", "pending")]
    with pytest.raises(
        errors.ConfigError, match="no stage 'shrt' in this bundle; its stages are short, long"
    ):
        run_bundle(bundle, stop_after="shrt")
    plan = plan_bundle(bundle)
    assert [item.action for item in plan] == ["finished", "begin"]
    assert "begins with the best checkpoint of short" in described(plan[1])


def test_a_changed_finished_stage_is_refused_or_kept_as_it_is(load: Load) -> None:
    bundle = load()
    run_bundle(bundle, stop_after="short")
    kept = find_run("plays-short").checkpoints / "step-000000006" / "model.safetensors"
    before = kept.read_bytes()
    changed = load("short:training.max_iters=9", "short:training.batch_size=2")
    line = (
        r"stage short is finished, and its configuration has changed since: training\.batch_size: 4 -> 2; "
        r"training\.max_iters: 6 -> 9; put it back, keep the stage as it is with --allow-changed, or begin again under"
    )
    with pytest.raises(errors.ConfigError, match=line):
        run_bundle(changed)
    with pytest.raises(
        errors.ConfigError, match=r"run_layout: stages/short/plays-short -> stages/short/other"
    ):
        plan_bundle(load("short:run_layout.name=other"))
    moved = load("short:training.max_iters=9", "short:training.batch_size=2", "short:run_layout.name=other")
    result = run_bundle(moved, allow_changed=True)
    assert result.runs["long"].training_config().training.init_checkpoint_path == kept.parents[2]
    assert list(result.runs) == ["short", "long"]
    assert kept.read_bytes() == before
    text = Path(bundle.file).read_text(encoding="utf-8").replace('"best"', '"latest"')
    Path(bundle.file).write_text(text, encoding="utf-8")
    lent = load("short:training.max_iters=6")
    with pytest.raises(errors.ConfigError, match=r"init_from: best of short -> latest of short"):
        plan_bundle(lent)


def test_a_finished_stage_whose_run_is_gone_is_told_and_runs_again_on_request(load: Load) -> None:
    bundle, watcher = load(), Watcher()
    run_bundle(bundle)
    straight = weights(bundle)
    short, long = (stage.run for stage in bundle.stages)
    shutil.rmtree(short / "checkpoint")
    with pytest.raises(
        errors.CheckpointError, match=r"stage short is finished, and no checkpoint is left .*--redo-missing"
    ):
        run_bundle(bundle)
    kept = run_bundle(bundle, callbacks=[watcher], allow_changed=True)
    assert watcher.told[0].endswith("short is finished at step 6, and its run is gone")
    assert list(kept.runs) == ["long"]
    with pytest.raises(
        errors.CheckpointError, match=r"stage short cannot be run again while .* is there.*move it away"
    ):
        run_bundle(bundle, redo_missing=True)
    shutil.rmtree(short)
    assert [item.action for item in plan_bundle(bundle, redo_missing=True)] == ["begin", "finished"]
    again = Watcher()
    run_bundle(bundle, callbacks=[again], redo_missing=True)
    assert "short begins again, as its run is gone, with new weights" in again.told[0]
    assert {name for name, _ in again.steps} == {"plays-short"}
    assert weights(bundle) == straight

    shutil.rmtree(long)
    shutil.rmtree(short)
    run_bundle(bundle, redo_missing=True)
    assert weights(bundle) == straight


def test_a_stage_that_begins_with_weights_that_are_gone_is_refused_before_it_begins(load: Load) -> None:
    bundle = load()
    run_bundle(bundle, stop_after="short")
    shutil.rmtree(bundle.stages[0].run)
    with pytest.raises(
        errors.CheckpointError, match=r"stage long begins from short, and no checkpoint is left .*--redo-miss"
    ):
        run_bundle(bundle, allow_changed=True)


def test_a_changed_interrupted_stage_is_refused_with_what_to_do(load: Load) -> None:
    bundle = load()
    run_bundle(bundle, callbacks=[Watcher(("plays-long", 2))])
    with pytest.raises(
        errors.ConfigError,
        match=r"stage long has begun with another configuration: training\.batch_size: 4 -> 3; put it back, or remove "
        r".*plays-long to begin the stage anew",
    ):
        run_bundle(load("long:training.batch_size=3"), allow_changed=True)
    with pytest.raises(
        errors.ConfigError, match=r"has begun in .*plays-long and is now to lie in .*elsewhere"
    ):
        run_bundle(load("long:run_layout.name=elsewhere"))
    longer = Watcher()
    run_bundle(load("long:training.max_iters=7"), callbacks=[longer])
    assert longer.steps == [("plays-long", step) for step in range(3, 8)]


def test_a_stage_may_be_larger_and_goes_on_where_it_was_interrupted(load: Load) -> None:
    bundle = load("long:model.latent_total=256", "long:training.init_transfer.norm_blend_alpha=1.0")
    first = run_bundle(bundle, callbacks=[Watcher(("plays-long", 2))])
    assert first.last is not None
    assert not first.last.finished
    assert list(run_bundle(bundle).runs) == ["short", "long"]
    short, long = find_run("plays-short"), find_run("plays-long")
    assert (long.record()["model_spec"]["parameter_count"]) > short.record()["model_spec"]["parameter_count"]
    table = json.loads((long.path / "transfer.json").read_text(encoding="utf-8"))
    assert table["growth"] == "64 -> 128 neurons per head (64 of 64 split)"


def test_every_stage_is_checked_before_the_first_begins(load: Load, tmp_path: Path) -> None:
    for overrides, line in (
        (['long:dataset.path="gone.txt"'], r"plays\.toml: stage long: .*gone\.txt"),
        (
            ["long:training.gdpo.enabled=true", "long:training.gdpo.group_size=2"],
            r"plays\.toml: stage long: training\.gdpo\.enabled is true, but",
        ),
        (
            [f"long:runtime.device={'cuda' if torch.backends.mps.is_available() else 'mps'}"],
            r"plays\.toml: stage long: runtime\.device: (cuda|mps) is not available here",
        ),
        (["long:model.n_embd=64"], r"plays\.toml: stage long: the weights of stage short do not fit"),
    ):
        with pytest.raises(errors.UserError, match=line):
            run_bundle(load(*overrides))
    assert not (tmp_path / "runs").exists()


def test_a_failed_stage_stops_the_bundle_and_running_it_again_goes_on(load: Load) -> None:
    class Fails(Watcher):
        def on_step(self, report: StepReport) -> None:
            super().on_step(report)
            if self.steps[-1] == ("plays-short", 4):
                raise errors.StorageError("cannot write x: no space left")

    bundle, second = load(), Watcher()
    with pytest.raises(errors.WyrmlingError):
        run_bundle(bundle, callbacks=[Fails()])
    state = read_bundle_state(bundle.folder)
    assert state.stage("short").status == "failed"
    assert state.stage("short").error
    assert state.stage("long").status == "pending"
    run_bundle(bundle, callbacks=[second])
    assert second.steps[0] == ("plays-short", 4)
    assert statuses(bundle) == [("short", "completed"), ("long", "completed")]


def test_runs_that_the_state_does_not_know_are_not_touched(load: Load) -> None:
    bundle = load()
    run_bundle(bundle, stop_after="short")
    (bundle.folder / FILE).unlink()
    with pytest.raises(
        errors.CheckpointError, match=r"plays-short exists already, and .*bundle_state\.json does not"
    ):
        run_bundle(bundle)


def test_two_processes_do_not_run_one_bundle(load: Load) -> None:
    from wyrmling.runs.directory import locked

    bundle = load()
    bundle.folder.mkdir(parents=True)
    with locked(bundle.folder), pytest.raises(errors.CheckpointError, match="being written by"):
        run_bundle(bundle)


def test_variables_that_fix_one_run_are_refused(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WYRMLING_RUN_DIR", "somewhere")
    monkeypatch.setenv("WYRMLING_RUN_NAME", "one")
    with pytest.raises(errors.ConfigError, match="WYRMLING_RUN_DIR and WYRMLING_RUN_NAME fix one run"):
        plan_bundle(load())
