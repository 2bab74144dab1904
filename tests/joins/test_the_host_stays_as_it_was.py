"""A call leaves the program as it was, and gives the same whatever the program has set."""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import gc
import locale
import logging
import multiprocessing
import os
import random
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import matplotlib
import numpy as np
import pytest
import torch

import wyrmling
from wyrmling import Config
from wyrmling.config import with_overrides
from wyrmling.errors import ConfigError, DataError
from wyrmling.generation import GenerationSettings, TextGeneration, encode_prompt
from wyrmling.numerics import settings
from wyrmling.numerics.settings import own_settings
from wyrmling.training import machine as machine_module
from wyrmling.training import probe
from wyrmling.watch.events import Callback, StepReport
from wyrmling.watch.probe import write_probe

Make = Callable[..., Config]
SHORT = ("training.max_iters=4", "training.block_size=16", "generation.max_tokens=4")
TWO = "runtime.threads=2"


def host() -> dict[str, Any]:
    """Everything of the process that a library might change."""
    optimizers = [torch.optim.Optimizer, torch.optim.AdamW, torch.optim.Adam]
    found: dict[str, Any] = {
        "threads": (torch.get_num_threads(), torch.get_num_interop_threads()),
        "optimizers": [dict(vars(kind)) for kind in optimizers],
        "methods": {
            name: dict(vars(getattr(method, "__wrapped__", method)))
            for name, method in vars(torch.optim.Optimizer).items()
            if callable(method) and hasattr(method, "__dict__")
        },
        "defaults": (torch.get_default_dtype(), torch.get_default_device()),
        "gradients": (torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
        "autocast": [
            (torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in ("cpu", "cuda")
        ],
        "autocast cache": torch.is_autocast_cache_enabled(),
        "deterministic": (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
            torch.utils.deterministic.fill_uninitialized_memory,
        ),
        "products": (torch.get_float32_matmul_precision(), torch.backends.fp32_precision),
        "backends": (
            torch.backends.mkldnn.enabled,
            torch.backends.cudnn.enabled,
            torch.backends.cudnn.benchmark,
        ),
        "signals": {number: signal.getsignal(number) for number in signal.valid_signals()},
        "random": (random.getstate(), torch.get_rng_state().tolist()),
        "numpy": (np.random.get_state()[1].tolist(), np.geterr(), np.geterrcall()),  # type: ignore[index]
        "warnings": (list(warnings.filters), warnings.showwarning),
        "logging": (list(logging.root.handlers), logging.root.level, logging.raiseExceptions),
        "hooks": (sys.excepthook, threading.excepthook, sys.unraisablehook, faulthandler.is_enabled()),
        "streams": (sys.stdin, sys.stdout, sys.stderr),
        "environment": dict(os.environ),
        "places": (os.getcwd(), list(sys.path)),
        "locale": locale.setlocale(locale.LC_ALL),
        "collector": (gc.isenabled(), gc.get_threshold()),
        "interpreter": (sys.getrecursionlimit(), sys.getswitchinterval()),
        "matplotlib": matplotlib.rcParams["backend"],
    }
    if os.name == "posix":
        import resource

        found["limits"] = [resource.getrlimit(kind) for kind in (resource.RLIMIT_AS, resource.RLIMIT_NOFILE)]
        found["nice"] = os.nice(0)
    if (inductor := sys.modules.get("torch._inductor.config")) is not None:
        found["compiler"] = inductor.cpp.cxx
    return found


def changed(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    return [name for name, value in before.items() if after[name] != value]


@pytest.fixture
def a_host(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A program with settings of its own, none of which is anybody's default."""
    monkeypatch.setattr(
        machine_module, "_keep_freed_memory", lambda: pytest.fail("the allocator is the host's")
    )
    before = torch.get_num_threads()
    with warnings.catch_warnings(), np.errstate(all="raise"):
        warnings.simplefilter("error")
        backend = matplotlib.rcParams["backend"]
        matplotlib.rcParams["backend"] = "svg"
        torch.set_num_threads(3)
        torch.set_float32_matmul_precision("medium")
        torch.set_default_dtype(torch.float64)
        torch.backends.mkldnn.enabled = False
        handlers = [(n, signal.signal(n, lambda *_: None)) for n in (signal.SIGINT, signal.SIGTERM)]
        try:
            yield
        finally:
            for number, handler in handlers:
                signal.signal(number, handler)
            torch.backends.mkldnn.enabled = True
            torch.set_default_dtype(torch.float32)
            torch.set_float32_matmul_precision("highest")
            torch.set_num_threads(before)
            matplotlib.rcParams["backend"] = backend


@pytest.mark.usefixtures("a_host")
def test_no_call_changes_the_program_around_it(tiny_config: Make, tmp_path: Any) -> None:
    config = tiny_config(*SHORT, "dataset.train_split_ratio=0.6")
    before = host()
    result = wyrmling.train(config, profile="summary")
    assert changed(before, host()) == []
    loaded = wyrmling.load_run(result.run.path)
    assert changed(before, host()) == []
    wyrmling.evaluate(loaded)
    assert changed(before, host()) == []
    wyrmling.generate(loaded, "to be")
    assert changed(before, host()) == []
    settings = GenerationSettings.from_config(loaded.config.generation, {"max_tokens": 3})
    pieces = TextGeneration(
        loaded.model, loaded.tokenizer, [encode_prompt(loaded.tokenizer, "to")], settings, threads=1
    )
    for _ in pieces:
        assert changed(before, host()) == [], "between two pieces"
    assert changed(before, host()) == []
    write_probe(probe(loaded, split="train", period=64), tmp_path / "probe.png")
    assert changed(before, host()) == []


def test_what_ends_a_call_early_changes_nothing_either(tiny_config: Make) -> None:
    class Fails(Callback):
        def on_step(self, report: StepReport) -> None:
            assert torch.get_num_threads() == 2, "the run's own settings hold meanwhile"
            raise error

    before = host()
    for error in (DataError("a callback refuses"), KeyboardInterrupt()):
        with pytest.raises(type(error)):
            wyrmling.train(tiny_config(*SHORT, TWO), callbacks=[Fails()])
        assert changed(before, host()) == []
    with pytest.raises(ConfigError):
        wyrmling.train(tiny_config(*SHORT, "runtime.threads=20000"))
    assert changed(before, host()) == []


def everything(config: Config) -> dict[str, Any]:
    """What all calls give: losses, weights, text."""
    result = wyrmling.train(config)
    loaded = wyrmling.load_run(result.run.path)
    evaluated = wyrmling.evaluate(loaded)
    with own_settings():
        weights = {name: value.tolist() for name, value in loaded.model.state_dict().items()}
    return {
        "losses": (result.loss, result.validation_loss, evaluated.loss),
        "weights": weights,
        "text": wyrmling.generate(loaded, "to be", seed=1, temperature=0.7),
        "choices": loaded.run.record()["choices"],
    }


@contextlib.contextmanager
def with_default(device: str) -> Iterator[None]:
    torch.set_default_device(device)
    try:
        yield
    finally:
        torch.set_default_device(None)


@contextlib.contextmanager
def with_flushed_denormals() -> Iterator[None]:
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


@contextlib.contextmanager
def with_products_in_bfloat16() -> Iterator[None]:
    """By PyTorch's newer setting, after which the older one cannot be read."""
    torch.backends.fp32_precision = "bf16"
    try:
        yield
        assert torch.backends.fp32_precision == "bf16"
    finally:
        torch.backends.fp32_precision = "none"


HOSTS: dict[str, Callable[[], contextlib.AbstractContextManager[Any]]] = {
    "no gradients, a default device": lambda: _both(torch.no_grad(), with_default("meta")),
    "inference mode, denormals flushed": lambda: _both(torch.inference_mode(), with_flushed_denormals()),
    "autocast, a device": lambda: _both(torch.autocast("cpu", torch.bfloat16), torch.device("meta")),
    "products in bfloat16": with_products_in_bfloat16,
}


@contextlib.contextmanager
def _both(*contexts: contextlib.AbstractContextManager[Any]) -> Iterator[None]:
    with contextlib.ExitStack() as held:
        for context in contexts:
            held.enter_context(context)
        yield


@pytest.fixture
def plain(tiny_config: Make) -> tuple[Config, dict[str, Any]]:
    config = tiny_config(*SHORT, "runtime.dtype=bfloat16")
    return config, everything(config)


def test_results_do_not_depend_on_the_program(
    plain: tuple[Config, dict[str, Any]], request: pytest.FixtureRequest
) -> None:
    config, expected = plain
    random.seed(5), np.random.seed(5), torch.manual_seed(5)
    for name, context in HOSTS.items():
        with context():
            found = everything(config)
        assert changed(expected, found) == [], name
    request.getfixturevalue("a_host")
    assert changed(expected, everything(config)) == []


def test_results_do_not_depend_on_who_calls(plain: tuple[Config, dict[str, Any]]) -> None:
    config, expected = plain

    async def called() -> dict[str, Any]:
        return everything(config)

    assert changed(expected, asyncio.run(called())) == []
    before = host()
    with ThreadPoolExecutor(2) as pool:  # two at once, which end in any order
        others = [pool.submit(everything, config) for _ in range(2)]
        for other in others:
            assert changed(expected, other.result()) == []
    assert changed(before, host()) == []


@pytest.mark.parametrize("precision", ["high", "medium"])
def test_products_stay_exact_until_the_last_of_two_calls_has_ended(precision: str) -> None:
    torch.set_float32_matmul_precision(precision)
    try:
        later = contextlib.ExitStack()
        with own_settings():
            later.enter_context(own_settings())
        with later:
            assert torch.get_float32_matmul_precision() == "highest"
        assert torch.get_float32_matmul_precision() == precision
    finally:
        torch.set_float32_matmul_precision("highest")


def _forked(config: Config, answers: Any) -> None:
    answers.put(everything(config))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks here")
def test_results_do_not_depend_on_a_fork(plain: tuple[Config, dict[str, Any]]) -> None:
    """Also where threads had computed before the fork, of which the child has none."""
    config = with_overrides(plain[0], [TWO])
    expected = everything(config)
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    child = context.Process(target=_forked, args=(config, answers), daemon=True)
    child.start()
    try:
        assert changed(expected, answers.get(timeout=60)) == []
    finally:
        child.kill()
        child.join()


def test_an_interrupt_between_two_settings_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call is entered once per generated token: Ctrl-C may come in the middle of it."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        apply, times = settings._apply, []

        def interrupted() -> None:
            apply()
            times.append(1)
            if len(times) == 1:
                raise KeyboardInterrupt

        monkeypatch.setattr(settings, "_apply", interrupted)
        with pytest.raises(KeyboardInterrupt), settings.own_settings():
            raise AssertionError("not entered")
        assert torch.get_default_dtype() == torch.float64
        assert not settings._calls
    finally:
        torch.set_default_dtype(before)
