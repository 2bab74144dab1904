"""TensorBoard event files, for those who watch several runs in one place. Needs the extra `track`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..errors import UserError, to_install
from .events import Callback, RunEnded, RunStarted, SampleReport, StepReport, ValidationReport


class TensorBoardWriter(Callback):
    """Writes the curves and samples of a run; the x axis is the optimizer step.

    `directory` is where they go: `tensorboard` in the run's own directory unless given.

    A run that goes on purges what an earlier process wrote after its checkpoint, as TensorBoard understands
    it.

    Raises:
        UserError: TensorBoard is not installed.
    """

    def __init__(self, directory: Path | None = None) -> None:
        try:
            import tensorboard  # noqa: F401
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise UserError(f"TensorBoard is not installed; {to_install('tensorboard')}") from error
        self._directory = directory
        self._open = SummaryWriter
        self._writer: Any = None

    def on_start(self, report: RunStarted) -> None:
        purge = report.step + 1 if report.resumed else None
        directory = self._directory or report.path / "tensorboard"
        self._writer = self._open(log_dir=str(directory), purge_step=purge)
        if report.fingerprint:
            lines = "\n\n".join(f"**{name}** `{text}`" for name, text in report.fingerprint)
            self._writer.add_text("run", lines, report.step)

    def on_step(self, report: StepReport) -> None:
        if report.loss is None:
            return
        self._scalars(
            report.step,
            {
                "loss/train": report.loss,
                "learning_rate": report.learning_rate,
                "gradient_norm": report.gradient_norm,
                "tokens_per_second": report.tokens_per_second,
                "memory_bytes": report.memory_bytes,
                "bits_per_byte/train": report.bits_per_byte,
                "neurons_replaced": report.neurons_replaced,
            },
        )

    def on_validation(self, report: ValidationReport) -> None:
        self._scalars(
            report.step, {"loss/validation": report.loss, "bits_per_byte/validation": report.bits_per_byte}
        )

    def on_sample(self, report: SampleReport) -> None:
        if self._writer is not None:
            text = "\n".join("    " + line for line in (report.prompt + report.text).split("\n"))
            self._writer.add_text("sample", text, report.step)

    def on_end(self, report: RunEnded) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _scalars(self, step: int, values: dict[str, float | None]) -> None:
        if self._writer is None:
            return
        for name, value in values.items():
            if value is not None:
                self._writer.add_scalar(name, value, step)
