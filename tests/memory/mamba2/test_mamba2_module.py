"""Mamba-2 as a memory: its sizes, its first weights, what it refuses, its types, its extremes."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from mamba2_cases import assert_same, build, draw, naively, outcome, prefix_state, read
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from wyrmling.memory.mamba2.module import Mamba2
from wyrmling.numerics.roles import parts_of, role_of


def test_the_sizes_of_the_described_block() -> None:
    """n_embd 128 and heads of 128 channels: two heads, 288 channels of convolution, 546 numbers per projected token."""
    memory = Mamba2(128, headdim=128, d_state=16)
    assert {name: tuple(p.shape) for name, p in memory.named_parameters()} == {
        "in_proj": (128, 546),
        "conv_weight": (288, 4),
        "conv_bias": (288,),
        "dt_bias": (2,),
        "a_log": (2,),
        "d_skip": (2,),
        "norm_weight": (256,),
        "out_proj": (256, 128),
    }
    assert {name: tuple(t.shape) for name, t in memory.initial_state(3).items()} == {
        "ssm": (3, 2, 128, 16),
        "conv": (3, 288, 3),
    }
    found, state = read(memory, draw(3, 5, 128).float())
    assert found.shape == (3, 1, 5, 128)
    assert memory.read_heads == 1
    assert {name: tuple(t.shape) for name, t in state.items()} == {
        "ssm": (3, 2, 128, 16),
        "conv": (3, 288, 3),
    }
    assert Mamba2(128, headdim=64, ngroups=4).geometry.heads == 4


@torch.no_grad()
def test_the_window_holds_the_last_raw_inputs_oldest_first() -> None:
    """What the projection made of the last three tokens, before convolution and bias."""
    memory, stream = build(), draw(2, 7)
    for executor in ("auto", "naive"):
        memory.executor = executor
        _, state = read(memory, stream)
        raw = (stream @ memory.in_proj)[..., memory.geometry.inner :][..., : memory.geometry.channels]
        torch.testing.assert_close(state["conv"], raw[:, -3:].mT)
        _, short = read(memory, stream[:, :2])
        torch.testing.assert_close(short["conv"][:, :, 1:], raw[:, :2].mT)
        assert float(short["conv"][:, :, 0].abs().max()) == 0


def test_one_token_by_hand() -> None:
    """One channel, one head, one number of state, every weight chosen: the equations of the block, in Python."""
    memory = Mamba2(1, expand=1, headdim=1, d_state=1, d_conv=2, norm_eps=0.25).double()
    values = {
        "in_proj": [[0.3, 0.7, -1.1, 0.9, 0.2]],
        "conv_weight": [[0.5, 2.0], [-0.4, 1.0], [0.1, 0.8]],
        "conv_bias": [0.1, 0.2, 0.3],
        "dt_bias": [0.4],
        "a_log": [0.6],
        "d_skip": [1.5],
        "norm_weight": [0.8],
        "out_proj": [[1.25]],
    }
    memory.load_state_dict({name: torch.tensor(v, dtype=torch.float64) for name, v in values.items()})
    h, double = 1.7, torch.float64
    state = {
        "ssm": torch.tensor([[[[0.9]]]], dtype=double),
        "conv": torch.tensor([[[0.2], [0.3], [-0.5]]], dtype=double),
    }

    def silu(x: float) -> float:
        return x / (1 + math.exp(-x))

    z, step = 0.3 * h, 0.2 * h
    x = silu(0.1 + 0.5 * 0.2 + 2.0 * 0.7 * h)
    b = silu(0.2 - 0.4 * 0.3 + 1.0 * -1.1 * h)
    c = silu(0.3 + 0.1 * -0.5 + 0.8 * 0.9 * h)
    dt = math.log1p(math.exp(step + 0.4))
    hidden = math.exp(-dt * math.exp(0.6)) * 0.9 + dt * x * b
    gated = (hidden * c + 1.5 * x) * silu(z)
    expected = gated / math.sqrt(gated**2 + 0.25) * 0.8 * 1.25
    for executor in ("auto", "naive"):
        memory.executor = executor
        found, final = read(memory, torch.tensor([[[h]]], dtype=double), state)
        assert found.item() == pytest.approx(expected, rel=1e-12)
        assert final["ssm"].item() == pytest.approx(hidden, rel=1e-12)
        assert final["conv"].flatten().tolist() == pytest.approx([0.7 * h, -1.1 * h, 0.9 * h])


@torch.no_grad()
def test_the_first_weights_are_those_of_the_published_block() -> None:
    """Layers begin as PyTorch's own, within 1 / sqrt(fan in) of 0; decay rates are uniform, steps log-uniform."""
    memory = Mamba2(
        256, headdim=1, a_init_min=2.0, a_init_max=5.0, dt_min=1e-3, dt_max=0.2, dt_init_floor=4e-3
    )
    layers = (memory.in_proj, 256), (memory.conv_weight, 4), (memory.conv_bias, 4), (memory.out_proj, 512)
    for weights, fan_in in layers:
        bound = 1 / math.sqrt(fan_in)
        assert float(weights.abs().max()) == pytest.approx(bound, rel=0.01)
        assert float(weights.abs().max()) <= bound
        assert float(weights.std()) == pytest.approx(bound / math.sqrt(3), rel=0.05)
        assert float(weights.mean()) == pytest.approx(0, abs=0.1 * bound)
    assert bool((memory.d_skip == 1).all())
    assert bool((memory.norm_weight == 1).all())
    steps = functional.softplus(memory.dt_bias.double())
    assert float(steps.min()) == pytest.approx(4e-3, rel=1e-4)
    assert float(steps.max()) < 0.2
    # log-uniform in [1e-3, 0.2], so this share lies on the floor
    on_floor = (steps < 4.001e-3).double().mean()
    assert float(on_floor) == pytest.approx(math.log(4) / math.log(200), abs=0.07)
    rates = memory.a_log.double().exp()
    assert 2 - 1e-5 <= float(rates.min()) < 2.05
    assert 4.95 < float(rates.max()) <= 5 + 1e-5
    assert float(rates.mean()) == pytest.approx(3.5, abs=0.1)
    assert float(rates.std()) == pytest.approx(3 / math.sqrt(12), rel=0.05)


