"""Mamba-2 against an independent implementation: the PyTorch path of Hugging Face `transformers`, a development
dependency.

Its norm is that of the published block: gate, then norm in groups of inner width / ngroups. Its cache keeps d_conv
inputs, of which the oldest is never read again: the window here is its last d_conv - 1 columns.
"""

from __future__ import annotations

import pytest
import torch
from mamba2_cases import draw, read

from wyrmling.config.schema.mamba import Mamba
from wyrmling.memory.mamba2.module import Mamba2

pytest.importorskip(
    "transformers", reason="compares with transformers, of the extra `dev`, which is not installed"
)

from transformers import DynamicCache, Mamba2Config
from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer

WIDTH, HEADDIM, D_STATE, TOLERANCE = 32, 16, 8, 1e-5


def published(ngroups: int, conv_bias: bool) -> tuple[Mamba2Mixer, Mamba2Config]:
    config = Mamba2Config(
        hidden_size=WIDTH,
        num_heads=2 * WIDTH // HEADDIM,
        head_dim=HEADDIM,
        state_size=D_STATE,
        n_groups=ngroups,
        expand=2,
        conv_kernel=4,
        chunk_size=8,
        num_hidden_layers=1,
        use_conv_bias=conv_bias,
        layer_norm_epsilon=1e-5,
    )
    return Mamba2Mixer(config, layer_idx=0).eval(), config


def copy_weights(memory: Mamba2, mixer: Mamba2Mixer) -> None:
    """Ours are [inputs, outputs], theirs are modules with [outputs, inputs]."""
    with torch.no_grad():
        mixer.in_proj.weight.copy_(memory.in_proj.mT)
        mixer.out_proj.weight.copy_(memory.out_proj.mT)
        mixer.conv1d.weight.copy_(memory.conv_weight[:, None])
        if memory.conv_bias is not None:
            mixer.conv1d.bias.copy_(memory.conv_bias)
        mixer.dt_bias.copy_(memory.dt_bias)
        mixer.A_log.copy_(memory.a_log)
        mixer.D.copy_(memory.d_skip)
        mixer.norm.weight.copy_(memory.norm_weight)


