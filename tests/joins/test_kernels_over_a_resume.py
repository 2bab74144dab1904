"""Compiled and eager kernels may differ in the last bit: a run keeps the kind it was created with, or says so."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import wyrmling
from wyrmling import Callback, Config
from wyrmling.config import with_overrides
from wyrmling.errors import CheckpointError
from wyrmling.files import sealed, write_json_atomically
from wyrmling.training import compiling
from wyrmling.training.compiling import Compiler
from wyrmling.watch.events import StepReport

Make = Callable[..., Config]


class Stop(Callback):
    def on_step(self, report: StepReport) -> None:
        if report.step == 4:
            report.control.stop("the test asked for it")


def kernels(run: Path) -> str:
    choices = json.loads((run / "config.json").read_text())["choices"]
    return next(choice["value"] for choice in choices if choice["name"] == "kernels")


def resumed(config: Config, run: Path, *overrides: str) -> Config:
    place = f'training.resume_run_dir="{run.as_posix()}"'
    return with_overrides(config, ["training.launch_mode=resume_exact_run", place, *overrides])


def test_a_run_with_compiled_kernels_needs_its_compiler_or_gives_up_exactness(
    tiny_config: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        compiling,
        "working_compiler",
        lambda: Compiler(None, "there is no C++ compiler"),
    )
    config = tiny_config()
    done = wyrmling.train(config, callbacks=[Stop()])
    assert kernels(done.run.path) == "eager"
    record = done.run.record()
    next(choice for choice in record["choices"] if choice["name"] == "kernels")["value"] = "compiled"
    write_json_atomically(done.run.config_json, sealed(record))

    with pytest.raises(CheckpointError, match=r"no C\+\+ compiler.*--allow-inexact"):
        wyrmling.train(resumed(config, done.run.path))
    changed = resumed(config, done.run.path, "runtime.compile=off")
    with pytest.raises(CheckpointError, match=r"runtime\.compile: auto -> off"):
        wyrmling.train(changed)
    assert kernels(done.run.path) == "compiled"
    assert wyrmling.train(changed, allow_inexact=True).step == 12
    assert kernels(done.run.path) == "eager"
