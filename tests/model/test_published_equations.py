"""The model with its defaults is the published BDH: values and gradients, in float64 and in float32 up to T = 512."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

from wyrmling.config.schema.model import Model as ModelConfig
from wyrmling.model import Model

_SPEC = importlib.util.spec_from_file_location(
    "plain_bdh", Path(__file__).parents[2] / "benchmarks" / "plain_bdh.py"
)
plain_bdh = importlib.util.module_from_spec(_SPEC)
sys.modules["plain_bdh"] = plain_bdh
_SPEC.loader.exec_module(plain_bdh)


def pair(dtype: torch.dtype, **sizes: int) -> tuple[torch.nn.Module, Model]:
    torch.manual_seed(0)
    plain = plain_bdh.PlainBDH(dropout=0.0, vocab_size=64, **sizes)
    config = ModelConfig(
        n_layer=sizes["n_layer"],
        n_embd=sizes["n_embd"],
        n_head=sizes["n_head"],
        mlp_internal_dim_multiplier=sizes["multiplier"],
        dropout=0.0,
    )
    ours = Model(config, 64)
    ours.load_state_dict(plain_bdh.as_ours(plain))
    return plain.to(dtype), ours.to(dtype)


def test_values_and_gradients_in_float64() -> None:
    plain, ours = pair(torch.float64, n_layer=3, n_embd=16, n_head=4, multiplier=4)
    tokens, targets = torch.randint(0, 64, (2, 37)), torch.randint(0, 64, (2, 37))
    logits, loss = plain(tokens, targets)
    hidden, _ = ours(tokens)
    torch.testing.assert_close(ours.logits(hidden), logits, rtol=1e-10, atol=1e-10)
    loss.backward()
    (ours.loss_sum(hidden, targets) / targets.numel()).backward()
    theirs = {
        "embedding.weight": plain.embed.weight,
        "encoder": plain.encoder,
        "encoder_v": plain.encoder_v,
        "decoder": plain.decoder,
        "lm_head": plain.lm_head,
    }
    for name, parameter in ours.named_parameters():
        torch.testing.assert_close(parameter.grad, theirs[name].grad, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("length", [1, 17, 512])
def test_logits_in_float32_up_to_512_tokens(length: int) -> None:
    plain, ours = pair(torch.float32, n_layer=4, n_embd=32, n_head=4, multiplier=16)
    tokens = torch.randint(0, 64, (1, length))
    with torch.no_grad():
        hidden, _ = ours(tokens)
        difference = (ours.logits(hidden) - plain(tokens)[0]).abs().max()
    assert float(difference) < 1e-5


def test_greedy_generation_with_a_state_equals_running_the_prefix_again() -> None:
    plain, ours = pair(torch.float64, n_layer=2, n_embd=16, n_head=2, multiplier=4)
    tokens = torch.randint(0, 64, (1, 9))
    expected = plain.generate(tokens, 20)[0, 9:].tolist()
    with torch.no_grad():
        hidden, state = ours(tokens)
        found = []
        for _ in range(20):
            token = ours.logits(hidden[:, -1:]).argmax(-1)
            found.append(int(token))
            hidden, state = ours(token, state)
    assert found == expected


def test_the_defaults_are_the_published_ones() -> None:
    config = ModelConfig()
    assert (config.n_layer, config.n_embd, config.n_head, config.dropout) == (6, 256, 4, 0.1)
    assert config.total_neurons == 128 * 256
    assert config.rotary_embedding == "rope"
    assert not config.normalization.affine
    small = Model(ModelConfig(n_layer=2, n_embd=32, n_head=2), 50)
    for name, parameter in small.named_parameters():
        assert float(parameter.detach().std()) == pytest.approx(0.02, rel=0.06), name
