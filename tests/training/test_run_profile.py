"""A profiled run: what it writes, and that it computes what it would compute without."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import wyrmling
from wyrmling import Callback, Config
from wyrmling.data.batches import Batch
from wyrmling.errors import StorageError
from wyrmling.training.profiling import run_profile
from wyrmling.training.profiling.run_profile import PROBES, RunProfile, copied_bytes
from wyrmling.training.profiling.tracing import TRACED_STEPS, WARM_UP_STEPS, Tracer
from wyrmling.watch.events import Message
from wyrmling.watch.profile_table import table

Make = Callable[..., Config]
FIELDS = [
    "total_ns",
    "dataloader_cpu_ns",
    "dataloader_tensor_copy_ns",
    "dataloader_host_to_device_copy_bytes",
    "host_sync_points",
    "forward_ns",
    "loss_backward_ns",
    "embed_probe_ns",
    "first_layer_forward_probe_ns",
    "first_layer_probe_ns",
    "logits_loss_probe_ns",
    "hidden_logits_loss_probe_ns",
    "hidden_model_forward_probe_ns",
    "hidden_model_probe_ns",
    "detail_probe_steps",
    "train_steps",
    "max_step_reserved_before_bytes",
    "max_step_in_use_before_bytes",
    "max_step_reserved_after_forward_bytes",
    "max_step_in_use_after_forward_bytes",
    "max_step_reserved_after_backward_bytes",
    "max_step_in_use_after_backward_bytes",
]


class Messages(Callback):
    def __init__(self) -> None:
        self.texts: dict[str, str] = {}

    def on_message(self, report: Message) -> None:
        self.texts[report.name] = report.text


@pytest.fixture(autouse=True)
def _known_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine's products are measured elsewhere (tests/watch/test_matrix_rate.py)."""
    monkeypatch.setattr(run_profile, "matrix_rate", lambda *_, **__: 1e12)


def weights(result: wyrmling.TrainResult) -> dict[str, bytes]:
    folder = result.run.checkpoints / f"step-{result.step:09d}"
    return {path.name: path.read_bytes() for path in folder.glob("*.safetensors")}


@pytest.mark.parametrize(
    "extra",
    [
        ("model.dropout=0.1", "training.gradient_accumulation_steps=2"),
        (
            "model.sequence_kernel=mamba2",
            "training.tbptt_persist_across_steps=true",
            "training.tbptt_chunk_size=16",
        ),
    ],
)
def test_a_profiled_run_computes_the_same_bits_and_writes_what_it_promises(
    tiny_config: Make, extra: tuple[str, ...]
) -> None:
    config, told = tiny_config(*extra), Messages()
    plain, profiled = wyrmling.train(config), wyrmling.train(config, profile="detail", callbacks=[told])
    assert plain.profile is None
    assert not (plain.run.path / "profile.json").exists()
    assert weights(profiled) == weights(plain)
    assert profiled.profile == profiled.run.path / "profile.json"
    record = json.loads(profiled.profile.read_text())
    stages = record["stages"]
    assert {"data", "copy", "forward", "backward", "optimizer", "checkpoint", "evaluation", "idle"} <= set(
        stages
    )
    assert stages["optimizer"]["entered"] == 12
    assert sum(stage["share"] for stage in stages.values()) == pytest.approx(1)
    assert sum(stage["seconds"] for stage in stages.values()) == pytest.approx(record["total_seconds"])
    assert record["speed"]["tokens"] == 12 * 32 * config.training.batch_size * (
        2 if "dropout" in extra[0] else 1
    )
    assert record["speed"]["tokens_per_second"] > 0
    assert record["operations"]["share"] == pytest.approx(record["operations"]["per_second"] / 1e12)
    assert list(record["detail"]) == FIELDS
    assert record["detail"]["train_steps"] == 12
    assert record["detail"]["detail_probe_steps"] == 3
    assert all(record["detail"][f"{name}_ns"] > 0 for name in PROBES)
    assert all(record["detail"][name] > 0 for name in FIELDS[-6:])
    assert record["host_sync_points"] >= 12 + 6  # the norm of every step, the loss of every logged one
    line = told.texts["stage profile detail"]
    assert line.startswith("[stage-profile][detail] total_ns=")
    assert [pair.partition("=")[0] for pair in line.split()[1:]] == FIELDS
    assert "profile.json, trace.json" in told.texts["profile"]
    assert "first layer forward" in table(record)


