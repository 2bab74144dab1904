"""What the families of first weights promise beyond their deviations."""

from __future__ import annotations

import math

import pytest
import torch

from wyrmling.config.schema.initialization import Initialization
from wyrmling.config.schema.model import Model as ModelConfig
from wyrmling.model import Model, init

HEAVY = {"kind": "heavy_tailed_log_normal", "log_sigma": 1.5, "max_gain": 2.0}


def settings(**values: object) -> Initialization:
    return Initialization.model_validate(values)


@pytest.mark.parametrize(
    ("kind", "width", "expected"),
    [
        ("simple_normal", 64, 0.02),
        ("he_glorot", 64, math.sqrt(2 / 128)),
        ("near_critical", 6400, 1 / 80),
        ("near_critical", 4, 0.02),
    ],
)
def test_the_embedding_has_its_own_deviation(kind: str, width: int, expected: float) -> None:
    assert init.embedding_std(settings(kind=kind), width) == pytest.approx(expected)


def test_he_glorot_differs_between_encoders_and_the_rest() -> None:
    config = settings(kind="he_glorot")
    assert init.matrix_std(config, "encoder_v", 32, 96, 1) == pytest.approx(math.sqrt(2 / 32))
    assert init.matrix_std(config, "decoder", 32, 96, 1) == pytest.approx(math.sqrt(2 / 128))
    assert init.matrix_std(config, "lm_head", 32, 96, 1) == pytest.approx(math.sqrt(2 / 128))


def test_the_head_counts_the_vocabulary() -> None:
    head = init.initial_head(settings(kind="he_glorot"), 64, 4032, seed=1)
    assert float(head.std()) == pytest.approx(math.sqrt(2 / 4096), rel=0.02)


def test_thresholds_follow_their_own_targets() -> None:
    """sqrt(D) std z(1 - target), each of x and y with its own target."""
    config = settings(firing_targets={"kind": "gaussian_estimate", "x_target": 0.1, "y_target": 0.02})
    x, y = init.thresholds(config, 0.0, 64, 128, 1)
    assert x == pytest.approx(math.sqrt(64) * 0.02 * 1.2815516, rel=1e-6)
    assert y == pytest.approx(math.sqrt(64) * 0.02 * 2.0537489, rel=1e-6)


def gains(name: str) -> torch.Tensor:
    """The strengths that a tensor's neurons got, by dividing by the same draw without them."""
    plain, strong = settings(), settings(neuron_gains=HEAVY)
    if name == "decoder":
        ratio = init.initial_decoder(strong, 2, 300, 8, 1, 5) / init.initial_decoder(plain, 2, 300, 8, 1, 5)
        return ratio[:, 0]
    ratio = init.initial_encoder(strong, name, 2, 8, 300, 1, 5) / init.initial_encoder(
        plain, name, 2, 8, 300, 1, 5
    )
    return ratio[:, 0].flatten()


@pytest.mark.parametrize("name", ["encoder", "encoder_v", "decoder"])
def test_every_matrix_has_strengths_of_its_own_with_a_limit(name: str) -> None:
    found = gains(name)
    assert float(found.square().mean()) == pytest.approx(1.0, rel=1e-4)
    largest = found >= found.max() * (1 - 1e-4)
    assert int(largest.sum()) > 50  # many were cut off at the limit
    others = [gains(other) for other in ("encoder", "encoder_v", "decoder") if other != name]
    for other in others:
        assert abs(float(torch.corrcoef(torch.stack([found, other]))[0, 1])) < 0.2


def test_learned_scalars_of_norms_start_where_the_configuration_says() -> None:
    def start(**norm: object) -> Model:
        values = {"n_layer": 1, "n_embd": 8, "n_head": 2, "latent_total": 16, "normalization": norm}
        return Model(ModelConfig.model_validate(values), 5)

    model = start(kind="derf", alpha_init=0.25, shift_init=-0.5)
    assert float(model.norm.alpha.detach()) == 0.25
    assert float(model.norm.shift.detach()) == -0.5
    assert float(start(kind="dynamic_tanh").norm.alpha.detach()) == 0.5
    assert float(start(kind="derf").norm.alpha.detach()) == pytest.approx(0.88622695)
