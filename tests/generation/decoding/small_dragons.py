"""Small models of every kind, with scores that differ, for tests of decoding."""

from __future__ import annotations

import torch
from hypothesis import strategies as st
from torch import Tensor

from wyrmling.config.schema.model import Model as ModelConfig
from wyrmling.model import Model, State

VOCABULARY = 23
POSITIONS = ["rope", "alibi", "pope"]

NARROW = {"type": "late_layer", "base_latent_total": 24, "last_layers": 1}
TARGETS = {"kind": "explicit_thresholds", "x_threshold": 0.2, "y_threshold": 0.1}

KINDS = st.fixed_dictionaries(
    {
        "rotary_embedding": st.sampled_from(POSITIONS),
        "normalization": st.fixed_dictionaries(
            {
                "kind": st.sampled_from(["layer_norm", "rms_norm", "dynamic_tanh", "derf"]),
                "affine": st.booleans(),
            }
        ),
        "relu_threshold": st.sampled_from([0.0, 0.3]),
        "tie_embeddings": st.booleans(),
        "latent_fanout_schedule": st.sampled_from([None, NARROW]),
        "initialization": st.sampled_from([{}, {"firing_targets": TARGETS}]),
    }
)


def small_dragon(dtype: torch.dtype = torch.float64, seed: int = 0, **values: object) -> Model:
    """Three layers, D = 12, two heads of 20 neurons; weights large enough for scores that differ."""
    table = {"n_layer": 3, "n_embd": 12, "n_head": 2, "latent_total": 40, **values}
    model = Model(ModelConfig.model_validate(table), VOCABULARY, seed=seed).to(dtype).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(10 if parameter.dim() > 1 else 1)
            if parameter.dim() == 1:  # gains and biases that are not those of the beginning
                parameter.add_(torch.rand(parameter.shape, generator=generator).to(dtype) / 4)
    return model


def random_tokens(*shape: int, seed: int = 0) -> Tensor:
    """int64 tokens of the small vocabulary."""
    return torch.randint(0, VOCABULARY, shape, generator=torch.Generator().manual_seed(seed))


def state_after(model: Model, lengths: list[int], seed: int = 1) -> State:
    """Rows that have read so many random tokens each."""
    states = []
    with torch.no_grad():
        for row, length in enumerate(lengths):
            if length:
                states.append(model(random_tokens(1, length, seed=seed + row))[1])
            else:
                states.append(model.initial_state(1).map(lambda t: t.to(model.encoder.dtype)))
    return State.cat(states)


def read_by_model(model: Model, tokens: Tensor, state: State | None) -> tuple[Tensor, State]:
    """Tokens [R, T] one by one: logits [R, T, V] and the final state."""
    scores = []
    with torch.no_grad():
        for token in tokens.split(1, dim=1):
            hidden, state = model(token, state)
            scores.append(model.logits(hidden[:, -1]))
    assert state is not None
    return torch.stack(scores, 1), state


def assert_same_state(found: State, expected: State, tolerance: float = 1e-10) -> None:
    """Positions and all tensors agree."""
    assert found.position.tolist() == expected.position.tolist()
    for name, tensor in expected.to_tensors().items():
        torch.testing.assert_close(
            found.to_tensors()[name], tensor, rtol=tolerance, atol=tolerance, check_stride=False
        )