def test_weights_follow_from_the_seed_and_the_name() -> None:
    one, same, other = (
        Mamba2(16, headdim=8, seed=1),
        Mamba2(16, headdim=8, seed=1),
        Mamba2(16, headdim=8, seed=2),
    )
    without = Mamba2(16, headdim=8, seed=1, conv_bias=False)
    for name, parameter in one.named_parameters():
        assert torch.equal(parameter, dict(same.named_parameters())[name])
        if name != "conv_bias":
            assert torch.equal(parameter, dict(without.named_parameters())[name])
    assert without.conv_bias is None
    assert not torch.equal(one.in_proj, other.in_proj)
    assert not torch.equal(one.in_proj[:, :16], one.out_proj[:16])


def test_every_parameter_has_its_role_and_copies_find_it_again() -> None:
    memory = Mamba2(16, headdim=8, d_state=16)
    roles = {name: role_of(parameter, name) for name, parameter in memory.named_parameters()}
    assert roles == memory.parameter_roles
    assert parts_of(memory.in_proj) == memory.parameter_parts["in_proj"] == (32, 32, 16, 16, 4)
    assert parts_of(memory.out_proj) == ()
    assert roles["a_log"] == roles["dt_bias"] == "decay"
    assert roles["conv_weight"] == "conv"
    assert copy.deepcopy(memory).parameter_roles == roles


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"headdim": 5}, "headdim: the inner width 16 .* not divisible by 5"),
        ({"headdim": 8, "ngroups": 3}, "ngroups: 2 heads are not divisible by 3"),
        ({"headdim": 0}, "headdim: must be at least 1, got 0"),
        ({"ngroups": 0}, "ngroups: must be at least 1"),
        ({"d_state": 0}, "d_state: must be at least 1"),
        ({"d_conv": 0}, "d_conv: must be at least 1"),
        ({"expand": 0}, "expand: must be at least 1"),
        ({"chunk_size": 0}, "chunk_size: must be at least 1"),
        ({"dt_min": 0.0}, "dt_min: must be positive and finite"),
        ({"dt_max": float("inf")}, "dt_max: must be positive and finite"),
        ({"dt_max": 1e-4}, "dt_max: must be at least dt_min"),
        ({"dt_init_floor": 0.0}, "dt_init_floor: must be positive"),
        ({"a_init_min": 0.0}, "a_init_min: must be positive and finite"),
        ({"a_init_max": 0.5}, "a_init_max: must be at least a_init_min"),
        ({"norm_eps": float("nan")}, "norm_eps: must be positive and finite"),
    ],
)
def test_sizes_that_do_not_fit_are_refused_by_name(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=f"^model.mamba.{message}") as refusal:
        Mamba2(8, **{"headdim": 8, **options})
    assert "\n" not in str(refusal.value)


