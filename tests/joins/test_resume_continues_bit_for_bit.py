"""Law 4: a run that was interrupted and goes on ends with the weights of one that never stopped, to the last bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import wyrmling
from wyrmling import Callback, Config
from wyrmling.checkpoint import checkpoint_path, list_checkpoints, read_pointer
from wyrmling.config import with_overrides
from wyrmling.errors import CheckpointError
from wyrmling.files import sealed, write_json_atomically
from wyrmling.watch.events import CheckpointReport, Message, StepReport
from wyrmling.watch.jsonl import read_events

Make = Callable[..., Config]
LIVELY = ("model.dropout=0.1", "training.validation_interval_iters=3")


class StopAt(Callback):
    """Asks the run to stop after a step; remembers losses and checkpoints."""

    def __init__(self, step: int | None = None) -> None:
        self.step, self.losses, self.saved, self.messages = step, {}, [], []

    def on_step(self, report: StepReport) -> None:
        if report.loss is not None:
            self.losses[report.step] = report.loss
        if report.step == self.step:
            report.control.stop("the test asked for it")

    def on_checkpoint(self, report: CheckpointReport) -> None:
        self.saved.append(report.step)

    def on_message(self, report: Message) -> None:
        self.messages.append(report.text)


def resume(config: Config, run: Path, *overrides: str) -> Config:
    place = f'training.resume_run_dir="{run.as_posix()}"'
    return with_overrides(config, ["training.launch_mode=resume_exact_run", place, *overrides])


def tensors_of(run: Path, step: int) -> dict[str, bytes]:
    folder = checkpoint_path(run / "checkpoint", step)
    return {file.name: file.read_bytes() for file in folder.glob("*.safetensors")}


@pytest.mark.parametrize("stop", [1, 5, 8, 11])
@pytest.mark.parametrize(
    "extra",
    [
        (),
        (
            "training.order=epochs",
            "training.gradient_accumulation_steps=2",
            "optimizer.name=bitnet_published",
        ),
        ("optimizer.name=muon", "runtime.dtype=bfloat16"),
    ],
)
def test_stopped_anywhere_and_resumed_twice(tiny_config: Make, stop: int, extra: tuple[str, ...]) -> None:
    """Random windows or epochs, accumulation, dropout, validation, Muon: weights, moments and losses agree."""
    config = tiny_config(*LIVELY, *extra)
    whole, watched = StopAt(), [StopAt(stop), StopAt(min(stop + 2, 12)), StopAt()]
    straight = wyrmling.train(config, callbacks=[whole])
    first = wyrmling.train(config, callbacks=[watched[0]])
    assert (first.step, first.reason) == (stop, "the test asked for it")
    second = wyrmling.train(resume(config, first.run.path), callbacks=[watched[1]])
    third = wyrmling.train(resume(config, first.run.path), callbacks=[watched[2]])
    assert first.run.path == second.run.path == third.run.path
    assert third.step == straight.step == 12
    found = tensors_of(third.run.path, 12)
    assert found.keys() == {"model.safetensors", "optimizer.safetensors"}
    assert found == tensors_of(straight.run.path, 12)
    last = watched[2].losses or watched[1].losses
    assert last[12] == whole.losses[12]
    events = read_events(third.run.events_path)
    assert [event["step"] for event in events if event["event"] == "step"] == sorted(
        {event["step"] for event in events if event["event"] == "step"}
    )


def test_resumed_before_the_first_checkpoint(tiny_config: Make) -> None:
    """A run that never got to save starts from step 0, in its own folder."""
    config = tiny_config(*LIVELY)
    straight = wyrmling.train(config)
    stopped = wyrmling.train(config, callbacks=[StopAt(2)])
    for step in list_checkpoints(stopped.run.checkpoints):
        for file in checkpoint_path(stopped.run.checkpoints, step).iterdir():
            file.unlink()
        checkpoint_path(stopped.run.checkpoints, step).rmdir()
    watcher = StopAt()
    again = wyrmling.train(resume(config, stopped.run.path), callbacks=[watcher])
    assert tensors_of(again.run.path, 12) == tensors_of(straight.run.path, 12)
    assert any("before its first checkpoint" in text for text in watcher.messages)


def test_a_finished_run_says_so_and_does_nothing(tiny_config: Make) -> None:
    config = tiny_config()
    done = wyrmling.train(config)
    before = {file: file.read_bytes() for file in done.run.path.rglob("*") if file.is_file()}
    watcher = StopAt()
    again = wyrmling.train(resume(config, done.run.path), callbacks=[watcher])
    assert again.exit_code == 0
    assert "finished" in again.reason
    assert any("max_iters" in text for text in watcher.messages)
    assert watcher.losses == {}
    assert {file: file.read_bytes() for file in done.run.path.rglob("*") if file.is_file()} == before


def test_a_longer_run_goes_on_where_a_constant_rate_allows_it(tiny_config: Make) -> None:
    """With a rate that does not depend on the length, 8 steps and 4 more equal 12."""
    constant = ("optimizer.lr_schedule.type=constant",)
    straight = wyrmling.train(tiny_config(*constant))
    short = wyrmling.train(tiny_config(*constant, "training.max_iters=8"))
    longer = resume(tiny_config(*constant), short.run.path, "training.max_iters=12")
    again = wyrmling.train(longer)
    assert again.step == 12
    assert tensors_of(again.run.path, 12) == tensors_of(straight.run.path, 12)


def test_an_implicit_schedule_is_recomputed_and_this_is_said(tiny_config: Make) -> None:
    short = wyrmling.train(tiny_config("training.max_iters=8"))
    watcher = StopAt()
    wyrmling.train(resume(tiny_config(), short.run.path, "training.max_iters=12"), callbacks=[watcher])
    assert any("it was 8" in text and "12 steps" in text for text in watcher.messages)


def test_going_back_to_an_earlier_step_sets_the_later_ones_aside(tiny_config: Make) -> None:
    config = tiny_config("training.checkpoint_keep=9")
    done = wyrmling.train(config)
    final = tensors_of(done.run.path, 12)
    back = resume(config, done.run.path, "training.resume_checkpoint_step=4")
    again = wyrmling.train(back)
    assert again.step == 12
    assert tensors_of(done.run.path, 12) == final
    steps = [event["step"] for event in read_events(done.run.events_path) if event["event"] == "step"]
    assert steps == [2, 4, 6, 8, 10, 12]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("model.n_layer=3", "model.n_layer"),
        ("model.rotary_embedding=pope", "model.rotary_embedding"),
        ("training.seed=1", "training.seed"),
        ("training.batch_size=2", "training.batch_size"),
        ("training.block_size=16", "training.block_size"),
        ("dataset.train_split_ratio=0.5", "dataset.train_split_ratio"),
        ("dataset.tokenizer.type=char", "dataset.tokenizer.type"),
        ("optimizer.learning_rate=0.5", "optimizer.learning_rate"),
        ("runtime.dtype=float64", "runtime.dtype"),
    ],
)
def test_what_would_make_it_another_run_is_refused(tiny_config: Make, change: str, named: str) -> None:
    """Model, data, tokenizer, seed, batch: refused, showing the difference; nothing is written."""
    config = tiny_config()
    done = wyrmling.train(config, callbacks=[StopAt(4)])
    before = sorted(file for file in done.run.path.rglob("*"))
    with pytest.raises(CheckpointError, match=rf"{named}: .* -> ") as caught:
        wyrmling.train(resume(config, done.run.path, change))
    assert "\n" not in str(caught.value)
    assert sorted(file for file in done.run.path.rglob("*")) == before


@pytest.mark.parametrize(
    "change", ["training.log_frequency=5", "training.validation_batches=1", "runtime.prefetch=0"]
)
def test_what_does_not_touch_the_weights_may_change(tiny_config: Make, change: str) -> None:
    config = tiny_config()
    straight = wyrmling.train(config)
    first = wyrmling.train(config, callbacks=[StopAt(5)])
    again = wyrmling.train(resume(config, first.run.path, change))
    assert tensors_of(again.run.path, 12) == tensors_of(straight.run.path, 12)


def test_another_text_under_the_same_path_is_refused(tiny_config: Make) -> None:
    config = tiny_config()
    done = wyrmling.train(config, callbacks=[StopAt(4)])
    Path(config.dataset.path).write_text("quite another text " * 500, encoding="utf-8")
    with pytest.raises(CheckpointError, match="another text"):
        wyrmling.train(resume(config, done.run.path))


def test_what_stands_between_documents_is_part_of_the_text(tiny_config: Make, tmp_path: Path) -> None:
    """Changed where it makes a difference it is refused by name, elsewhere it does not matter."""
    for name in "ab":
        (tmp_path / f"{name}.md").write_text("no end of line " * 100, encoding="utf-8")
    several = f'dataset.path="{(tmp_path / "*.md").as_posix()}"'
    done = wyrmling.train(tiny_config(several, 'dataset.document_separator=""'), callbacks=[StopAt(4)])
    with pytest.raises(CheckpointError, match='document_separator was ""'):
        wyrmling.train(resume(tiny_config(several), done.run.path))
    single = wyrmling.train(tiny_config('dataset.document_separator=""'), callbacks=[StopAt(4)])
    again = wyrmling.train(resume(tiny_config(), single.run.path))
    assert tensors_of(again.run.path, 12) == tensors_of(wyrmling.train(tiny_config()).run.path, 12)


def test_the_same_text_under_another_path_is_fine(tiny_config: Make, tmp_path: Path) -> None:
    config = tiny_config()
    straight = wyrmling.train(config)
    done = wyrmling.train(config, callbacks=[StopAt(4)])
    moved = tmp_path / "moved.txt"
    Path(config.dataset.path).rename(moved)
    again = wyrmling.train(resume(config, done.run.path, f'dataset.path="{moved.as_posix()}"'))
    assert tensors_of(again.run.path, 12) == tensors_of(straight.run.path, 12)


def test_latest_is_resumed_only_when_it_is_the_same_run(tiny_config: Make) -> None:
    mode = "training.launch_mode=resume_latest_checkpoint_if_present"
    fresh = wyrmling.train(tiny_config(mode), callbacks=[StopAt(4)])  # nothing there yet: a new run
    again = wyrmling.train(tiny_config(mode))
    assert again.run.path == fresh.run.path
    with pytest.raises(CheckpointError, match="another configuration"):
        wyrmling.train(tiny_config(mode, "training.seed=3"))


def test_a_damaged_newest_checkpoint_is_passed_over_with_a_word(tiny_config: Make) -> None:
    config = tiny_config("training.checkpoint_keep=9")
    straight = wyrmling.train(config)
    done = wyrmling.train(config, callbacks=[StopAt(9)])
    damaged = checkpoint_path(done.run.checkpoints, 9) / "model.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-100])
    watcher = StopAt()
    again = wyrmling.train(resume(config, done.run.path), callbacks=[watcher])
    assert any("step-000000009" in text for text in watcher.messages)
    assert tensors_of(again.run.path, 12) == tensors_of(straight.run.path, 12)


def test_the_best_and_the_newest_stay(tiny_config: Make) -> None:
    config = tiny_config("training.checkpoint_keep=1", "training.checkpoint_interval_iters=2")
    done = wyrmling.train(config)
    best = read_pointer(done.run.checkpoints, "best")
    assert set(list_checkpoints(done.run.checkpoints)) == {best, 12}
    assert read_pointer(done.run.checkpoints, "latest") == 12


def test_weights_can_start_a_new_run(tiny_config: Make) -> None:
    """init_from_checkpoint: a new run, step 0, the old weights, and what they are worth before step 1."""
    import json

    old = wyrmling.train(tiny_config())
    place = f'training.init_checkpoint_path="{old.run.path.as_posix()}"'
    new = wyrmling.train(
        tiny_config("training.launch_mode=init_from_checkpoint", place, "training.max_iters=5")
    )
    assert new.run.path != old.run.path
    assert new.step == 5
    record = json.loads((new.run.path / "pre_step_validation.json").read_text())
    assert record["mean_loss"] == pytest.approx(old.validation_loss, abs=1e-6)


@pytest.mark.parametrize(
    ("settings", "differs"),
    [
        (("model.sequence_kernel=rwkv8",), True),
        (("model.sequence_kernel=mamba3",), True),
        (("model.rotary_embedding=alibi",), True),
        (("model.sequence_kernel=mamba2",), False),
        ((), False),
    ],
)
@pytest.mark.parametrize("made_with", [{}, {"torch": "2.0.0"}])
def test_what_was_computed_otherwise_goes_on_only_where_that_is_allowed(
    tiny_config: Make, settings: tuple[str, ...], differs: bool, made_with: dict[str, str]
) -> None:
    """A run of a version whose arithmetic had other last bits in this memory, or of another torch."""
    config = tiny_config("training.max_iters=4", *settings)
    run = wyrmling.train(config, callbacks=[StopAt(2)]).run
    record = run.record()
    versions = {name: text for name, text in record["versions"].items() if name != "arithmetic"}
    write_json_atomically(run.config_json, sealed({**record, "versions": versions | made_with}))
    if differs or made_with:
        with pytest.raises(CheckpointError, match=r"last bits; pass --allow-inexact"):
            wyrmling.train(resume(config, run.path))
    watch = StopAt()
    assert wyrmling.train(resume(config, run.path), callbacks=[watch], allow_inexact=True).step == 4
    assert any("last bits" in text for text in watch.messages) == (differs or bool(made_with))
    assert wyrmling.train(resume(config, run.path)).step == 4, "what it goes on with is recorded"
