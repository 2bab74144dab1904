"""What every form of every memory owes: no token reaches an earlier read, and nothing comes of nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from agreement import build as build_model
from wyrmling.memory import LinearAttention, Mamba2, Mamba3, Memory, Rwkv8
from wyrmling.memory.base import MemoryState

WIDTH, HEADS, NEURONS = 8, 2, 16


def linear(positions: str, executor: str) -> Callable[[], Memory]:
    return lambda: LinearAttention(HEADS, NEURONS, WIDTH, positions=positions, executor=executor, chunk=24)


MAMBA = {"d_state": 8, "headdim": 4, "chunk_size": 16, "seed": 1}
FORMS: dict[str, Callable[[], Memory]] = {
    f"{positions} {executor}": linear(positions, executor)
    for positions in ("rope", "alibi", "pope")
    for executor in ("dense", "chunked", "naive")
} | {
    "mamba2 auto": lambda: Mamba2(WIDTH, **MAMBA),
    "mamba2 reference": lambda: Mamba2(WIDTH, executor="reference", **MAMBA),
    "mamba3 auto": lambda: Mamba3(WIDTH, **MAMBA),
    "mamba3 reference": lambda: Mamba3(WIDTH, executor="reference", **MAMBA),
    "rwkv8 auto": lambda: Rwkv8(HEADS, NEURONS, WIDTH),
    "rwkv8 reference": lambda: Rwkv8(HEADS, NEURONS, WIDTH, executor="reference"),
}


def draw(rows: int, length: int, seed: int = 3) -> tuple[Tensor, Tensor]:
    """Neurons [B, H, T, N] and stream [B, T, D]."""
    rng = torch.Generator().manual_seed(seed)
    neurons = torch.randn(rows, HEADS, length, NEURONS, generator=rng).relu()
    return neurons, torch.randn(rows, length, WIDTH, generator=rng)


def call(
    memory: Memory, neurons: Tensor, stream: Tensor, state: MemoryState | None = None, *, carry: bool = True
) -> tuple[Tensor, MemoryState | None]:
    return memory(neurons, stream, state, position=torch.zeros(len(stream), dtype=torch.int64), carry=carry)


@torch.no_grad()
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("carried", [False, True])
def test_a_token_that_is_not_finite_reaches_no_earlier_read_and_no_other_row(
    form: str, carried: bool
) -> None:
    """To the last bit; nor does anything of it stay in buffers."""
    memory, length = FORMS[form](), 61
    inputs = draw(2, length)
    state = call(memory, *draw(2, 9, seed=4))[1] if carried else None
    clean, _ = call(memory, *inputs, state)
    for value in (float("nan"), float("inf"), -float("inf"), 3e38):
        for token in (0, 7, 40, length - 1):
            for index in (0, 1):
                spoilt = [x.clone() for x in inputs]
                spoilt[index][0, ..., token, 5] = value
                found, _ = call(memory, *spoilt, state)
                assert torch.equal(found[0, :, :token], clean[0, :, :token]), (value, token, index)
                assert torch.equal(found[1], clean[1]), (value, token, index)
    assert torch.equal(call(memory, *inputs, state)[0], clean)


@torch.no_grad()
@pytest.mark.parametrize("form", [form for form in FORMS if not form.endswith(("naive", "reference"))])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("index", [0, 1])
def test_what_is_not_finite_is_as_visible_as_in_the_loop(form: str, value: float, index: int) -> None:
    """Later reads and the state are not finite exactly where the loop over tokens has them so."""
    kind = form.split()[0]
    truth = FORMS[f"{kind} naive" if kind in ("rope", "alibi", "pope") else f"{kind} reference"]()
    inputs = draw(2, 61)
    inputs[index][0, ..., 33, 2] = value
    (found, after), (expected, state) = call(FORMS[form](), *inputs), call(truth, *inputs)
    assert torch.equal(found.isfinite(), expected.isfinite())
    for name, part in state.items():
        assert torch.equal(after[name].isfinite(), part.isfinite()), name


@torch.no_grad()
@pytest.mark.parametrize("low", [False, True])
@pytest.mark.parametrize("memory", ["rope", "alibi", "pope", "mamba2", "mamba3", "rwkv8"])
@pytest.mark.parametrize("executor", ["auto", "composed"])
def test_a_model_with_a_spoilt_token_reads_the_earlier_ones_as_ever(
    memory: str, executor: str, low: bool
) -> None:
    """The fused layer too, and bfloat16 products."""
    changes = {}
    if memory in ("mamba2", "mamba3", "rwkv8"):
        kernel = {"memory_system": memory, "executor": executor}
        changes = {"sequence_kernel": kernel, "mamba": {"headdim": 4, "d_state": 4, "chunk_size": 16}}
    model = build_model("rope" if changes else memory, executor=executor, **changes).float()
    model.embedding.weight[12] = float("nan")
    tokens = torch.randint(0, 12, (2, 200), generator=torch.Generator().manual_seed(0))
    spoilt = tokens.clone()
    spoilt[0, 60] = spoilt[1, 199] = 12
    with torch.autocast("cpu", torch.bfloat16, enabled=low):
        (clean, _), (found, _) = model(tokens), model(spoilt)
    assert torch.equal(found[0, :60], clean[0, :60])
    assert torch.equal(found[1, :199], clean[1, :199])
    assert bool(found[0, 60:].isnan().all())


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("rows", "length"), [(0, 5), (3, 0), (0, 0), (0, 1)])
@pytest.mark.parametrize("carried", [False, True])
def test_nothing_comes_of_nothing(form: str, rows: int, length: int, carried: bool) -> None:
    """An empty read, the state as it was, gradients of zeros."""
    memory = FORMS[form]()
    neurons, stream = (x.requires_grad_() for x in draw(rows, length))
    state = None
    if carried:
        state = {name: x + 1 for name, x in memory.initial_state(rows, neurons=NEURONS).items()}
    expected = state or memory.initial_state(rows)
    read, after = call(memory, neurons, stream, state)
    assert read.shape == (rows, memory.read_heads, length, WIDTH)
    assert after.keys() == expected.keys()
    assert all(torch.equal(after[name], part) for name, part in expected.items())
    for gradient in torch.autograd.grad(read.sum(), [neurons, stream, *memory.parameters()]):
        assert not gradient.any()
    assert call(memory, neurons, stream, state, carry=False)[1] is None


@pytest.mark.parametrize("form", FORMS)
def test_a_reset_before_nothing_empties_rows(form: str) -> None:
    memory = FORMS[form]()
    state = {name: x + 1 for name, x in memory.initial_state(3).items()}
    reset = torch.tensor([False, True, False])
    neurons, stream = draw(3, 0)
    _, after = memory(neurons, stream, state, position=torch.zeros(3, dtype=torch.int64), reset=reset)
    for part in after.values():
        assert bool((part[[0, 2]] == 1).all())
        assert not part[1].any()
