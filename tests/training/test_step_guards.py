"""Guards of the optimizer step: nothing that is not finite ever reaches a weight or a checkpoint."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import wyrmling
from wyrmling import Callback, Config
from wyrmling.checkpoint import list_checkpoints, newest_good
from wyrmling.config import with_overrides
from wyrmling.errors import DivergedError
from wyrmling.watch.events import RunEnded, StepReport, ValidationReport
from wyrmling.watch.jsonl import read_events

Make = Callable[..., Config]


class Poison(Callback):
    """Writes NaN into a weight before a step; a stand-in for a run that blows up."""

    def __init__(self, at: int) -> None:
        self.at, self.ended = at, []

    def on_step(self, report: StepReport) -> None:
        if report.step == self.at:
            with torch.no_grad():
                self.model.decoder.view(-1)[0] = float("nan")

    def on_end(self, report: RunEnded) -> None:
        self.ended.append(report.reason)


def poisoned(config: Config, at: int, monkeypatch: pytest.MonkeyPatch) -> tuple[Poison, DivergedError]:
    from wyrmling.training import loop

    poison = Poison(at)
    original = loop.TrainingLoop.__init__

    def init(self: loop.TrainingLoop, session: object, *rest: object) -> None:
        poison.model = session.model
        original(self, session, *rest)

    monkeypatch.setattr(loop.TrainingLoop, "__init__", init)
    with pytest.raises(DivergedError) as caught:
        wyrmling.train(config, callbacks=[poison])
    return poison, caught.value


def test_divergence_names_the_tensor_and_keeps_the_last_good_checkpoint(
    tiny_config: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny_config("training.validation_interval_iters=100")
    poison, error = poisoned(config, 5, monkeypatch)
    assert "step 6" in str(error)
    assert any(name in str(error) for name in ("embedding.weight", "encoder", "decoder", "lm_head"))
    assert "\n" not in str(error)
    assert error.exit_code == 3
    assert len(poison.ended) == 1
    run = wyrmling.load_run("latest")
    assert list_checkpoints(run.run.checkpoints) == [4]
    good = newest_good(run.run.checkpoints)
    assert all(
        bool(torch.isfinite(tensor).all())
        for tensor in good.parts["model"].values()
        if tensor.is_floating_point()
    )


def test_a_rate_a_hundred_times_too_high_ends_in_a_word_or_in_numbers(tiny_config: Make) -> None:
    """Never in a checkpoint with NaN."""
    config = tiny_config(
        "optimizer.learning_rate=1", "optimizer.grad_clip_norm=off", "runtime.dtype=bfloat16"
    )
    try:
        result = wyrmling.train(config)
    except DivergedError:
        return
    good = newest_good(result.run.checkpoints)
    assert all(
        bool(torch.isfinite(tensor).all())
        for tensor in good.parts["model"].values()
        if tensor.is_floating_point()
    )


class Reports(Callback):
    def __init__(self, stop: int | None = None) -> None:
        self.steps, self.validations, self.stop = [], [], stop

    def on_step(self, report: StepReport) -> None:
        self.steps.append(report)
        if report.step == self.stop:
            report.control.stop("the test asked for it")

    def on_validation(self, report: ValidationReport) -> None:
        self.validations.append(report)


def test_the_rate_is_the_schedule_at_the_optimizer_step_whatever_the_accumulation(tiny_config: Make) -> None:
    def rates(*extra: str) -> list[float]:
        watcher = Reports()
        wyrmling.train(tiny_config(*extra), callbacks=[watcher])
        return [report.learning_rate for report in watcher.steps]

    one = rates()
    assert one == rates("training.batch_size=1", "training.gradient_accumulation_steps=4")
    assert len(one) == 12
    assert one[0] == pytest.approx(2e-3 / 4)  # warm-up of four steps
    assert one[3] == pytest.approx(2e-3)
    assert one[-1] == pytest.approx(1e-4)  # the last step reaches the minimum


def test_the_target_batch_decides_the_accumulation(tiny_config: Make) -> None:
    watcher = Reports()
    wyrmling.train(tiny_config("training.target_effective_batch_size=10"), callbacks=[watcher])
    assert watcher.steps[0].tokens == 12 * 32  # three micro-batches of four rows


def test_reported_losses_are_nats_per_token(tiny_config: Make) -> None:
    """At the start near log 256, and lower at the end; bits per byte are the same number in bits."""
    watcher = Reports()
    wyrmling.train(tiny_config("training.max_iters=40"), callbacks=[watcher])
    assert watcher.validations[0].loss == pytest.approx(math.log(256), rel=0.02)
    logged = [report for report in watcher.steps if report.loss is not None]
    assert [report.step for report in logged] == list(range(2, 41, 2))
    assert logged[-1].loss < logged[0].loss - 0.5
    for report in logged:
        assert report.bits_per_byte == pytest.approx(report.loss / math.log(2))
        assert report.gradient_norm > 0
    assert watcher.steps[-1].tokens_seen == 40 * 4 * 32


def test_bits_per_byte_leave_ends_of_text_out_also_over_a_resume(tiny_config: Make, tmp_path: Path) -> None:
    """Documents of one byte: half of all targets are ends of text, which count in the loss alone."""
    (tmp_path / "lines.txt").write_text("a\nb\nc\nd\n" * 60, encoding="utf-8")
    config = tiny_config(
        f'dataset.path="{(tmp_path / "lines.txt").as_posix()}"',
        "dataset.documents=line",
        "dataset.tokenizer.add_special_tokens=true",
        "training.log_frequency=6",
        "training.tbptt_chunk_size=8",
    )

    def figures(config: Config, stop: int | None = None) -> tuple[list[float | None], Path]:
        watcher = Reports(stop)
        run = wyrmling.train(config, callbacks=[watcher]).run.path
        logged = [report for report in watcher.steps if report.loss is not None]
        return [report.bits_per_byte for report in (*watcher.validations[:1], *logged)], run

    whole, _ = figures(config)
    assert whole[0] == pytest.approx(math.log2(259), rel=0.02)  # per token with text, one byte each
    first, run = figures(config, stop=9)
    place = f'training.resume_run_dir="{run.as_posix()}"'
    rest, _ = figures(with_overrides(config, ["training.launch_mode=resume_exact_run", place]))
    assert [*first, rest[-1]] == whole


def test_early_stopping_saves_first_and_then_decides(tiny_config: Make) -> None:
    config = tiny_config(
        "training.early_stopping={patience = 2, min_delta = 10.0}",
        "training.validation_interval_iters=2",
        "training.checkpoint_interval_iters=100",
    )
    result = wyrmling.train(config)
    assert result.reason == "early stopping"
    assert result.step == 6  # the first validation is the reference, two more do not improve on it by 10
    assert list_checkpoints(result.run.checkpoints)[-1] == 6
    assert result.exit_code == 0


def test_events_tell_the_whole_story(tiny_config: Make) -> None:
    result = wyrmling.train(
        tiny_config("training.order=epochs", "training.epochs=1", "training.max_iters=none")
    )
    events = read_events(result.run.events_path)
    kinds = {event["event"] for event in events}
    assert {"started", "step", "validation", "checkpoint", "epoch", "sample", "message", "ended"} <= kinds
    (epoch,) = [event for event in events if event["event"] == "epoch"]
    assert (epoch["epoch"], epoch["step"]) == (1, result.step)
    assert events[-1]["event"] == "ended"
    names = {event["name"] for event in events if event["event"] == "message"}
    assert {
        "choice.device",
        "choice.dtype",
        "choice.threads",
        "choice.executor",
        "choice.activation_memory",
    } <= names


def test_a_promoted_kernel_is_told_and_recorded_as_an_override(
    tiny_config: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on CUDA: by itself it is promoted there only."""
    monkeypatch.setattr("wyrmling.model.choice.promotes", lambda *_, **__: True)
    run = wyrmling.train(tiny_config("training.max_iters=4")).run
    assert run.record()["kernel_spec"]["sequence_kernel_override"] == "linear_attention/dense"
    events = read_events(run.events_path)
    lines = dict(next(event["fingerprint"] for event in events if event["event"] == "started"))
    assert " sequence_kernel_override=linear_attention/dense " in lines["training path fingerprint"]
    (executor,) = [event["text"] for event in events if event.get("name") == "choice.executor"]
    assert executor.startswith("composed/dense, ")
    assert "take all scores at once" in executor


def test_a_stop_in_a_validation_abandons_it_and_saves(tiny_config: Make) -> None:
    class Impatient(Callback):
        def on_step(self, report: StepReport) -> None:
            if report.step == 3:
                report.control.stop("enough")

    result = wyrmling.train(tiny_config("training.validation_interval_iters=3"), callbacks=[Impatient()])
    assert (result.step, result.reason) == (3, "enough")
    assert list_checkpoints(result.run.checkpoints)[-1] == 3
    assert result.validation_loss is None
