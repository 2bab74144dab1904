"""What automatic choices are made from: what the machine can do, and sizes."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from wyrmling import Config, load_config
from wyrmling.config import with_overrides
from wyrmling.config.schema.model import Model as ModelConfig
from wyrmling.config.schema.runtime import Runtime
from wyrmling.data.dataset import prepare_dataset
from wyrmling.errors import CheckpointError, ConfigError
from wyrmling.model import Geometry
from wyrmling.model.choice import ExecutorChoice
from wyrmling.runs import Choice
from wyrmling.training import machine as module
from wyrmling.training.machine import choose_machine, machine_for_reading
from wyrmling.training.rates import operations_per_token, run_seconds
from wyrmling.training.session import build_parts


def geometry(**changes: int) -> Geometry:
    sizes = {"n_layer": 2, "n_embd": 8, "n_head": 2, "latent_total": 32, **changes}
    return Geometry.of(ModelConfig(**sizes), 11)  # type: ignore[arg-type]


def choice(name: str, *overrides: str, recipe: str = "tiny") -> Choice:
    config = load_config(recipe, list(overrides))
    made = choose_machine(config, Geometry.of(config.effective_model, 256), tokens=1000).choices
    return next(found for found in made if found.name == name)


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        (("model.n_embd=32", "model.latent_total=224"), "float32"),
        (("model.n_embd=32", "model.latent_total=256"), "bfloat16"),
    ],
)
def test_bfloat16_is_taken_where_the_processor_has_it_and_matrices_are_large_enough(
    monkeypatch: pytest.MonkeyPatch, sizes: tuple[str, ...], expected: str
) -> None:
    monkeypatch.setattr(module, "fast_bfloat16", lambda: True)
    assert choice("dtype", *sizes).value == expected
    monkeypatch.setattr(module, "fast_bfloat16", lambda: False)
    assert choice("dtype", *sizes).value == "float32"


def test_no_clock_is_read_for_a_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    """What changes digits is decided by capability and size: other load can tip no measurement that is not made."""
    for clock in ("time", "perf_counter", "perf_counter_ns", "monotonic", "process_time"):
        monkeypatch.setattr(time, clock, lambda: pytest.fail("a clock was read"))
    for recipe in ("tiny", "shakespeare", "shakespeare-cpu"):
        config = load_config(recipe)
        sizes = Geometry.of(config.effective_model, 256)
        first, second = (choose_machine(config, sizes, tokens=10**6) for _ in range(2))
        assert first.choices == second.choices


def test_threads_are_those_of_the_machine_whatever_the_process_has_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "physical_cores", lambda: 3)
    monkeypatch.setattr(module, "usable_cores", lambda: 6)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    torch.set_num_threads(1)
    assert choice("threads") == Choice("threads", "3", "one per core that this process may use")
    for words, value in (("5", "5"), ("2,1", "2"), ("20000", "64"), ("many", "3"), ("0", "3")):
        monkeypatch.setenv("OMP_NUM_THREADS", words)
        assert choice("threads").value == value
    assert choice("threads", "runtime.threads=7").reason == "asked for by runtime.threads"
    with pytest.raises(CheckpointError, match=r"20000 threads.*--allow-inexact"):
        choose_machine(load_config("tiny"), geometry(), {"threads": "20000"}, tokens=1)
    with pytest.raises(ConfigError, match=r"runtime\.threads is 20000, and a machine of 6 cores bears 64"):
        choice("threads", "runtime.threads=20000")
    monkeypatch.setattr(module, "usable_cores", lambda: 128)
    assert choice("threads", "runtime.threads=1000").value == "1000"


def test_a_processor_that_claims_none_is_not_asked_to_prove_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "fast_bfloat16", lambda: False)
    chosen = choose_machine(load_config("tiny"), geometry(), tokens=1000)
    assert chosen.dtype == torch.float32
    assert chosen.kernels == "eager"


def test_stored_choices_are_taken() -> None:
    stored = {
        "device": "cpu",
        "dtype": "bfloat16",
        "threads": "1",
        "activation_memory": "recompute",
        "kernels": "eager",
    }
    chosen = choose_machine(load_config("tiny"), geometry(), stored, tokens=10**15)
    taken = {choice.name: choice for choice in chosen.choices}
    assert taken.pop("executor").value.startswith("fused/")  # follows from the sizes, as it did then
    assert {name: choice.value for name, choice in taken.items()} == stored
    assert all(choice.reason == "as when the run was created" for choice in taken.values())


def test_a_run_of_the_composed_executor_goes_on_with_it() -> None:
    stored = {"executor": "composed/dense, 32 tokens a tile", "threads": "1", "dtype": "float32"}
    assert choose_machine(load_config("tiny"), geometry(), stored, tokens=1).executor.name == "composed"


@pytest.mark.parametrize("form", ["dense", "chunked"])
def test_what_was_composed_goes_on_in_the_form_that_the_file_asks_for(
    tiny_config: Callable[..., Config], form: str
) -> None:
    """The printed form is the one that runs."""
    kernel = f'model.sequence_kernel={{ memory_system = "linear_attention", executor = "{form}" }}'
    config = with_overrides(tiny_config(), [kernel])
    tile = 32 if form == "dense" else 128
    stored = {"executor": f"composed/{form}, {tile} tokens a tile"}
    parts = build_parts(config, prepare_dataset(config), stored)
    step, printed = parts.model.layer_step, parts.machine.chosen_executor
    assert (step.always_composed, printed.form) == (True, form)
    assert step.composed.tile(100_000) == (100_000 if form == "dense" else printed.tile)


def test_a_run_that_would_be_computed_otherwise_is_refused() -> None:
    """A later version may cut its work in another way: other last bits, so not without a word."""
    for stored in ("fused/dense, 7 tokens a tile", "composed/dense, 64 tokens a tile"):
        with pytest.raises(CheckpointError, match=f"computed as {stored}.*--allow-inexact"):
            choose_machine(load_config("tiny"), geometry(), {"executor": stored}, tokens=1)


def test_a_budget_of_bytes_keeps_what_fits_and_refuses_what_cannot() -> None:

    def chosen(budget: str) -> bool:
        config = load_config("shakespeare", [f"runtime.activation_memory={budget}"])
        return choose_machine(config, Geometry.of(config.model, 256), tokens=1).recompute

    assert not chosen("20 GB")
    assert chosen("130 MB")
    with pytest.raises(
        ConfigError, match=r"runtime.activation_memory \(1,000,000 bytes\) is too small"
    ) as caught:
        chosen("1 MB")
    needed = re.search(r"needs about ([\d,]+) bytes", str(caught.value))
    assert needed is not None
    assert chosen(needed[1].replace(",", "")), "what it says is needed is enough"


def test_what_is_kept_has_to_fit_where_the_work_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory of the machine says nothing about that of its GPU."""
    monkeypatch.setattr(module.DeviceMemory, "total", lambda self: rooms[self.device.type])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    config = load_config("shakespeare", ["runtime.device=cuda", "runtime.dtype=float32"])
    rooms = {"cpu": 1 << 40, "cuda": 1 << 20}
    chosen = choose_machine(config, Geometry.of(config.model, 256), {"kernels": "eager"}, tokens=1)
    assert chosen.recompute
    rooms["cuda"] = 1 << 40
    assert not choose_machine(
        config, Geometry.of(config.model, 256), {"kernels": "eager"}, tokens=1
    ).recompute


