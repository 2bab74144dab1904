"""Every option of the model against the equations written down once more, token by token, in plain tensor algebra."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from wyrmling.config.schema.model import Model as ModelConfig
from wyrmling.model import Model, Observed
from wyrmling.numerics.dropout import Dropout

BASE = {"n_layer": 3, "n_embd": 8, "n_head": 2, "latent_total": 32, "dropout": 0.0}


def textbook_norm(x: Tensor, config: ModelConfig, weights: dict[str, Tensor]) -> Tensor:
    norm = config.normalization
    if norm.kind == "layer_norm":
        x = (x - x.mean(-1, keepdim=True)) / torch.sqrt(x.var(-1, unbiased=False, keepdim=True) + norm.eps)
    elif norm.kind == "rms_norm":
        x = x / torch.sqrt((x * x).mean(-1, keepdim=True) + norm.eps)
    elif norm.kind == "dynamic_tanh":
        x = torch.tanh(weights["norm.alpha"] * x)
    else:
        x = torch.erf(weights["norm.alpha"] * x + weights["norm.shift"])
    return x * weights["norm.gain"] + weights["norm.bias"] if norm.affine else x


def textbook_key(x: Tensor, t: int, config: ModelConfig, n_most: int) -> Tensor:
    """Key of neurons x [N] of one head at position t; N may be less than the widest layer's n_most."""
    theta = config.rope_theta
    if config.rotary_embedding == "alibi":
        return x
    if config.rotary_embedding == "rope":
        key = x.clone()
        for j in range(0, len(x), 2):
            angle = t * theta ** (-j / n_most)
            key[j] = x[j] * math.cos(angle) - x[j + 1] * math.sin(angle)
            key[j + 1] = x[j] * math.sin(angle) + x[j + 1] * math.cos(angle)
        return key
    parts = []
    for j in range(len(x)):
        angle, length = t * theta ** (-j / n_most), F.softplus(x[j])
        parts += [length * math.cos(angle), length * math.sin(angle)]
    return torch.stack(parts)


def textbook(
    config: ModelConfig,
    weights: dict[str, Tensor],
    tokens: Tensor,
    widths: tuple[int, ...],
    thresholds: tuple[float, float] = (0.0, 0.0),
    dropout: Dropout | None = None,
) -> tuple[Tensor, list[dict[str, Tensor]]]:
    """tokens [T] of one row -> logits [T, V], and per layer the sums that `observe` promises."""
    heads, width, n_most = weights["encoder"].shape
    decoder = weights["decoder"].view(heads, n_most, width)
    slopes = config.alibi_slopes or [2.0 ** (-h / heads) for h in range(heads)]
    h = textbook_norm(weights["embedding.weight"][tokens], config, weights)
    sums = []
    for layer, n in enumerate(widths):
        mask = None
        if dropout is not None:
            mask = dropout.mask(layer, torch.zeros(1, dtype=torch.int64), len(tokens), heads, n)[:, 0]
        following = torch.zeros_like(h)
        seen = {name: torch.zeros(heads, n, dtype=h.dtype) for name in ("x", "y", "xy")}
        states = [0.0] * heads
        for t in range(len(tokens)):
            delta = torch.zeros(width, dtype=h.dtype)
            for head in range(heads):
                z = h[t] @ weights["encoder"][head, :, :n] - thresholds[0]
                x = torch.where(z > 0, z, torch.zeros_like(z))
                key = textbook_key(x, t, config, n_most)
                read = key @ states[head] if t else torch.zeros(width, dtype=h.dtype)
                states[head] = states[head] + torch.outer(key, h[t])
                if config.rotary_embedding == "alibi":
                    states[head] = states[head] * math.exp(-slopes[head])
                z = textbook_norm(read, config, weights) @ weights["encoder_v"][head, :, :n] - thresholds[1]
                y = torch.where(z > 0, z, torch.zeros_like(z))
                seen["x"][head] += x > 0
                seen["y"][head] += y > 0
                seen["xy"][head] += x * y
                gated = x * y
                if mask is not None:
                    gated = gated * mask[head, t] / (1 - dropout.threshold / 65536)
                delta = delta + gated @ decoder[head, :n]
            following[t] = textbook_norm(h[t] + textbook_norm(delta, config, weights), config, weights)
        h = following
        sums.append(seen)
    head_weight = weights["embedding.weight"].T if config.tie_embeddings else weights["lm_head"]
    return h @ head_weight, sums


