"""Mamba-3 as a memory: its projections by the text, cuts, resets, precision, sizes, first weights."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from memory_cases import assert_close, assert_tiles_agree, draw
from wyrmling.memory.base import MemoryState
from wyrmling.memory.mamba3 import chunked
from wyrmling.memory.mamba3.module import Mamba3
from wyrmling.numerics.roles import parts_of, role_of

SMALL = {"d_state": 5, "headdim": 4, "ngroups": 2, "chunk_size": 3}


def build(width: int = 8, **changes: object) -> Mamba3:
    """A small memory in float64 whose parameters are all away from their first values."""
    memory = Mamba3(width, **{**SMALL, **changes}).double()  # type: ignore[arg-type]
    with torch.no_grad():
        for index, parameter in enumerate(memory.parameters()):
            parameter.add_(0.3 * draw(*parameter.shape, seed=index))
        memory.dt_bias.add_(3)
    return memory


def call(memory: Mamba3, stream: Tensor, state: MemoryState | None = None, **more: object):  # type: ignore[no-untyped-def]
    rows, length, _ = stream.shape
    position = torch.zeros(rows, dtype=torch.int64)
    return memory(stream.new_zeros(rows, 1, length, 0), stream, state, position=position, **more)


def prefix(memory: Mamba3, rows: int, seed: int = 1) -> MemoryState:
    with torch.no_grad():
        _, state = call(memory, draw(rows, 4, memory.width, seed=seed).to(memory.in_proj.dtype))
    return state


def outcome(
    memory: Mamba3, stream: Tensor, state: MemoryState | None, cuts: Sequence[int] = ()
) -> dict[str, Tensor]:
    """Reads, final state, and the gradients of a random functional of both to parameters, stream and first state."""
    stream = stream.clone().requires_grad_()
    first = None if state is None else {name: x.clone().requires_grad_() for name, x in state.items()}
    current, reads = first, []
    for begin, end in zip([0, *cuts], [*cuts, stream.shape[1]], strict=True):
        read, current = call(memory, stream[:, begin:end], current)
        reads.append(read)
    found = {"reads": torch.cat(reads, dim=2), **{f"state.{name}": x for name, x in current.items()}}
    loss = sum((x * draw(*x.shape, seed=90).to(x)).sum() for x in found.values())
    inputs = {**dict(memory.named_parameters()), "stream": stream}
    inputs.update({f"from.{name}": x for name, x in (first or {}).items()})
    gradients = torch.autograd.grad(loss, list(inputs.values()))
    found.update({f"gradient.{name}": g for name, g in zip(inputs, gradients, strict=True)})
    return {name: x.detach() for name, x in found.items()}


def naively(memory: Mamba3, stream: Tensor, state: MemoryState | None) -> dict[str, Tensor]:
    executor, memory.executor = memory.executor, "naive"
    try:
        return outcome(memory, stream, state)
    finally:
        memory.executor = executor


def by_the_text(memory: Mamba3, stream: Tensor) -> Tensor:
    """One row, one head, one token at a time, from the equations of the block alone. stream [T, D] -> [T, D]."""
    inner, n, groups, heads = memory.inner, memory.d_state, memory.ngroups, memory.heads
    size, angles = memory.headdim, memory.rope_angles
    reads = torch.zeros_like(stream)
    for h in range(heads):
        group, rows = h * groups // heads, slice(h * size, (h + 1) * size)
        state, theta = stream.new_zeros(size, n), stream.new_zeros(angles)
        last_key, last_value = stream.new_zeros(n), stream.new_zeros(size)
        for t, u in enumerate(stream @ memory.in_proj):
            z, x, rest = u[:inner][rows], u[inner : 2 * inner][rows], u[2 * inner :]
            b, c = (
                rest[: groups * n].view(groups, n)[group],
                rest[groups * n : 2 * groups * n].view(groups, n)[group],
            )
            control = rest[2 * groups * n :]
            dt = torch.log1p(torch.exp(control[h] + memory.dt_bias[h]))
            rate = -torch.log1p(torch.exp(control[heads + h]))
            if memory.heavy_tail:
                raw = control[heads + h]
                rate = -(1 + raw) if raw >= 0 else -1 / (1 - raw)
            rate = torch.minimum(rate, torch.tensor(-memory.a_floor, dtype=torch.float64))
            blend = 1 / (1 + torch.exp(-control[2 * heads + h]))
            theta = theta + math.pi * torch.tanh(control[3 * heads :]) * dt

            def turned(v: Tensor, weight: Tensor, bias: Tensor, theta: Tensor = theta) -> Tensor:
                v = v / torch.sqrt((v * v).mean() + memory.norm_eps) * weight + bias
                for i in range(angles):
                    a, b = v[2 * i].clone(), v[2 * i + 1].clone()
                    v[2 * i] = a * torch.cos(theta[i]) - b * torch.sin(theta[i])
                    v[2 * i + 1] = a * torch.sin(theta[i]) + b * torch.cos(theta[i])
                return v

            key = turned(b, memory.b_norm_weight, memory.b_bias[h])
            query = turned(c, memory.c_norm_weight, memory.c_bias[h])
            state = state + dt * (1 - blend) * torch.outer(last_value, last_key)
            state = torch.exp(dt * rate) * state + dt * blend * torch.outer(x, key)
            y = state @ query + memory.d_skip[h] * x
            if memory.norm_weight is not None:
                y = y / torch.sqrt((y * y).mean() + memory.norm_eps) * memory.norm_weight[rows]
            reads[t] += (y * z / (1 + torch.exp(-z))) @ memory.out_proj[rows]
            last_key, last_value = key, x
    return reads


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"rope_fraction": 1.0},
        {"heavy_tail": True},
        {"is_outproj_norm": True},
        {"ngroups": 1},
        {"ngroups": 4, "d_state": 8, "chunk_size": 64},
        {"a_floor": 0.7},
    ],
)
@torch.no_grad()
def test_the_block_by_the_text(options: dict[str, object]) -> None:
    memory, stream = build(**options), draw(1, 8, 8)
    read, state = call(memory, stream)
    assert read.shape == (1, 1, 8, 8)
    torch.testing.assert_close(read[0, 0], by_the_text(memory, stream[0]), rtol=1e-11, atol=1e-11)
    empty = memory.initial_state(1)
    assert {name: x.shape for name, x in state.items()} == {name: x.shape for name, x in empty.items()}


@settings(max_examples=15)
@given(data=st.data())
def test_the_whole_is_the_sum_of_any_parts(data: st.DataObject) -> None:
    """Chunks, calls and single tokens: reads, state, and gradients of parameters, stream and first state."""
    options = {
        "rope_fraction": data.draw(st.sampled_from([0.5, 1.0])),
        "is_outproj_norm": data.draw(st.booleans()),
        "heavy_tail": data.draw(st.booleans()),
        "ngroups": data.draw(st.sampled_from([1, 2, 4])),
        "chunk_size": data.draw(st.sampled_from([1, 3, 4, 5, 11])),
    }
    rows, length = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 11))
    cuts = sorted(data.draw(st.sets(st.integers(1, max(1, length - 1)), max_size=4))) if length > 1 else []
    memory, stream = build(**options), draw(rows, length, 8)
    state = prefix(memory, rows) if data.draw(st.booleans()) else None
    truth = naively(memory, stream, state)
    assert_close(outcome(memory, stream, state), truth)
    assert_close(outcome(memory, stream, state, cuts), truth)
    assert_close(outcome(memory, stream, state, range(1, length)), truth)


def test_gradcheck() -> None:
    memory = build(4, d_state=4, headdim=4, ngroups=1, chunk_size=2, is_outproj_norm=True)
    stream, state = draw(1, 3, 4).requires_grad_(), prefix(memory, 1)
    names = [name for name, _ in memory.named_parameters()]

    def run(*given: Tensor) -> tuple[Tensor, ...]:
        parameters, rest = dict(zip(names, given[: len(names)], strict=True)), given[len(names) :]
        arguments = (stream.new_zeros(1, 1, 3, 0), rest[0], dict(zip(state, rest[1:], strict=True)))
        read, final = torch.func.functional_call(
            memory, parameters, arguments, {"position": torch.zeros(1, dtype=torch.int64)}
        )
        return read, *final.values()

    inputs = [*memory.parameters(), stream, *(x.requires_grad_() for x in state.values())]
    assert torch.autograd.gradcheck(run, inputs)


@pytest.mark.parametrize("length", [2, 3, 4, 7])
@torch.no_grad()
def test_a_reset_row_is_a_new_one(length: int) -> None:
    """What the first document said last, just before a call, moves no bit of the next one: every part is emptied."""
    memory = build().float()
    memory.in_proj[:, -12:] = 0  # slow decays: steps of the bias, rates of log 2
    memory.dt_bias.fill_(-5)
    first, second = draw(2, length, 8).float(), draw(2, 7, 8).float()
    changed = first.clone()
    changed[0, -1] = draw(8, seed=5).float() * 100
    reset = torch.tensor([True, False])
    read, state = call(memory, second, call(memory, first)[1], reset=reset)
    other, other_state = call(memory, second, call(memory, changed)[1], reset=reset)
    fresh, fresh_state = call(memory, second, memory.initial_state(2), reset=reset)
    for a, b in ((read, other), (read, fresh)):
        assert torch.equal(a[0], b[0])
    for name in state:
        assert torch.equal(state[name][0], other_state[name][0])
        assert torch.equal(state[name][0], fresh_state[name][0])
    assert torch.equal(read[1], other[1])
    kept, _ = call(memory, second, call(memory, first)[1])
    lost, _ = call(memory, second, call(memory, changed)[1])
    assert not torch.equal(kept[0], lost[0])


@torch.no_grad()
def test_a_reset_row_forgets_even_what_is_not_a_number() -> None:
    memory = build()
    state = {name: torch.full_like(x, math.nan).double() for name, x in memory.initial_state(2).items()}
    read, _ = call(memory, draw(2, 5, 8), state, reset=torch.tensor([True, True]))
    torch.testing.assert_close(read, call(memory, draw(2, 5, 8))[0], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("executor", ["auto", "reference"])
@pytest.mark.parametrize("length", [1, 20])
@torch.no_grad()
def test_a_state_keeps_nothing_else_alive(length: int, executor: str) -> None:
    """Its parts own their memory: a view of the tokens would hold them as long as the state is carried."""
    _, state = call(build(executor=executor), draw(1, length, 8))
    for part in state.values():
        assert part.untyped_storage().nbytes() <= 2 * part.numel() * part.element_size()


@torch.no_grad()
def test_single_tokens_take_no_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("one token went through the chunked form")

    monkeypatch.setattr(chunked, "mamba3", refuse)
    memory = build()
    read, state = call(memory, draw(2, 1, 8))
    assert read.shape == (2, 1, 1, 8)
    assert call(memory, draw(2, 1, 8), state, carry=False)[1] is None


def test_under_autocast_sums_and_state_are_float32() -> None:
    memory, stream = Mamba3(32, headdim=16, chunk_size=16).requires_grad_(False), draw(2, 50, 32).float()
    exact, exact_state = call(memory, stream)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        low, state = call(memory, stream)
        token, token_state = call(memory, stream[:, :1], state)
    assert {x.dtype for x in (*state.values(), *token_state.values())} == {torch.float32}
    assert token.isfinite().all()
    assert float((low - exact).norm() / exact.norm()) < 3e-2
    assert float((state["ssm"] - exact_state["ssm"]).norm() / exact_state["ssm"].norm()) < 3e-2


@pytest.mark.parametrize("extreme", ["slow", "fast", "long steps", "equal tokens"])
def test_long_streams_in_bfloat16_stay_finite(extreme: str) -> None:
    """8192 tokens under autocast, forwards and back, at both ends of the decays."""
    memory = Mamba3(8, d_state=4, headdim=8, heavy_tail=extreme == "slow")
    stream = draw(1, 8192, 8).float()
    with torch.no_grad():
        if extreme == "slow":
            memory.dt_bias.fill_(-20)
        if extreme == "fast":
            memory.in_proj[:, -6:-4] *= 1e4
        if extreme == "long steps":
            memory.dt_bias.fill_(1e4)
        if extreme == "equal tokens":
            stream = stream[:, :1].expand(-1, 8192, -1)
    stream = stream.clone().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        read, state = call(memory, stream)
    read.float().square().mean().backward()
    found = [read, *state.values(), stream.grad, *(p.grad for p in memory.parameters())]
    assert all(bool(x.isfinite().all()) for x in found)


def test_float32_is_near_float64() -> None:
    memory, stream = build(16, d_state=16, headdim=8, chunk_size=16), draw(2, 150, 16)
    exact = outcome(memory, stream, None)
    low = outcome(memory.float(), stream.float(), None, [40, 41])
    assert_close({name: x.double() for name, x in low.items()}, exact, 2e-4)


@pytest.mark.parametrize("recompute", [False, True])
def test_a_layer_runs_it_in_tiles(recompute: bool) -> None:
    """Through the composed layer: tiles hand the state on, and one read serves all heads."""
    assert_tiles_agree(build(), recompute=recompute)


def test_sizes_of_the_golden_run() -> None:
    """n_embd 128, headdim 64, four groups, d_state 16."""
    memory = Mamba3(128, headdim=64, ngroups=4, d_state=16)
    assert (memory.heads, memory.rope_angles, memory.read_heads) == (4, 4, 1)
    assert memory.in_proj.shape == (128, 2 * 256 + 2 * 4 * 16 + 3 * 4 + 4)
    assert memory.out_proj.shape == (256, 128)
    assert {name: tuple(x.shape) for name, x in memory.initial_state(3).items()} == {
        "ssm": (3, 4, 64, 16),
        "angle": (3, 4, 4),
        "key": (3, 4, 16),
        "value": (3, 4, 64),
    }
    assert all(x.dtype == torch.float32 and not x.any() for x in memory.initial_state(3).values())
    assert Mamba3(128, headdim=64, d_state=16, rope_fraction=1.0).rope_angles == 8
    assert Mamba3(128, headdim=64, d_state=7).rope_angles == 1


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"headdim": 96}, "headdim.*divisible"),
        ({"headdim": 64, "ngroups": 3}, "ngroups.*divisible"),
        ({"d_state": 3}, "d_state"),
        ({"d_state": 0}, "d_state"),
        ({"rope_fraction": 0.25}, "rope_fraction"),
        ({"dt_min": 0.0}, "dt_min"),
        ({"dt_max": 1e-4}, "dt_max"),
        ({"dt_init_floor": -1.0}, "dt_init_floor"),
        ({"a_floor": 0.0}, "a_floor"),
        ({"norm_eps": math.inf}, "norm_eps"),
        ({"chunk_size": 0}, "chunk_size"),
        ({"executor": "fast"}, "executor"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(options: dict[str, object], key: str) -> None:
    with pytest.raises(ValueError, match=key) as raised:
        Mamba3(128, **options)  # type: ignore[arg-type]
    assert "\n" not in str(raised.value)


@torch.no_grad()
def test_first_weights() -> None:
    memory = Mamba3(256, headdim=4, d_state=8, dt_min=1e-3, dt_max=0.1, is_outproj_norm=True, seed=3)
    for weights, fan_in in ((memory.in_proj, 256), (memory.out_proj, 512)):  # as `nn.Linear` begins
        bound = 1 / math.sqrt(fan_in)
        assert 0.99 * bound < float(weights.abs().max()) <= bound
        assert float(weights.std()) == pytest.approx(bound / math.sqrt(3), rel=0.02)
    steps = torch.nn.functional.softplus(memory.dt_bias)
    assert 1e-3 * 0.999 < float(steps.min()) < 2e-3
    assert 0.06 < float(steps.max()) < 0.1 * 1.001
    assert float(steps.log().mean()) == pytest.approx(math.log(1e-2), abs=0.4)
    for name in ("b_bias", "c_bias", "b_norm_weight", "c_norm_weight", "d_skip", "norm_weight"):
        assert bool((getattr(memory, name) == 1).all())
    floored = Mamba3(256, headdim=4, dt_min=1e-6, dt_max=1e-5, dt_init_floor=1e-3)
    torch.testing.assert_close(torch.nn.functional.softplus(floored.dt_bias), torch.full((128,), 1e-3))


def test_first_weights_follow_the_seed_and_the_name_alone() -> None:
    one, same, other = (Mamba3(8, headdim=4, seed=seed) for seed in (1, 1, 2))
    normed = Mamba3(8, headdim=4, seed=1, is_outproj_norm=True, heavy_tail=True)
    for name, parameter in one.named_parameters():
        assert torch.equal(parameter, same.get_parameter(name))
        assert torch.equal(parameter, normed.get_parameter(name))
    for name in ("in_proj", "dt_bias", "out_proj"):
        assert not torch.equal(one.get_parameter(name), other.get_parameter(name))


def test_every_parameter_declares_its_role() -> None:
    memory = Mamba3(8, headdim=4, is_outproj_norm=True)
    assert {name: role_of(p) for name, p in memory.named_parameters()} == Mamba3.parameter_roles
    assert "norm_weight" not in dict(Mamba3(8, headdim=4).named_parameters())


def test_the_projection_declares_its_parts() -> None:
    """z | x | B | C | dd_dt | dd_A | trap | angle: what works on whole matrices takes them apart."""
    memory = Mamba3(128, headdim=64, ngroups=4, d_state=16)
    assert parts_of(memory.in_proj) == (256, 256, 64, 64, 4, 4, 4, 4)
    assert parts_of(memory.out_proj) == ()


def test_decay_rates() -> None:
    """-softplus, or the heavy-tailed function with slope 1 on both sides of 0; never above -a_floor."""
    raw = torch.tensor([-1e6, -3.0, -1.0, 0.0, 2.0, 1e6], dtype=torch.float64, requires_grad=True)
    plain, heavy = Mamba3(8, headdim=4), Mamba3(8, headdim=4, heavy_tail=True)
    expected = torch.tensor([-1e-4, -0.04858735, -0.31326169, -0.69314718, -2.12692801, -1e6])
    torch.testing.assert_close(plain._rate(raw).float(), expected)
    expected = torch.tensor([-1e-4, -0.25, -0.5, -1.0, -3.0, -1e6 - 1])
    torch.testing.assert_close(heavy._rate(raw).float(), expected)
    (slope,) = torch.autograd.grad(heavy._rate(raw).sum(), raw)
    torch.testing.assert_close(slope, -torch.tensor([0, 1 / 16, 1 / 4, 1, 1, 1]).double())


def test_the_form_says_what_it_does() -> None:
    memory = Mamba3(8, headdim=4, chunk_size=48)
    choice = memory.choice(10_000)
    assert choice.form == "chunked"
    assert choice.tile % 48 == 0
    assert "48" in choice.reason
    assert Mamba3(8, headdim=4, executor="reference").choice(100).form == "sequential"


@torch.no_grad()
def test_the_reference_executor_is_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    memory, stream = build(), draw(1, 6, 8)
    expected, _ = call(memory, stream)
    monkeypatch.setattr(chunked, "mamba3", None)
    memory.executor = "reference"
    torch.testing.assert_close(call(memory, stream)[0], expected, rtol=1e-11, atol=1e-11)