def test_an_unknown_executor_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown executor 'fast'"):
        Mamba2(8, headdim=8, executor="fast")


def test_the_choice_names_chunks_and_tiles() -> None:
    memory = Mamba2(8, headdim=8, chunk_size=48)
    assert memory.choice(7).tile == 7
    long = memory.choice(100_000)
    assert (long.form, long.tile % 48) == ("chunked", 0)
    assert "chunks of 48" in long.reason
    assert Mamba2(8, headdim=8, chunk_size=5000).choice(100_000).tile == 5000
    for executor in ("reference", "naive"):
        assert Mamba2(8, headdim=8, executor=executor).choice(100).form == "sequential"


def test_reference_is_the_loop() -> None:
    memory, stream = build(executor="reference"), draw(2, 5)
    assert_same(outcome(memory, stream), naively(build(), stream), 1e-15)


def test_neurons_and_position_make_no_difference() -> None:
    """The dense stream alone is read."""
    memory, stream = build(), draw(2, 5)
    one, _ = memory(torch.rand(2, 3, 5, 7), stream, position=torch.tensor([0, 9]))
    assert torch.equal(one, read(memory, stream)[0])


@pytest.mark.parametrize("length", [1, 70])
@pytest.mark.parametrize("executor", ["auto", "naive"])
def test_under_autocast_sums_and_state_are_float32(length: int, executor: str) -> None:
    """And every number lies near the float32 one, in pieces too; gradients arrive in float32."""
    memory = build(width=16, headdim=8, executor=executor).float()
    stream, state = draw(2, length, 16).float(), prefix_state(memory, 2)
    with torch.no_grad():
        exact, exact_state = read(memory, stream, state)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with torch.no_grad():
            found, final = read(memory, stream, state)
        low = outcome(memory, stream, state, [length // 2] if length > 1 else [])
    assert found.dtype == final["ssm"].dtype == final["conv"].dtype == torch.float32
    for a, b in ((found, exact), *((final[name], exact_state[name]) for name in final)):
        assert float((a - b).norm() / b.norm()) < 2e-2
    for name, expected in outcome(memory, stream, state).items():
        assert low[name].dtype == torch.float32
        assert float((low[name] - expected).norm() / expected.norm()) < 0.1, name


@torch.no_grad()
@pytest.mark.parametrize("length", [1, 20])
@pytest.mark.parametrize("executor", ["auto", "naive"])
def test_under_autocast_the_two_projections_alone_are_rounded(length: int, executor: str) -> None:
    """To the last bit: what lies between them is computed in float32, from what the first made of the stream."""
    memory = build(width=16, headdim=8, chunk_size=8, executor=executor).float()
    stream = draw(2, length, 16).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found, state = read(memory, stream)
    projected = (stream.bfloat16() @ memory.in_proj.bfloat16()).float()
    mixed, expected_state = memory._mix(projected, None, torch.float32, True)
    assert torch.equal(found[:, 0], (mixed.bfloat16() @ memory.out_proj.bfloat16()).float())
    for name, part in expected_state.items():
        assert state[name].dtype == torch.float32
        assert torch.equal(state[name], part)


@torch.no_grad()
@pytest.mark.parametrize("executor", ["auto", "naive"])
@pytest.mark.parametrize("norm_full_width", [False, True])
@pytest.mark.parametrize("norm_before_gate", [False, True])
def test_what_is_normalised_and_when(executor: str, norm_full_width: bool, norm_before_gate: bool) -> None:
    """With unit gains and no last projection, what comes out (before its gate) has mean square 1 where it should."""
    memory = build(
        width=8,
        headdim=2,
        expand=1,
        ngroups=2,
        executor=executor,
        norm_eps=1e-12,
        norm_full_width=norm_full_width,
        norm_before_gate=norm_before_gate,
    )
    memory.norm_weight.fill_(1.0)
    memory.out_proj.copy_(torch.eye(8))
    stream = draw(2, 9, 8)
    found = read(memory, stream)[0][:, 0]
    if norm_before_gate:
        found = found / functional.silu((stream @ memory.in_proj)[..., :8])
    of_groups = found.unflatten(-1, (2, 4)).square().mean(-1)
    normalised = of_groups.mean(-1) if norm_full_width else of_groups
    torch.testing.assert_close(normalised, torch.ones_like(normalised), rtol=1e-6, atol=1e-6)
    other = of_groups if norm_full_width else found.square()
    assert float((other - 1).abs().max()) > 0.1


def test_a_float64_memory_is_float64_throughout() -> None:
    found, state = read(build(), draw(1, 3))
    assert found.dtype == state["ssm"].dtype == state["conv"].dtype == torch.float64


@pytest.mark.parametrize("length", [1, 130])
@pytest.mark.parametrize(
    ("a_log", "dt_bias"), [(-40.0, 0.0), (40.0, 0.0), (0.0, 1e4), (0.0, -1e4), (40.0, 1e4), (-40.0, -200.0)]
)
def test_extreme_decays_and_time_steps_leave_everything_finite(
    length: int, a_log: float, dt_bias: float
) -> None:
    """Nothing forgotten, everything forgotten, enormous and vanishing time steps; gradients too."""
    memory = build(ngroups=2).float()
    with torch.no_grad():
        memory.a_log.fill_(a_log)
        memory.dt_bias.fill_(dt_bias)
    stream = draw(2, length).float()
    state = {name: part.float() for name, part in prefix_state(memory, 2).items()}
    for name, tensor in outcome(memory, stream, state).items():
        assert bool(torch.isfinite(tensor).all()), name


def test_equal_tokens_settle() -> None:
    """All tokens equal: the state tends to a limit and the reads stop moving; nothing blows up."""
    memory = build().float()
    with torch.no_grad():
        memory.a_log.fill_(0.0)
        memory.dt_bias.fill_(1.0)
    stream = draw(1, 1).float().expand(1, 300, 6)
    found, _ = read(memory, stream)
    torch.testing.assert_close(found[:, :, 200], found[:, :, 299], rtol=1e-4, atol=1e-5)
    for name, tensor in outcome(memory, stream).items():
        assert bool(torch.isfinite(tensor).all()), name


def test_a_long_stream_in_low_precision_is_finite() -> None:
    """8192 tokens under bfloat16 autocast, slow decays, forwards and backwards."""
    memory = build(width=8, headdim=8).float()
    with torch.no_grad():
        memory.a_log.fill_(-12.0)
    stream = draw(1, 8192, 8).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        results = outcome(memory, stream)
    for name, tensor in results.items():
        assert bool(torch.isfinite(tensor).all()), name


class _Squares(TorchDispatchMode):
    """The most numbers in one tensor whose last two axes are a square of `chunk`."""

    def __init__(self, chunk: int) -> None:
        super().__init__()
        self.chunk, self.most = chunk, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.shape[-2:] == (self.chunk, self.chunk):
            self.most = max(self.most, result.numel())
        return result


def test_scores_do_not_grow_with_the_stream() -> None:
    """Working memory beside the stream: the squares of one segment of chunks, however long the stream is."""

    def most(length: int) -> int:
        memory = build(width=4, headdim=4, chunk_size=32).float()
        with _Squares(32) as squares:
            found, _ = read(memory, draw(1, length, 4).float())
            torch.autograd.grad(found.sum(), list(memory.parameters()))
        return squares.most

    assert 0 < most(256) < most(1024) == most(2048) == most(4096)


def test_what_the_backward_pass_keeps_grows_with_the_stream_alone() -> None:
    def kept(length: int) -> int:
        memory, sizes = build(chunk_size=16), {}
        hooks = torch.autograd.graph.saved_tensors_hooks(
            lambda t: sizes.setdefault(t.untyped_storage().data_ptr(), t.untyped_storage().nbytes()) and t,
            lambda t: t,
        )
        with hooks:
            alive = read(memory, draw(1, length))
        del alive
        return sum(sizes.values())

    few, more, many = kept(256), kept(512), kept(768)
    assert abs((many - more) - (more - few)) < 2000
