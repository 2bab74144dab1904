"""Whether two ways to compute the same thing agree: outputs, final states, and the gradient of everything."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from wyrmling.config.schema.model import Model as ModelConfig
from wyrmling.model import Model, State
from wyrmling.numerics.dropout import Dropout

TOLERANCE = 1e-10
POSITIONS = ("rope", "alibi", "pope")


@dataclass
class Outcome:
    """All that a pass over tokens leads to: hidden states, final state, and the gradient of everything."""

    hidden: Tensor
    state: State
    gradients: dict[str, Tensor]


def build(positions: str, *, neurons: int = 6, executor: str = "auto", **changes: object) -> Model:
    config = ModelConfig.model_validate(
        {
            "n_layer": 3,
            "n_embd": 8,
            "n_head": 2,
            "latent_total": 2 * neurons * 4,
            "dropout": 0.0,
            "rotary_embedding": positions,
            "sequence_kernel": {"memory_system": "linear_attention", "executor": executor},
            **changes,
        }
    )
    model = Model(config, 13, seed=5).double()
    with torch.no_grad():  # weights large enough that every part of the layer matters
        for parameter in (model.encoder, model.encoder_v, model.decoder):
            parameter.mul_(20)
    return model


@torch.no_grad()
def prefix_state(model: Model, rows: int, seed: int) -> State:
    """A state as a stream leaves it, each row at its own position, cut off from the graph."""
    generator = torch.Generator().manual_seed(seed)
    parts = []
    for row in range(rows):
        tokens = torch.randint(0, 13, (1, 3 + 5 * row + seed % 4), generator=generator)
        parts.append(model(tokens)[1].detach())
    return State.cat(parts)


def run(
    model: Model, tokens: Tensor, state: State | None, cuts: list[int], dropout: Dropout | None = None
) -> Outcome:
    """Read tokens in pieces cut at `cuts`; gradients of a random functional of outputs and final state."""
    model.zero_grad(set_to_none=True)
    first = None if state is None else state.map(lambda t: t.clone().requires_grad_())
    current, outputs = first, []
    for begin, end in zip([0, *cuts], [*cuts, tokens.shape[1]], strict=True):
        hidden, current = model(tokens[:, begin:end], current, dropout=dropout)
        outputs.append(hidden)
    hidden = torch.cat(outputs, dim=1)
    generator = torch.Generator().manual_seed(99)

    def weights(like: Tensor) -> Tensor:  # the same numbers in every dtype
        return torch.randn(like.shape, generator=generator, dtype=torch.float64).to(like.dtype)

    loss = (hidden * weights(hidden)).sum()
    for layer in current.layers:
        for tensor in layer.values():
            loss = loss + (tensor * weights(tensor)).sum()
    loss.backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    if first is not None:
        gradients.update(
            {f"state.{i}.{n}": t.grad for i, layer in enumerate(first.layers) for n, t in layer.items()}
        )
    return Outcome(hidden.detach(), current.detach(), gradients)


@torch.no_grad()
def assert_equal(one: Outcome, other: Outcome) -> None:
    def close(a: Tensor, b: Tensor, name: str) -> None:
        scale = max(1.0, float(b.abs().max()))
        worst = float((a - b).abs().max()) / scale
        assert worst < TOLERANCE, f"{name} differs by {worst:.1e}"

    close(one.hidden, other.hidden, "hidden")
    assert torch.equal(one.state.position, other.state.position)
    for i, (a, b) in enumerate(zip(one.state.layers, other.state.layers, strict=True)):
        for name in b:
            close(a[name], b[name], f"state.{i}.{name}")
    assert one.gradients.keys() == other.gradients.keys()
    for name, gradient in other.gradients.items():
        close(one.gradients[name], gradient, f"gradient of {name}")


def naive(model: Model, tokens: Tensor, state: State | None) -> Outcome:
    """The truth: the loop over tokens in one pass."""
    executor, recompute = model.memory.executor, model.layer_step.recompute
    model.memory.executor, model.layer_step.recompute = "naive", False
    try:
        return run(model, tokens, state, [])
    finally:
        model.memory.executor, model.layer_step.recompute = executor, recompute
