"""TensorBoard files hold the curves; without TensorBoard one line says how to get it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from wyrmling.errors import UserError
from wyrmling.watch import Control, RunEnded, RunStarted, SampleReport, StepReport, ValidationReport
from wyrmling.watch.tensorboard import TensorBoardWriter


def test_without_tensorboard_the_command_to_install_it_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(UserError, match="pip install tensorboard"):
        TensorBoardWriter(tmp_path)


def test_curves_and_samples_can_be_read_back(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    control = Control()
    writer = TensorBoardWriter()
    writer.on_start(RunStarted("r", tmp_path, 0, 3, 10, control, fingerprint=(("a", "b=c"),)))
    for step in (1, 2, 3):
        logged = None if step == 2 else 3.0 / step
        writer.on_step(StepReport(step, 3, 1e-3, 8, 8, control, loss=logged, tokens_per_second=50.0))
    writer.on_validation(ValidationReport(3, 1.5, 8, 0.1, control))
    writer.on_sample(SampleReport(3, "a", "b", control))
    writer.on_end(RunEnded(3, "finished", 1.0, 24, tmp_path))
    read = EventAccumulator(str(tmp_path / "tensorboard"))
    read.Reload()
    assert [(event.step, event.value) for event in read.Scalars("loss/train")] == [(1, 3.0), (3, 1.0)]
    assert [event.value for event in read.Scalars("loss/validation")] == [1.5]
    assert "sample/text_summary" in read.Tags()["tensors"]
