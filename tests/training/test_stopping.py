"""What counts as an improvement, and what signals do."""

from __future__ import annotations

import math
import os
import shutil
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import wyrmling
from wyrmling import Config
from wyrmling.checkpoint import checkpoint_path, list_checkpoints, read_checkpoint, read_pointer
from wyrmling.config.launching import to_go_on
from wyrmling.config.schema.training import EarlyStopping
from wyrmling.errors import CheckpointError, DivergedError, StorageError
from wyrmling.training.stopping import BestSoFar, stop_on_signals
from wyrmling.watch.events import Callback, CheckpointReport, Control, Message, SampleReport, StepReport
from wyrmling.watch.jsonl import read_events

Make = Callable[..., Config]


def after(losses: list[float], min_delta: float = 0.0) -> BestSoFar:
    record = BestSoFar()
    for step, loss in enumerate(losses, start=1):
        record = record.after(loss, step, min_delta)
    return record


def test_the_lowest_loss_is_the_best_and_the_earlier_of_two() -> None:
    record = after([3.0, 2.0, 2.5, 2.0])
    assert (record.loss, record.step, record.without_improvement) == (2.0, 2, 2)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_finite_improves_nothing(bad: float) -> None:
    assert after([bad]).step is None
    assert after([bad, 5.0, bad]).step == 2
    assert after([bad, 5.0, bad]).without_improvement == 1


def test_small_gains_do_not_reset_the_patience_but_are_the_best() -> None:
    record = after([3.0, 2.99, 2.98], min_delta=0.5)
    assert (record.step, record.without_improvement) == (3, 2)
    assert record.exhausted(EarlyStopping(patience=2))
    assert not record.exhausted(EarlyStopping(patience=3))
    assert not record.exhausted(None)


@pytest.mark.parametrize(("losses", "end"), [([0.75, 0.4, 2.0, 1.5, 9.0], 4), ([1.0, 1.0, 1.0, 1.0], 3)])
def test_the_described_sequences(losses: list[float], end: int) -> None:
    """Patience 2: an equal loss is no improvement."""
    rule = EarlyStopping(patience=2)
    ended = [count for count in range(1, len(losses) + 1) if after(losses[:count]).exhausted(rule)]
    assert ended[0] == end


def test_the_patience_survives_an_interruption(tiny_config: Make) -> None:
    """Stopped and resumed, early stopping ends the run at the same step."""
    settings = (
        "training.early_stopping={patience = 2, min_delta = 10.0}",
        "training.validation_interval_iters=3",
    )
    straight = wyrmling.train(tiny_config(*settings))

    class StopAt(Callback):
        def on_step(self, report: StepReport) -> None:
            if report.step == 7:
                report.control.stop("enough")

    stopped = wyrmling.train(tiny_config(*settings), callbacks=[StopAt()])
    from wyrmling.config import with_overrides

    again = wyrmling.train(
        with_overrides(
            tiny_config(*settings),
            [
                "training.launch_mode=resume_exact_run",
                f'training.resume_run_dir="{stopped.run.path.as_posix()}"',
            ],
        )
    )
    assert (again.step, again.reason) == (straight.step, straight.reason) == (9, "early stopping")


@pytest.mark.skipif(os.name == "nt", reason="signals are sent differently there")
@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGINT"])
def test_the_first_signal_asks_and_the_handlers_are_put_back(name: str) -> None:
    number = signal.Signals[name]
    before = signal.getsignal(number)
    control = Control()
    with stop_on_signals(control) as interrupt:
        os.kill(os.getpid(), number)
        assert control.stop_requested
        assert (control.reason, interrupt.exit_code) == (name, 128 + number)
    assert signal.getsignal(number) is before


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGHUP")
@pytest.mark.parametrize("after", ["SIGHUP SIGHUP", "SIGHUP SIGTERM", "SIGTERM SIGHUP SIGHUP"])
def test_a_terminal_that_goes_away_says_so_several_times(after: str) -> None:
    """The kernel and the shell both send SIGHUP, a session's end SIGTERM too: no reason to leave without saving."""
    with stop_on_signals(Control()) as interrupt:
        for name in after.split():
            os.kill(os.getpid(), signal.Signals[name])
        assert interrupt.exit_code == 128 + signal.Signals[after.split()[0]]


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGHUP")
def test_a_hangup_that_the_process_was_told_to_ignore_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        control = Control()
        with stop_on_signals(control):
            os.kill(os.getpid(), signal.SIGHUP)
            assert not control.stop_requested
    finally:
        signal.signal(signal.SIGHUP, before)