def test_the_trace_holds_the_stages_of_the_steps_after_the_warm_up(tiny_config: Make) -> None:
    result = wyrmling.train(tiny_config(), profile="summary")
    assert result.profile is not None
    record = json.loads(result.profile.read_text())
    assert record["trace"] == {"file": "trace.json", "first_step": 4, "last_step": 6}
    assert "detail" not in record
    events = json.loads((result.run.path / "trace.json").read_text())["traceEvents"]
    named = [event["name"] for event in events if event.get("ph") == "X"]
    assert named.count("forward") == TRACED_STEPS
    assert any("mm" in name for name in named)
    assert "first layer" not in table(record)


@pytest.mark.parametrize("steps", range(1, 9))
def test_short_runs_warm_up_for_less(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.profiler, "profile", Profiler)
    tracer = Tracer(torch.device("cpu"), 11, steps)
    for step in range(11, 11 + steps):
        tracer.before(step)
        tracer.after(step)
    warm_up = min(WARM_UP_STEPS, steps - 1)
    assert tracer.traced == list(range(11 + warm_up, 11 + min(steps, warm_up + TRACED_STEPS)))
    assert tracer.finished


class Profiler:
    """Stands in for PyTorch's."""

    def __init__(self, **_: Any) -> None: ...
    def start(self) -> None: ...
    def stop(self) -> None: ...


def test_a_trace_that_was_cut_short_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Torn(Profiler):
        def export_chrome_trace(self, path: str) -> None:
            Path(path).write_text('{"traceEvents": [')

    monkeypatch.setattr(torch.profiler, "profile", Torn)
    tracer = Tracer(torch.device("cpu"), 1, 1)
    tracer.before(1)
    tracer.after(1)
    with pytest.raises(StorageError, match=r"cannot write .*trace\.json"):
        tracer.write(tmp_path / "trace.json")
    assert not list(tmp_path.iterdir())


def test_a_run_that_is_stopped_leaves_a_profile(tiny_config: Make) -> None:
    class Stop(Callback):
        def on_step(self, report: Any) -> None:
            if report.step == 5:
                report.control.stop("enough")

    result = wyrmling.train(tiny_config(), profile="summary", callbacks=[Stop()])
    assert result.profile is not None
    record = json.loads(result.profile.read_text())
    assert (record["first_step"], record["last_step"]) == (1, 5)
    assert record["trace"]["last_step"] == 5


def test_only_what_leaves_the_processor_is_copied() -> None:
    """Tokens and targets: two times B x T numbers of eight bytes."""
    numbers = torch.zeros(3, 7, dtype=torch.int64)
    batch = Batch(0, torch.arange(3), numbers, numbers, 21)
    assert copied_bytes([batch, batch], "cuda") == 2 * (2 * 3 * 7 * 8)
    assert copied_bytes([batch, batch], "cpu") == 0


def test_probes_leave_no_gradient_and_change_nothing(tiny_config: Make) -> None:
    seen: list[bool] = []

    class Look(Callback):
        def on_checkpoint(self, report: Any) -> None:
            seen.append(all(weight.grad is None for weight in profiles[0]._session.model.parameters()))

    profiles: list[RunProfile] = []
    original = RunProfile.__init__

    def remember(self: RunProfile, *arguments: Any) -> None:
        original(self, *arguments)
        profiles.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunProfile, "__init__", remember)
        torch.manual_seed(5)
        before = torch.get_rng_state()
        wyrmling.train(tiny_config(), profile="detail", callbacks=[Look()])
    assert seen
    assert all(seen)
    assert torch.equal(torch.get_rng_state(), before)