def distance(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """The largest difference of the two distribution functions (Kolmogorov and Smirnov)."""
    ours, theirs = ours.detach().flatten().sort().values, theirs.detach().flatten().sort().values
    at = torch.cat([ours, theirs])
    shares = [torch.searchsorted(x, at, right=True) / x.numel() for x in (ours, theirs)]
    return float((shares[0] - shares[1]).abs().max())


def test_layers_and_time_steps_begin_as_in_the_public_block() -> None:
    """What its modules and `init_mamba2_weights` draw; two draws of n numbers differ by about sqrt(2 / n)."""
    width = 1024
    config = Mamba2Config(
        hidden_size=width, num_heads=2 * width, head_dim=1, state_size=128, n_groups=1, num_hidden_layers=1
    )
    mixer = Mamba2Mixer(config, layer_idx=0)
    memory = Mamba2(width, headdim=1, seed=2)
    pairs = {
        "in_proj": (memory.in_proj[:16], mixer.in_proj.weight.mT[:16]),
        "conv_weight": (memory.conv_weight, mixer.conv1d.weight),
        "conv_bias": (memory.conv_bias, mixer.conv1d.bias),
        "out_proj": (memory.out_proj[:64], mixer.out_proj.weight.mT[:64]),
        "dt_bias": (memory.dt_bias, mixer.dt_bias),
    }
    for name, (ours, theirs) in pairs.items():
        assert ours.numel() == theirs.numel(), name
        assert distance(ours, theirs) < 2.5 * (2 / ours.numel()) ** 0.5, name
    assert torch.equal(memory.d_skip, mixer.D)
    assert torch.equal(memory.norm_weight, mixer.norm.weight)
    # theirs are 1, 2, 3, ...; the original's, and ours, are uniform: A = empty.uniform_(1, 16), A_log = log(A)
    rates = torch.empty(2 * width).uniform_(1, 16, generator=torch.Generator().manual_seed(0))
    assert distance(memory.a_log.exp(), rates) < 2.5 * (1 / width) ** 0.5


def test_the_defaults_are_the_published_ones() -> None:
    """Of transformers, which repeats those of state-spaces/mamba but for its 8 groups and chunks of 256."""
    ours, theirs = Mamba(), Mamba2Config()
    assert ours.d_state == theirs.state_size == 128
    assert ours.head_width(64) == theirs.head_dim == 64
    assert (ours.d_conv, ours.expand, ours.conv_bias) == (
        theirs.conv_kernel,
        theirs.expand,
        theirs.use_conv_bias,
    )
    steps = theirs.time_step_min, theirs.time_step_max, theirs.time_step_floor
    assert (ours.dt_min, ours.dt_max, ours.dt_init_floor) == steps
    assert ours.norm_eps == theirs.layer_norm_epsilon
    assert (ours.ngroups, ours.norm_before_gate, ours.norm_full_width) == (1, False, False)
    assert (ours.a_init_min, ours.a_init_max) == (1, 16)
    memory = Mamba2(64)
    assert (memory.geometry.d_state, memory.geometry.headdim) == (128, 64)


@pytest.mark.parametrize(("width", "head"), [(128, 64), (96, 64), (100, 50), (40, 40), (37, 37), (67, 2)])
def test_heads_have_64_channels_or_the_largest_divisor_below(width: int, head: int) -> None:
    assert Mamba().head_width(width) == head


@torch.no_grad()
@pytest.mark.parametrize("ngroups", [1, 2])
@pytest.mark.parametrize("conv_bias", [True, False])
@pytest.mark.parametrize("length", [1, 3, 8, 29])
def test_reads_and_states_are_those_of_transformers(ngroups: int, conv_bias: bool, length: int) -> None:
    """float32, from the empty state, then on from the state by single tokens; shorter than the window too."""
    memory = Mamba2(
        WIDTH, headdim=HEADDIM, d_state=D_STATE, ngroups=ngroups, conv_bias=conv_bias, chunk_size=8, seed=4
    )
    rng = torch.Generator().manual_seed(1)
    for name, parameter in memory.named_parameters():
        if name in ("conv_bias", "dt_bias", "a_log", "d_skip", "norm_weight"):
            parameter += 0.5 * torch.randn(parameter.shape, generator=rng)
    mixer, config = published(ngroups, conv_bias)
    copy_weights(memory, mixer)

    cache, state = DynamicCache(config=config), None
    for piece in draw(2, length + 2, WIDTH).float().split([length, 1, 1], dim=1):
        expected = mixer(piece, cache)
        found, state = read(memory, piece, state)
        theirs = cache.layers[0]
        torch.testing.assert_close(found[:, 0], expected, rtol=TOLERANCE, atol=TOLERANCE)
        torch.testing.assert_close(state["ssm"], theirs.recurrent_states[0], rtol=TOLERANCE, atol=TOLERANCE)
        window = theirs.conv_states[0][:, :, 1:]
        torch.testing.assert_close(state["conv"], window, rtol=TOLERANCE, atol=TOLERANCE)


def test_gradients_are_those_of_transformers() -> None:
    memory = Mamba2(WIDTH, headdim=HEADDIM, d_state=D_STATE, ngroups=2, chunk_size=8, seed=4)
    mixer, _ = published(2, True)
    copy_weights(memory, mixer)
    stream = draw(2, 21, WIDTH).float().requires_grad_()
    along = draw(2, 21, WIDTH, seed=9).float()
    ours = [
        memory.in_proj,
        memory.conv_weight,
        memory.dt_bias,
        memory.a_log,
        memory.d_skip,
        memory.norm_weight,
    ]
    theirs = [
        mixer.in_proj.weight,
        mixer.conv1d.weight,
        mixer.dt_bias,
        mixer.A_log,
        mixer.D,
        mixer.norm.weight,
    ]
    found = torch.autograd.grad((read(memory, stream)[0][:, 0] * along).sum(), [stream, *ours])
    expected = list(torch.autograd.grad((mixer(stream) * along).sum(), [stream, *theirs]))
    expected[1], expected[2] = expected[1].mT, expected[2][:, 0]
    for a, b in zip(found, expected, strict=True):
        assert float((a - b).abs().max() / b.abs().max()) < TOLERANCE