def test_other_threads_take_no_signals() -> None:
    codes = []

    def work() -> None:
        with stop_on_signals(Control()) as interrupt:
            codes.append(interrupt.exit_code)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert codes == [0]


class Meddling(Callback):
    """Does something to the run's folder while it trains."""

    def __init__(self, act: Callable[[Path], object]) -> None:
        self.act = act
        self.told: list[str] = []

    def on_step(self, report: StepReport) -> None:
        if report.step == 6:
            self.act(Path(os.environ["WYRMLING_RUN_ROOT"]) / "a")

    def on_message(self, report: Message) -> None:
        self.told.append(report.text)


def move(run: Path) -> None:
    run.rename(run.with_name("b"))


def move_and_copy(run: Path) -> None:
    move(run)
    shutil.copytree(run.with_name("b"), run)


def empty(run: Path) -> None:
    shutil.rmtree(run)
    run.mkdir()


@pytest.mark.parametrize("act", [move, shutil.rmtree, move_and_copy, empty])
def test_a_run_whose_folder_goes_away_is_told(tiny_config: Make, act: Callable[[Path], object]) -> None:
    """A folder of that name is not made anew, and nothing is written into another run that has the name."""
    with pytest.raises(StorageError, match="removed"):
        wyrmling.train(tiny_config("run_layout.name=a"), callbacks=[Meddling(act)])
    run = Path(os.environ["WYRMLING_RUN_ROOT"]) / "a"
    moved = run.with_name("b")
    assert 8 not in list_checkpoints(run / "checkpoint")
    if moved.exists():
        shutil.rmtree(run, ignore_errors=True)
        moved.rename(run)
        assert wyrmling.train(tiny_config("run_layout.name=a", *to_go_on(run))).step == 12


def test_a_record_that_is_removed_begins_again(tiny_config: Make) -> None:
    meddling = Meddling(lambda run: (run / "events.jsonl").unlink())
    result = wyrmling.train(tiny_config("run_layout.name=a"), callbacks=[meddling])
    assert result.finished
    first, *_, last = read_events(result.run.events_path)
    assert (first["event"], first["level"], last["event"]) == ("message", "warning", "ended")
    assert first["text"] in meddling.told


def test_ruined_weights_are_not_saved(tiny_config: Make) -> None:
    """A finite gradient and an infinite update: the run ends with a word and keeps its checkpoints."""
    good = wyrmling.train(tiny_config("training.max_iters=4"))
    place = f'training.init_checkpoint_path="{good.run.path.as_posix()}"'
    wild = tiny_config(
        "training.launch_mode=init_from_checkpoint",
        place,
        "optimizer.weight_decay=1e300",
        "training.checkpoint_interval_iters=1",
    )
    with pytest.raises(DivergedError, match="not finite") as caught:
        wyrmling.train(wild)
    assert "init_from_checkpoint" in str(caught.value) or "weight_decay" in str(caught.value)
    run = (
        Path(os.environ["WYRMLING_RUN_ROOT"])
        / (Path(os.environ["WYRMLING_RUN_ROOT"]) / "latest").read_text().strip()
    )
    assert list_checkpoints(run / "checkpoint") == [0]  # the borrowed ones


def test_a_warm_start_takes_the_newest_good_checkpoint(tiny_config: Make) -> None:
    good = wyrmling.train(tiny_config("training.checkpoint_keep=9"))
    damaged = checkpoint_path(good.run.checkpoints, 12) / "model.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    told: list[str] = []

    class Listener(Callback):
        def on_message(self, report: Message) -> None:
            told.append(report.text)

    place = f'training.init_checkpoint_path="{good.run.path.as_posix()}"'
    result = wyrmling.train(
        tiny_config(
            "training.launch_mode=init_from_checkpoint",
            place,
            "optimizer.learning_rate=1e-12",
            "optimizer.lr_schedule.type=constant",
        ),
        callbacks=[Listener()],
    )
    assert any("step-000000012 is passed over" in text for text in told)
    eighth = wyrmling.load_run(good.run.path, checkpoint=8).model
    for name, parameter in result.model.named_parameters():
        torch.testing.assert_close(parameter, eighth.get_parameter(name), rtol=1e-6, atol=1e-8)


