"""Start-up autotune: what is tried, what is chosen, and that a run which goes on takes what it had."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import wyrmling
from wyrmling import Config
from wyrmling.config import with_overrides
from wyrmling.data.dataset import Dataset, prepare_dataset
from wyrmling.errors import ConfigError, DataError, WyrmlingError
from wyrmling.training.autotune import batch_probe, tuning
from wyrmling.training.autotune.tuning import MARGIN, MIB, Tuned, ask_process, tune
from wyrmling.training.session import Learner
from wyrmling.watch.events import Message

Make = Callable[..., Config]
TABLE = "runtime.startup_autotune"
ON = (f"{TABLE}.enabled=true", f"{TABLE}.target_device_memory_mb=1000")


class Machine:
    """Answers as a machine would on which a row takes a tenth of the target, and notes what it is asked."""

    def __init__(self, row: int = 100 * MIB, above: str = "done") -> None:
        self.row, self.above, self.asked = row, above, []
        self.said: list[str] = []

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        json.dumps(request)  # it goes through a pipe
        rows = request["config"]["training"]["batch_size"]
        self.asked.append(rows)
        needs = rows * self.row
        if needs > request["target"] and self.above != "done":
            return {"status": self.above}
        return {"status": "done", "peak": needs, "in_use": needs // 2, "tokens_per_second": 10.0 * rows}

    def tell(self, message: Message) -> None:
        self.said.append(message.text)


def search(config: Config, machine: Machine, dataset: Dataset | None = None) -> Tuned:
    return tune(config, dataset or prepare_dataset(config), None, machine.tell, machine.ask)


def test_the_largest_that_fits_with_a_margin_is_chosen(tiny_config: Make) -> None:
    """1000 MiB less a tenth hold nine rows of 100."""
    machine = Machine()
    tuned = search(tiny_config(*ON, f"{TABLE}.max_batch_size=64"), machine)
    assert machine.asked == [1, 2, 4, 8, 16, 12, 10, 9]
    assert tuned.config.training.batch_size == 9
    assert MARGIN == 0.1
    choice = tuned.choices[-1]
    assert (choice.name, choice.value) == ("batch_size", "9")
    assert choice.reason == "a step of 9 rows needs 944 MB of 1.05 GB; 10 rows: over target"
    assert machine.said[0] == "1 row: fit, peak 105 MB, 10 tokens/s"
    report = tuned.report
    assert report is not None
    assert [probe["batch_size"] for probe in report["probes"]] == machine.asked
    assert report["probes"][6] == {
        "batch_size": 10,
        "reserved_mb": 1000.0,
        "in_use_mb": 500.0,
        "fit_target": False,
        "status": "over_target",
        "tokens_per_second": 100.0,
        "detail": None,
    }
    expected = {
        "target_device_memory_mb": 1000.0,
        "min_batch_size": 1,
        "max_batch_size": 64,
        "probe_steps": 1,
    }
    assert {key: report[key] for key in expected} == expected


@pytest.mark.parametrize("status", ["died", "out_of_memory"])
def test_a_probe_that_does_not_live_to_tell_means_that_its_rows_do_not_fit(
    tiny_config: Make, status: str
) -> None:
    machine = Machine(above=status)
    tuned = search(tiny_config(*ON, f"{TABLE}.max_batch_size=64"), machine)
    assert tuned.config.training.batch_size == 9
    assert tuned.report is not None
    assert {probe["status"] for probe in tuned.report["probes"]} == {"fit", status, "over_target"}


def test_the_step_that_was_asked_for_is_kept_as_near_as_may_be(tiny_config: Make) -> None:
    """Nine rows fit; 30 rows take four micro-batches of nine, and four of eight do as well and come nearer."""
    machine = Machine()
    tuned = search(tiny_config(*ON, "training.target_effective_batch_size=30"), machine)
    report = tuned.report
    assert report is not None
    assert tuned.config.training.batch_size == 8
    assert report["resolved_gradient_accumulation_steps"] == 4
    assert report["resolved_effective_batch_size"] == 32
    assert tuned.choices[-1].reason.endswith("; 32 rows a step for 30")
    assert report["max_batch_size"] == 30


def test_what_does_not_fit_at_all_is_told_what_it_needs(tiny_config: Make) -> None:
    config = tiny_config(*ON)
    with pytest.raises(ConfigError) as caught:
        search(config, Machine(row=1800 * MIB))
    text = str(caught.value)
    assert text.startswith(
        f"{TABLE}.target_device_memory_mb: a training step of 1 row does not fit in 1,000 MiB"
    )
    assert "it needs 2,000 MiB; raise the target, or lower training.block_size" in text
    assert "\n" not in text
    with pytest.raises(ConfigError, match=r"of 3 rows does not fit .* it needs more; .* or .*min_batch_size"):
        search(with_overrides(config, [f"{TABLE}.min_batch_size=3"]), Machine(row=1800 * MIB, above="died"))


def test_rows_that_the_text_has_not_are_not_chosen(tiny_config: Make) -> None:
    """A streaming order needs a block for every row."""
    carry = ("training.tbptt_persist_across_steps=true", "training.tbptt_chunk_size=16")
    config = tiny_config(*ON, *carry, f"{TABLE}.max_batch_size=100000")
    blocks = tuning.Plan.of(config, prepare_dataset(config)).order.count
    machine = Machine(row=1)
    tuned = search(config, machine)
    assert tuned.config.training.batch_size == blocks
    assert max(machine.asked) == blocks
    with pytest.raises((ConfigError, DataError), match="use fewer rows"):
        search(with_overrides(config, [f"{TABLE}.min_batch_size=50000"]), machine)


def test_the_memory_that_is_free_decides_where_a_share_is_asked_for(
    tiny_config: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny_config(f"{TABLE}.enabled=true", f"{TABLE}.target_memory_fraction=0.5")
    config = with_overrides(config, [f"{TABLE}.max_batch_size=64"])
    monkeypatch.setattr(tuning.DeviceMemory, "available", lambda self: 2000 * MIB)
    assert search(config, Machine()).config.training.batch_size == 9
    monkeypatch.setattr(tuning.DeviceMemory, "available", lambda self: None)
    with pytest.raises(ConfigError, match=rf"set {TABLE}.target_device_memory_mb instead"):
        search(config, Machine())


def test_a_process_that_a_signal_ends_counts_as_dead_and_a_defect_is_an_error() -> None:
    if sys.platform != "win32":
        killed = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
        answer = ask_process({}, [sys.executable, "-c", killed])
        assert answer == {"status": "died", "detail": "ended by signal 9"}
    with pytest.raises(WyrmlingError, match="failed with code 1: ZeroDivisionError") as caught:
        ask_process({}, [sys.executable, "-c", "1 / 0"])
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="address space is limited on Linux only")
def test_a_guarded_process_is_refused_memory_and_lives_to_say_so() -> None:
    code = (
        "import json\nfrom wyrmling.training.autotune import batch_probe\nbatch_probe.SLACK = 0\n"
        "batch_probe.guard(batch_probe.current_memory() + (64 << 20), 1)\n"
        "try:\n    bytearray(1 << 30)\nexcept MemoryError:\n    print(json.dumps({'status': 'refused memory'}))\n"
    )
    assert ask_process({}, [sys.executable, "-c", code]) == {"status": "refused memory"}


def test_a_real_probe_chooses_and_a_run_that_goes_on_takes_what_it_had(
    tiny_config: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One process: a single number of rows to try. The weights are those of a run that asked for these rows."""
    carry = ("training.tbptt_persist_across_steps=true", "training.tbptt_chunk_size=16")
    same = (*carry, "training.gradient_accumulation_steps=2", "training.max_iters=4")
    limits = [f"{TABLE}.min_batch_size=3", f"{TABLE}.max_batch_size=3", f"{TABLE}.enabled=true"]
    config = tiny_config(*same, *limits, f"{TABLE}.target_device_memory_mb=4000")
    plain = wyrmling.train(tiny_config(*same, "training.batch_size=3"))

    half = with_overrides(config, ["training.max_iters=4", "training.checkpoint_interval_iters=2"])
    first = wyrmling.train(half, callbacks=[StopAt(2)])
    report = json.loads((first.run.path / "startup_autotune.json").read_text())
    (probe,) = report["probes"]
    assert probe["status"] == "fit"
    assert probe["in_use_mb"] > 50
    assert 50 < probe["reserved_mb"] < 3600
    assert probe["tokens_per_second"] > 0
    record = first.run.record()
    assert record["startup_autotune"] == report
    assert record["training_batch_size"] == 3
    assert record["training_effective_batch_size"] == 6
    reasons = {choice["name"]: choice["reason"] for choice in record["choices"]}
    assert list(reasons).index("batch_size") + 1 == list(reasons).index("batch")
    assert reasons["batch"].startswith("rows as chosen")
    assert not any("run was created" in reason for reason in reasons.values())
    assert first.run.training_config().training.batch_size == config.training.batch_size
    loaded = wyrmling.load_run(first.run.path)  # an evaluation reads as many rows at a time
    assert loaded.config.training.batch_size == 3

    monkeypatch.setattr(tuning, "ask_process", lambda request: pytest.fail("probed again"))
    place = f'training.resume_run_dir="{first.run.path.as_posix()}"'
    second = wyrmling.train(with_overrides(half, ["training.launch_mode=resume_exact_run", place]))
    assert second.step == 4
    folders = [result.run.checkpoints / "step-000000004" for result in (second, plain)]
    for name in ("model.safetensors", "optimizer.safetensors", "streams-0.safetensors"):
        assert (folders[0] / name).read_bytes() == (folders[1] / name).read_bytes()