def build(**changes: object) -> Model:
    """A float64 model whose every parameter is far from its neutral value."""
    model = Model(ModelConfig.model_validate({**BASE, **changes}), 11, seed=6).double()
    generator = torch.Generator().manual_seed(8)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name in ("encoder", "encoder_v", "decoder"):
                parameter.mul_(25)
            elif name.startswith("norm"):
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return model


CASES = {
    "rope": {},
    "another theta": {"rope_theta": 40.0},
    "pope": {"rotary_embedding": "pope", "rope_theta": 90.0},
    "alibi": {"rotary_embedding": "alibi"},
    "own slopes": {"rotary_embedding": "alibi", "alibi_slopes": [0.05, 0.6]},
    "large eps": {"normalization": {"eps": 0.3}},
    "affine": {"normalization": {"affine": True}},
    "rms": {"normalization": {"kind": "rms_norm", "eps": 0.2, "affine": True}},
    "tanh": {"normalization": {"kind": "dynamic_tanh", "alpha_init": 0.7}},
    "erf": {"normalization": {"kind": "derf", "alpha_init": 0.9, "shift_init": 0.4, "affine": True}},
    "tied": {"tie_embeddings": True},
    "narrow": {"latent_fanout_schedule": {"type": "late_layer", "base_latent_total": 16, "last_layers": 1}},
    "narrow pope": {
        "rotary_embedding": "pope",
        "latent_fanout_schedule": {"type": "late_layer", "base_latent_total": 16, "last_layers": 1},
    },
    "dense": {"sequence_kernel": {"memory_system": "linear_attention", "executor": "dense"}},
    "chunked": {"sequence_kernel": {"memory_system": "linear_attention", "executor": "chunked"}},
}


@torch.no_grad()
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("rate", [0.0, 0.4])
def test_every_option_is_what_its_equation_says(case: str, rate: float) -> None:
    """Logits and observed sums in float64, with and without dropout."""
    model = build(**CASES[case])
    tokens = torch.randint(0, 11, (1, 9), generator=torch.Generator().manual_seed(1))
    key = Dropout(rate, seed=3, step=7, rows=(5,)) if rate else None
    seen: list[Observed] = []
    hidden, _ = model(tokens, dropout=key, observe=seen)
    expected, sums = textbook(
        model.config, model.state_dict(), tokens[0], model.geometry.layer_neurons, dropout=key
    )
    torch.testing.assert_close(model.logits(hidden)[0], expected, rtol=1e-9, atol=1e-9)
    for found, counted in zip(seen, sums, strict=True):
        assert found.tokens == 9
        torch.testing.assert_close(found.x_firing.double(), counted["x"])
        torch.testing.assert_close(found.y_firing.double(), counted["y"])
        torch.testing.assert_close(found.activity.double(), counted["xy"], rtol=1e-5, atol=1e-6)


@torch.no_grad()
@pytest.mark.parametrize(
    ("changes", "thresholds"),
    [
        ({"relu_threshold": 0.2}, (0.2, 0.2)),
        (
            {
                "initialization": {
                    "firing_targets": {"kind": "explicit_thresholds", "x_threshold": 0.3, "y_threshold": -0.2}
                }
            },
            (0.3, -0.2),
        ),
    ],
)
def test_neurons_fire_by_how_much_they_exceed_their_threshold(
    changes: dict[str, object], thresholds: tuple[float, float]
) -> None:
    """relu(z - theta), each of x and y with its own theta."""
    model = build(**changes)
    tokens = torch.randint(0, 11, (1, 8), generator=torch.Generator().manual_seed(2))
    expected, _ = textbook(
        model.config, model.state_dict(), tokens[0], model.geometry.layer_neurons, thresholds
    )
    torch.testing.assert_close(model.logits(model(tokens)[0])[0], expected, rtol=1e-9, atol=1e-9)


def test_the_configured_executor_is_the_one_that_runs() -> None:
    for executor in ("dense", "chunked"):
        model = build(sequence_kernel={"memory_system": "linear_attention", "executor": executor})
        assert model.memory.choice(16).form == executor
        assert model.memory.choice(100_000).form == executor
    assert build().memory.choice(16).form == "dense"
    assert build().memory.choice(100_000).form == "chunked"
    assert build(sequence_kernel="linear_attention").memory.choice(100_000).form == "chunked"


