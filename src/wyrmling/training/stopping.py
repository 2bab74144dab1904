"""Ways for a run to end early and in good order: a signal, or a metric that no longer improves."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import FrameType

from ..checkpoint import is_better
from ..config.schema.training import EarlyStopping
from ..watch.events import Control

_HANGUP: int | None = getattr(signal, "SIGHUP", None)  # Windows has none
SIGNALS = {int(signal.SIGINT): "SIGINT", int(signal.SIGTERM): "SIGTERM"}
if _HANGUP is not None:
    SIGNALS[_HANGUP] = "SIGHUP"


class Interrupt:
    """Which signal asked the run to end, if any."""

    def __init__(self) -> None:
        self.signal: int | None = None

    @property
    def exit_code(self) -> int:
        """128 + the signal's number (129 SIGHUP, 130 SIGINT, 143 SIGTERM); 0 without a signal."""
        return 0 if self.signal is None else 128 + self.signal


@contextlib.contextmanager
def stop_on_signals(control: Control) -> Iterator[Interrupt]:
    """Inside the block, SIGINT, SIGTERM and SIGHUP ask `control` to stop; a second one ends the process at once.

    Not where one of the two is SIGHUP: a terminal that goes away sends several, and SIGTERM behind them.
    Outside the main thread, where Python cannot take signals, the block changes nothing.
    """
    interrupt = Interrupt()
    insistent = 0
    if threading.current_thread() is not threading.main_thread():
        yield interrupt
        return

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal insistent
        insistent += number != _HANGUP
        if insistent > 1:
            os._exit(128 + number)
        if interrupt.signal is None:
            interrupt.signal = number
            control.stop(SIGNALS[number])

    # a signal that this process was told to ignore (nohup, a job in the background) stays ignored
    taken = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    previous = {number: signal.signal(number, handle) for number in taken}
    try:
        yield interrupt
    finally:
        for number, handler in previous.items():
            if handler is not None:  # one that was not set by Python cannot be put back
                signal.signal(number, handler)


@dataclass(frozen=True)
class BestSoFar:
    """The best validation and how many validations have passed since one counted as an improvement.

    The first weights count too, where they were validated (step 0): training that only makes them worse has no best.
    Early stopping counts from the first validation after that.

    Attributes:
        loss, step: of the lowest validation loss; None before the first one.
        reference: the loss that early stopping compares with (the last that improved by `min_delta`).
        without_improvement: validations since then.
    """

    loss: float | None = None
    step: int | None = None
    reference: float | None = None
    without_improvement: int = 0

    def after(self, loss: float, step: int, min_delta: float = 0.0) -> BestSoFar:
        """The record after one more validation. A loss that is not finite improves nothing."""
        reference = None if self.reference is None else self.reference - min_delta
        improved = is_better(loss, reference)
        record = replace(
            self,
            reference=loss if improved else self.reference,
            without_improvement=0 if improved else self.without_improvement + 1,
        )
        if is_better(loss, self.loss):
            record = replace(record, loss=loss, step=step)
        return record

    def exhausted(self, rule: EarlyStopping | None) -> bool:
        """Whether the rule's patience is used up."""
        return rule is not None and self.without_improvement >= rule.patience