class StopAt(wyrmling.Callback):
    """Asks the run to stop after a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step(self, report: Any) -> None:
        if report.step == self.step:
            report.control.stop("the test asked for it")


def test_nothing_is_tried_where_the_search_is_off(tiny_config: Make, tmp_path: Path) -> None:
    machine = Machine()
    config = tiny_config()
    tuned = search(config, machine)
    assert tuned == Tuned(config)
    assert not machine.asked


def test_a_try_counts_the_moments_of_what_is_frozen_only_at_first(
    tiny_config: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = '{target="embedding",scale=0.0,schedule={final_scale=1.0,start_fraction=0.5}}'
    never = '{target="output_head",scale=0.0}'
    config = tiny_config(f"training.module_lr_scales=[{late},{never}]")
    learners, build = [], batch_probe.build_learner

    def built(*arguments: Any, **settings: Any) -> Learner:
        learners.append(build(*arguments, **settings))
        return learners[-1]

    monkeypatch.setattr(batch_probe, "build_learner", built)
    monkeypatch.setattr(batch_probe, "guard", lambda *_: None)
    request = {"stored": {}, "tokens": 100, "total_steps": 12, "target": 1 << 30, "steps": 1}
    answer = batch_probe.probe({**request, "config": config.to_dict(), "vocab_size": 11})
    assert answer["status"] == "done"
    names = dict(learners[0].model.named_parameters())
    without = [name for name, weight in names.items() if not learners[0].optimizer.state.get(weight)]
    assert without == ["lm_head"]


def test_a_name_that_is_taken_shows_before_anything_is_tried(
    tiny_config: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runs" / "amber").mkdir(parents=True)
    monkeypatch.setattr(tuning, "ask_process", lambda request: pytest.fail("a number of rows was tried"))
    with pytest.raises(ConfigError, match="amber exists already"):
        wyrmling.train(tiny_config(*ON, "run_layout.name=amber"))
