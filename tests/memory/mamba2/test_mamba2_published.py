"""Mamba-2 against an independent implementation: the PyTorch path of Hugging Face `transformers`, a development
dependency.

Its norm is that of the published block: gate, then norm in groups of inner width / ngroups. Its cache keeps d_conv
inputs, of which the oldest is never read again: the window here is its last d_conv - 1 columns.
"""

from __future__ import annotations

import pytest
import torch
from mamba2_cases import draw, read

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
