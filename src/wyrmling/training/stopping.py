"""Ways for a run to end early and in good order: a signal, or a metric that no longer improves."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import FrameType
from typing import Literal

from ..checkpoint import is_better
from ..config.schema.training import EarlyStopping
from ..watch.events import Control

_HANGUP: int | None = getattr(signal, "SIGHUP", None)  # Windows has none
SIGNALS = {int(signal.SIGINT): "SIGINT", int(signal.SIGTERM): "SIGTERM"}
if _HANGUP is not None:
    SIGNALS[_HANGUP] = "SIGHUP"


OnSignal = Literal["raise", "return"]
"""What becomes of a signal that has ended a run: `hand_on` gives it to the program, or the result only names it."""


def hand_on(exit_code: int) -> None:
    """Give the signal that ended a run to the program, whose handlers are back in place; does nothing at 0.

    A handler of the program's own is called, and may return.

    Args:
        exit_code: 128 + the signal's number.
    Raises:
        KeyboardInterrupt: SIGINT, by Python's own handler.
        SystemExit: SIGTERM or SIGHUP, of which the program knows nothing.
    """
    if not exit_code:
        return
    if signal.getsignal(exit_code - 128) is signal.SIG_DFL:
        raise SystemExit(exit_code)
    signal.raise_signal(exit_code - 128)


class Interrupt:
    """Which signal asked the run to end, if any."""

    def __init__(self) -> None:
        self.signal: int | None = None

    @property
    def exit_code(self) -> int:
        """128 + the signal's number (129 SIGHUP, 130 SIGINT, 143 SIGTERM); 0 without a signal."""
        return 0 if self.signal is None else 128 + self.signal


@contextlib.contextmanager
def stop_on_signals(control: Control, on_signal: OnSignal = "return") -> Iterator[Interrupt]:
    """Inside the block, SIGINT, SIGTERM and SIGHUP ask `control` to stop; a second one does not wait.

    Not where one of the two is SIGHUP: a terminal that goes away sends several, and SIGTERM behind them.
    Outside the main thread, where Python cannot take signals, the block changes nothing.

    Args:
        on_signal: what a second signal does: "return" ends the process; "raise" hands it to the program at once.
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
            if on_signal == "return":
                os._exit(128 + number)
            put_back()
            hand_on(128 + number)
        if interrupt.signal is None:
            interrupt.signal = number
            control.stop(SIGNALS[number])

    # a signal that this process was told to ignore (nohup, a job in the background) stays ignored
    # and a handler that was not set by Python (None) could not be put back
    known = {number: signal.getsignal(number) for number in SIGNALS}
    previous = {number: handler for number, handler in known.items() if handler not in (signal.SIG_IGN, None)}

    def put_back() -> None:
        for number, handler in previous.items():
            signal.signal(number, handler)

    try:
        for number in previous:
            signal.signal(number, handle)
        yield interrupt
    finally:
        put_back()


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
