"""What a run tells those who watch it.

The training loop makes one small report for each thing that happens and hands it to every callback, in the
order the callbacks were given. Reports are plain values: a watcher never holds a tensor, and never makes a
device wait. A number that would force the device to catch up (the loss, the gradient's norm, the rates that
follow from the clock) is None in the steps between two logged ones (`training.log_frequency`).

Every report carries the run's `Control`: `report.control.stop("why")` asks for an orderly end, after the
step, with a checkpoint.

A callback that raises ends the run: see `Broadcaster`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ..errors import WyrmlingError


class CallbackError(WyrmlingError):
    """A callback raised. The cause is attached (`__cause__`)."""


class Control:
    """The way for a callback, or a signal, to ask a run to end in good order."""

    def __init__(self) -> None:
        self._reason: str | None = None

    def stop(self, reason: str = "a callback asked for it") -> None:
        """Ask the run to end after the current step. The first reason given is the one kept."""
        if self._reason is None:
            self._reason = reason

    @property
    def stop_requested(self) -> bool:
        return self._reason is not None

    @property
    def reason(self) -> str | None:
        """Why the run was asked to end, or None when nobody has asked."""
        return self._reason


@dataclass(frozen=True)
class RunStarted:
    """A run begins, or goes on (`resumed`) after optimizer step `step`.

    `parameters` counts numbers; `state_bytes` is the recurrent state of one batch, `step_bytes` the
    estimate of what one step needs beyond the weights (None: not estimated). `fingerprint` holds the lines
    of `watch.fingerprint`.
    """

    name: str
    path: Path
    step: int
    total_steps: int | None
    parameters: int
    control: Control
    state_bytes: int | None = None
    step_bytes: int | None = None
    fingerprint: tuple[tuple[str, str], ...] = ()
    resumed: bool = False


@dataclass(frozen=True)
class StepReport:
    """Optimizer step `step` (counted from 1) is done.

    `loss` is in nats per token; `gradient_norm` is the norm before clipping; `tokens` counts the targets of
    this step, `tokens_seen` those since step 0; `step_seconds` and `tokens_per_second` are means since the
    last logged step; `memory_bytes` is the process's resident memory, or the device's when there is one.
    `neurons_replaced` (continual backprop) counts since the last logged step, and is None where none ever are.
    All that needs the device to catch up is None between logged steps.
    """

    step: int
    total_steps: int | None
    learning_rate: float
    tokens: int
    tokens_seen: int
    control: Control
    loss: float | None = None
    gradient_norm: float | None = None
    tokens_per_second: float | None = None
    step_seconds: float | None = None
    memory_bytes: int | None = None
    bits_per_byte: float | None = None
    epoch: int = 0
    neurons_replaced: int | None = None


@dataclass(frozen=True)
class ValidationReport:
    """The validation loss, nats per token, after step `step` over `tokens` targets. `best`: lowest so far."""

    step: int
    loss: float
    tokens: int
    seconds: float
    control: Control
    bits_per_byte: float | None = None
    best: bool = False


@dataclass(frozen=True)
class CheckpointReport:
    """A checkpoint of step `step` is complete and durable at `path`."""

    step: int
    path: Path
    bytes: int
    seconds: float
    control: Control


@dataclass(frozen=True)
class EpochReport:
    """Every target of the training split has been seen `epoch` times."""

    epoch: int
    step: int
    tokens_seen: int
    control: Control


@dataclass(frozen=True)
class SampleReport:
    """Text that the model wrote after step `step`; `text` does not repeat the prompt."""

    step: int
    prompt: str
    text: str
    control: Control


@dataclass(frozen=True)
class Message:
    """A line for the reader: a warning, or a choice that was made and why.

    `name` says what it is about ("device", "tokenizer", "choice.batch_size"), for filters; `data` holds the
    figures.
    """

    level: Literal["info", "warning"]
    name: str
    text: str
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class RunEnded:
    """The run is over after step `step`. `reason`: "finished", or what stopped it. Losses: the last known.

    `diverged`: a loss, a gradient or a weight was not finite.
    `seconds` and `tokens` (targets) count from step 0, over every process that took part.
    """

    step: int
    reason: str
    seconds: float
    tokens: int
    path: Path
    loss: float | None = None
    validation_loss: float | None = None
    diverged: bool = False


Report = (
    RunStarted
    | StepReport
    | ValidationReport
    | CheckpointReport
    | EpochReport
    | SampleReport
    | Message
    | RunEnded
)


class Callback:
    """Base of all watchers: each method does nothing until overridden."""

    def on_start(self, report: RunStarted) -> None:
        """The model, the data and the optimizer are ready; no step has run yet."""

    def on_step(self, report: StepReport) -> None:
        """An optimizer step is done."""

    def on_validation(self, report: ValidationReport) -> None:
        """A validation pass is done."""

    def on_checkpoint(self, report: CheckpointReport) -> None:
        """A checkpoint is on the disk."""

    def on_epoch(self, report: EpochReport) -> None:
        """An epoch is complete."""

    def on_sample(self, report: SampleReport) -> None:
        """The model wrote a sample."""

    def on_message(self, report: Message) -> None:
        """There is something to tell. May come before `on_start`."""

    def on_end(self, report: RunEnded) -> None:
        """The run is over, well or badly; called exactly once if `on_start` was. Close what you opened."""


class Broadcaster(Callback):
    """Sends each report to every callback, in order.

    A watcher that fails must not fail unseen, and a run nobody records is seldom wanted: an exception in a
    callback ends the run. Errors with a text for people (a full disk) and interrupts pass as they are; any
    other becomes a `CallbackError` that names the callback and the method. `on_end` reaches every callback
    even when one fails, so that files are closed and the terminal is given back; the first failure is
    raised after that.
    """

    def __init__(self, callbacks: Iterable[Callback] = ()) -> None:
        self.callbacks = tuple(callbacks)

    def on_start(self, report: RunStarted) -> None:
        self._send("on_start", report)

    def on_step(self, report: StepReport) -> None:
        self._send("on_step", report)

    def on_validation(self, report: ValidationReport) -> None:
        self._send("on_validation", report)

    def on_checkpoint(self, report: CheckpointReport) -> None:
        self._send("on_checkpoint", report)

    def on_epoch(self, report: EpochReport) -> None:
        self._send("on_epoch", report)

    def on_sample(self, report: SampleReport) -> None:
        self._send("on_sample", report)

    def on_message(self, report: Message) -> None:
        self._send("on_message", report)

    def on_end(self, report: RunEnded) -> None:
        failures: list[Exception] = []
        for callback in self.callbacks:
            try:
                _call(callback, "on_end", report)
            except Exception as error:
                failures.append(error)
        if failures:
            raise failures[0]

    def _send(self, method: str, report: Report) -> None:
        for callback in self.callbacks:
            _call(callback, method, report)


def _call(callback: Callback, method: str, report: Report) -> None:
    try:
        getattr(callback, method)(report)
    except WyrmlingError:
        raise
    except Exception as error:
        raise CallbackError(
            f"the callback {type(callback).__name__} failed in {method}: {type(error).__name__}: {error}; "
            "correct it or leave it out"
        ) from error