def test_weights_that_only_got_worse_are_not_the_best(tiny_config: Make) -> None:
    """A rate far too high: every validation is above that of the first weights, and no checkpoint is called the best.
    Where the first weights are a checkpoint (a warm start), they are.
    """
    wild = ("optimizer.learning_rate=1.0", "optimizer.lr_schedule=none", "optimizer.grad_clip_norm=off")
    result = wyrmling.train(tiny_config(*wild))
    record = read_checkpoint(checkpoint_path(result.run.checkpoints, result.step)).progress
    assert record["validation_loss"] > record["best"]["loss"]
    assert (record["best"]["step"], result.step) == (0, 12)
    assert read_pointer(result.run.checkpoints, "best") is None
    with pytest.raises(CheckpointError, match="no best checkpoint"):
        wyrmling.load_run(result.run.path, checkpoint="best")
    good = wyrmling.train(tiny_config())
    assert read_pointer(good.run.checkpoints, "best") == 12
    start = (
        "training.launch_mode=init_from_checkpoint",
        f'training.init_checkpoint_path="{good.run.path.as_posix()}"',
    )
    worse = wyrmling.train(tiny_config(*wild, *start))
    assert (read_pointer(worse.run.checkpoints, "best"), list_checkpoints(worse.run.checkpoints)[0]) == (0, 0)


class Signalled(Callback):
    """Sends a signal at step 5 of the first run that it watches, and once more as often as asked."""

    def __init__(self, number: int, times: int = 1) -> None:
        self.number, self.times = number, times

    def on_step(self, report: StepReport) -> None:
        if report.step == 5:
            for _ in range(self.times):
                os.kill(os.getpid(), self.number)


@pytest.mark.skipif(os.name == "nt", reason="signals are sent differently there")
@pytest.mark.parametrize(
    ("name", "raised"), [("SIGINT", KeyboardInterrupt), ("SIGTERM", SystemExit), ("SIGHUP", SystemExit)]
)
def test_a_signal_ends_the_loop_over_runs_after_the_checkpoint(
    tiny_config: Make, name: str, raised: type[BaseException]
) -> None:
    number, run = signal.Signals[name], "interrupted-run"
    before, begun = signal.getsignal(number), []

    def sweep() -> None:
        for place in (run, "never-begun"):
            begun.append(place)
            wyrmling.train(tiny_config(f"run_layout.name={place}"), callbacks=[Signalled(number)])

    with pytest.raises(raised) as caught:
        sweep()
    assert begun == [run]
    assert wyrmling.load_run(run).step == 5
    assert signal.getsignal(number) is before
    if isinstance(caught.value, SystemExit):
        assert caught.value.code == 128 + number


@pytest.mark.skipif(os.name == "nt", reason="signals are sent differently there")
def test_a_program_that_knows_the_signal_is_told_and_gets_the_result(tiny_config: Make) -> None:
    told: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: told.append(number))
    try:
        result = wyrmling.train(tiny_config(), callbacks=[Signalled(signal.SIGTERM)])
    finally:
        signal.signal(signal.SIGTERM, before)
    assert (result.step, result.reason, result.exit_code, told) == (5, "SIGTERM", 143, [signal.SIGTERM])
    returned = wyrmling.train(tiny_config(), callbacks=[Signalled(signal.SIGINT)], on_signal="return")
    assert (returned.step, returned.exit_code) == (5, 130)


@pytest.mark.skipif(os.name == "nt", reason="signals are sent differently there")
def test_a_second_interrupt_does_not_wait_for_the_step(tiny_config: Make) -> None:
    with pytest.raises(KeyboardInterrupt):
        wyrmling.train(tiny_config("run_layout.name=twice"), callbacks=[Signalled(signal.SIGINT, times=2)])
    assert wyrmling.load_run("twice").step == 4, "the last checkpoint before"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.skipif(os.name == "nt", reason="signals are sent differently there")
def test_a_handler_that_python_did_not_set_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signal, "getsignal", lambda number: None)
    monkeypatch.setattr(signal, "signal", lambda *_: pytest.fail("could not be put back"))
    with stop_on_signals(Control()):
        pass


def test_a_long_sample_ends_where_the_run_is_asked_to(tiny_config: Make) -> None:
    """Asked for once the last step is saved: the sample after it would take years."""

    class AskAfterTheLastStep(Callback):
        samples = 0

        def on_checkpoint(self, report: CheckpointReport) -> None:
            if report.step == 12:
                report.control.stop("enough")

        def on_sample(self, report: SampleReport) -> None:
            self.samples += 1

    watch = AskAfterTheLastStep()
    result = wyrmling.train(tiny_config("generation.max_tokens=1000000000000"), callbacks=[watch])
    assert (result.step, result.finished, watch.samples) == (12, True, 0)
