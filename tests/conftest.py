"""What every test gets: uninitialised memory full of NaN, one thread, its own run root and cache."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from small_texts import small_text
from time_budget import TimeBudget

if TYPE_CHECKING:
    from wyrmling import Config

settings.register_profile(
    "project", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
settings.load_profile("project")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(TimeBudget())


@pytest.fixture(autouse=True)
def _own_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs and caches of a test lie in its own folder, whatever the environment says."""
    for name in [name for name in os.environ if name.startswith("WYRMLING_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("WYRMLING_RUN_ROOT", str(tmp_path / "runs"))
    monkeypatch.setenv("WYRMLING_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_COLOR", "1")


@pytest.fixture(autouse=True)
def _poisoned_memory() -> Iterator[None]:
    """torch.empty and friends give NaN, so that a value read before it was written shows."""
    if "torch" not in sys.modules:
        yield
        return
    import torch

    before = torch.utils.deterministic.fill_uninitialized_memory
    mode = torch.are_deterministic_algorithms_enabled()
    torch.utils.deterministic.fill_uninitialized_memory = True
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)
    torch.manual_seed(0)  # a test that draws numbers draws the same ones, alone and in any order
    yield
    torch.use_deterministic_algorithms(mode)
    torch.utils.deterministic.fill_uninitialized_memory = before


@pytest.fixture
def tiny_config(tmp_path: Path) -> Callable[..., Config]:
    """Configurations of runs that take a second: the recipe `tiny` on a small text, with `--set` texts on top."""
    from wyrmling import load_config

    text = tmp_path / "text.txt"
    text.write_text(small_text(), encoding="utf-8", newline="")

    def make(*overrides: str) -> Config:
        settings = [
            "dataset.type=local_text",
            f'dataset.path="{text.as_posix()}"',
            "dataset.split=ratio",
            "training.max_iters=12",
            "training.checkpoint_interval_iters=4",
            "training.log_frequency=2",
            "training.validation_batches=2",
            "generation.max_tokens=8",
            'generation.prompt="to be"',
            "runtime.dtype=float32",
            "runtime.threads=1",
        ]
        return load_config("tiny", [*settings, *overrides])

    return make