def test_reading_takes_the_dtype_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "fast_bfloat16", lambda: True)
    config = load_config("shakespeare", ["runtime.device=cpu"])
    assert machine_for_reading(config, {}).dtype == torch.bfloat16
    for recorded in ("float32", "bfloat16"):
        assert machine_for_reading(config, {"device": "cpu", "dtype": recorded}).dtype == getattr(
            torch, recorded
        )
    monkeypatch.setattr(module, "fast_bfloat16", lambda: False)
    assert machine_for_reading(config, {"device": "cpu", "dtype": "bfloat16"}).dtype == torch.float32
    wide = load_config("tiny", ["runtime.device=cpu", "runtime.dtype=float64"])
    assert machine_for_reading(wide, {"device": "cpu", "dtype": "float32"}).dtype == torch.float64


def test_the_composed_executor_has_nothing_to_compile() -> None:
    composed = ExecutorChoice("composed", "dense", 32, "asked for")
    fused = ExecutorChoice("fused", "dense", 32, "counted")
    assert module._nothing_to_compile(composed, "cpu") is not None
    assert module._nothing_to_compile(fused, "cpu") is None
    assert module._nothing_to_compile(fused, "cuda") is not None


def test_operations_by_hand() -> None:
    """Two layers of 2 heads x 16 neurons, width 8, one tile of 4 tokens: products, scores and values, the head."""
    per_layer = 3 * 8 * 32 + 2 * (4 * 16 + 4 * 8)
    assert operations_per_token(geometry(), 4, 4) == 2 * (2 * per_layer + 8 * 11)