@torch.no_grad()
def test_a_reset_given_to_the_layer_or_the_memory_empties_the_row() -> None:
    """The contract's own `reset`, below the model: state and position of the marked row start anew."""
    model = build()
    tokens = torch.randint(0, 11, (2, 6))
    _, state = model(tokens)
    stream = torch.randn(2, 5, 8, dtype=torch.float64)
    reset = torch.tensor([True, False])
    weights = model.layer_weights()[0]
    found, after, _ = model.layer_step(
        weights, stream, state.layers[0], position=state.position, layer=0, reset=reset
    )
    fresh, fresh_state, _ = model.layer_step(
        weights, stream[:1], None, position=torch.zeros(1, dtype=torch.int64), layer=0
    )
    torch.testing.assert_close(found[:1], fresh, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(after["rho"][:1], fresh_state["rho"], rtol=1e-12, atol=1e-12)
    neurons = torch.rand(2, 2, 5, 16, dtype=torch.float64)
    read, _ = model.memory(neurons, stream, state.layers[0], position=torch.tensor([0, 6]), reset=reset)
    alone, _ = model.memory(neurons[:1], stream[:1], None, position=torch.zeros(1, dtype=torch.int64))
    torch.testing.assert_close(read[:1], alone, rtol=1e-12, atol=1e-12)
    forgotten, _ = model.memory(neurons[1:], stream[1:], None, position=torch.zeros(1, dtype=torch.int64))
    assert float((read[1] - forgotten[0]).abs().max()) > 1e-3  # the other row still knows its past


@torch.no_grad()
def test_without_a_final_state_the_chunks_still_hand_theirs_on() -> None:
    """`carry=False` drops the last state only, in the layer's tiles and in the memory's chunks."""
    model = build(sequence_kernel={"memory_system": "linear_attention", "executor": "chunked"})
    model.memory.chunk = 3
    tokens = torch.randint(0, 11, (2, 10))
    hidden, state = model(tokens)
    alone, nothing = model(tokens, carry=False)
    assert nothing is None
    assert torch.equal(hidden, alone)
    neurons, stream = (
        torch.rand(2, 2, 10, 16, dtype=torch.float64),
        torch.randn(2, 10, 8, dtype=torch.float64),
    )
    start = torch.zeros(2, dtype=torch.int64)
    assert torch.equal(
        model.memory(neurons, stream, None, position=start)[0],
        model.memory(neurons, stream, None, position=start, carry=False)[0],
    )
    assert state is not None


def test_low_precision_is_where_it_should_be_and_nowhere_else() -> None:
    """Under autocast products run in bfloat16; the stream, the state and the gradients of weights stay float32."""
    torch.manual_seed(0)
    config = ModelConfig.model_validate({**BASE, "n_embd": 32, "latent_total": 512})
    model = Model(config, 50, seed=1)
    tokens, targets = torch.randint(0, 50, (2, 40)), torch.randint(0, 50, (2, 40))
    products: set[torch.dtype] = set()
    originals = {name: getattr(torch, name) for name in ("mm", "bmm")}

    def watching(name: str) -> Callable[..., Tensor]:
        def product(a: Tensor, b: Tensor, **rest: Any) -> Tensor:
            products.update((a.dtype, b.dtype))
            return originals[name](a, b, **rest)

        return product

    with torch.no_grad():
        exact, exact_state = model(tokens)
    for name in originals:
        setattr(torch, name, watching(name))
    try:
        with torch.autocast("cpu", torch.bfloat16):
            hidden, state = model(tokens)
            loss = model.loss_sum(hidden, targets)
    finally:
        for name, original in originals.items():
            setattr(torch, name, original)
    assert products == {torch.bfloat16}
    assert hidden.dtype == state.layers[0]["rho"].dtype == loss.dtype == torch.float32
    assert not torch.equal(hidden, exact)
    assert float((hidden.detach() - exact).norm() / exact.norm()) < 0.05
    assert float((state.layers[0]["rho"].detach() - exact_state.layers[0]["rho"]).norm()) > 0
    loss.backward()
    assert all(p.grad.dtype == torch.float32 for p in model.parameters() if p.grad is not None)


def test_masks_and_first_weights_are_pinned() -> None:
    """What a seed means must not change between versions: a resumed run would be another one."""
    mask = Dropout(0.25, 1, 2, (3,)).mask(4, torch.tensor([60]), 8, 2, 6)
    digest = int(np.packbits(mask.numpy().reshape(-1)).astype(np.int64) @ (np.arange(12) + 1))
    weights = Model(ModelConfig.model_validate(BASE), 11, seed=1).state_dict()
    assert digest == 16155
    assert Dropout(0.1, 0, 0, ()).threshold == 6554
    # the normal numbers themselves may differ in their last bits between processors
    for name, expected in (("encoder", 4.124269), ("decoder", 4.035111), ("embedding.weight", 1.39803)):
        assert float(weights[name].double().abs().sum()) == pytest.approx(expected, rel=1e-5)