@given(length=st.integers(1, 5000), tile=st.sampled_from([64, 128, 10**6]), layers=st.integers(1, 5))
def test_more_of_anything_takes_longer(length: int, tile: int, layers: int) -> None:
    operations = operations_per_token(geometry(n_layer=layers), length, tile)
    assert operations < operations_per_token(geometry(n_layer=layers + 1), length, tile)
    assert operations < operations_per_token(geometry(n_layer=layers, latent_total=64), length, tile)
    seconds = run_seconds(1000, operations, torch.float32, 2)
    assert run_seconds(2000, operations, torch.float32, 2) == pytest.approx(2 * seconds)
    assert run_seconds(1000, operations, torch.float32, 1) == pytest.approx(2 * seconds)
    assert run_seconds(1000, operations, torch.bfloat16, 2) < seconds


@pytest.mark.parametrize(
    ("given_value", "meant"), [(True, "on"), (False, "off"), ("auto", "auto"), ("on", "on"), ("off", "off")]
)
def test_compile_understands_words_and_truth(given_value: object, meant: str) -> None:
    assert Runtime.model_validate({"compile": given_value}).compile == meant


def test_compile_refuses_other_words() -> None:
    with pytest.raises(ConfigError, match=r"runtime\.compile"):
        load_config("tiny", ["runtime.compile=maybe"])


@pytest.mark.parametrize("value", ["lots", "5 parsecs", "-5", "12.5"])
def test_a_budget_that_is_no_number_of_bytes_is_told_what_would_be_one(value: str) -> None:
    with pytest.raises(ConfigError, match=r'"recompute" or a number of bytes such as "500 MB", got'):
        load_config("tiny", [f"runtime.activation_memory={value}"])


@pytest.mark.parametrize(
    ("setting", "names"),
    [
        ("training.batch_size=1000000000", "training.batch_size"),
        ("training.gradient_accumulation_steps=1000000000", "rows of a step"),
        ("model.latent_total=3200000000", "latent_total"),
        ("model.vocab_size=2000000000", "vocab_size"),
        ("runtime.prefetch=1000000000000", None),
        ("runtime.prefetch=1000000000000 training.max_iters=1000000000000", "runtime.prefetch"),
        ("model.n_layer=100000 training.block_size=500", "n_layer"),
    ],
)
def test_what_the_memory_cannot_hold_is_refused_before_it_is_taken(
    tiny_config: Callable[..., Config], setting: str, names: str | None
) -> None:
    """A run that the system would kill, or whose allocation would fail; what is only said to be large goes on."""
    config = tiny_config(*setting.split())
    dataset = prepare_dataset(config)
    if names is None:
        build_parts(config, dataset)
    else:
        with pytest.raises(
            ConfigError, match=rf"needs about [\d,]+ GB of memory, and .*{names}.*: lower that"
        ):
            build_parts(config, dataset)
