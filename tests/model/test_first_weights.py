"""First weights: deviations by formula, gains and patterns of mean square 1, independence of what else is built."""

from __future__ import annotations

import math

import pytest
import torch

from wyrmling.config.schema.initialization import Initialization
from wyrmling.config.schema.model import Model as ModelConfig
from wyrmling.model import Model, init


def settings(**values: object) -> Initialization:
    return Initialization.model_validate(values)


@pytest.mark.parametrize(
    ("kind", "fan_in", "fan_out", "expected"),
    [
        ("near_critical", 256, 32768, 1 / math.sqrt(256 + 32768)),
        ("near_critical", 64, 64, 0.02),
        ("headwise_semi_orthogonal", 4096, 4096, min(1 / math.sqrt(8192), 0.02)),
        ("he_glorot", 128, 512, math.sqrt(2 / 128)),
        ("simple_normal", 128, 512, 0.02),
    ],
)
def test_deviations_by_formula(kind: str, fan_in: int, fan_out: int, expected: float) -> None:
    found = init.matrix_std(settings(kind=kind), "encoder", fan_in, fan_out, depth=1)
    assert found == pytest.approx(expected)


def test_residual_scaling_shrinks_with_the_root_of_the_depth() -> None:
    scaled = settings(residual_scaling={"kind": "depth_scaled"})
    at_one = init.matrix_std(scaled, "decoder", 64, 64, 1)
    assert init.matrix_std(scaled, "decoder", 64, 64, 16) == pytest.approx(at_one / 4)
    assert init.matrix_std(scaled, "lm_head", 64, 64, 16) == pytest.approx(at_one)
    family = settings(kind="near_critical", residual_scaling={"kind": "family_default"})
    assert init.matrix_std(family, "encoder", 64, 64, 4) == pytest.approx(0.01)


@pytest.mark.parametrize("kind", ["simple_normal", "near_critical", "he_glorot", "headwise_semi_orthogonal"])
def test_drawn_deviations_are_the_promised_ones(kind: str) -> None:
    config = settings(kind=kind)
    encoder = init.initial_encoder(config, "encoder", 2, 96, 160, 3, seed=1)
    decoder = init.initial_decoder(config, 2, 160, 96, 3, seed=1)
    assert float(encoder.std()) == pytest.approx(init.matrix_std(config, "encoder", 96, 160, 3), rel=0.05)
    assert float(decoder.std()) == pytest.approx(init.matrix_std(config, "decoder", 320, 96, 3), rel=0.05)


def test_semi_orthogonal_blocks_are_orthogonal() -> None:
    encoder = init.initial_encoder(settings(kind="headwise_semi_orthogonal"), "encoder", 2, 16, 48, 1, seed=3)
    for head in encoder:
        for block in head.split(16, dim=1):
            gram = block.T @ block
            torch.testing.assert_close(gram, torch.eye(16) * gram[0, 0], atol=1e-6, rtol=1e-5)


def test_gains_have_mean_square_one_and_a_limit() -> None:
    config = settings(neuron_gains={"kind": "heavy_tailed_log_normal", "log_sigma": 0.75, "max_gain": 4.0})
    plain = init.initial_encoder(settings(), "encoder", 2, 64, 512, 1, seed=9)
    strong = init.initial_encoder(config, "encoder", 2, 64, 512, 1, seed=9)
    gains = (strong / plain)[:, 0].flatten()
    assert float(gains.square().mean()) == pytest.approx(1.0, rel=1e-4)
    torch.testing.assert_close((strong / plain)[:, 5].flatten(), gains, rtol=1e-4, atol=1e-5)
    assert float(gains.std()) > 0.3


def test_communities_have_mean_square_one_and_their_own_gains() -> None:
    config = settings(
        topology_prior={"kind": "modular_bridges", "community_count": 2, "bridge_fraction": 0.25}
    )
    ratio = (
        init.initial_encoder(config, "encoder", 1, 4, 8, 1, 1)[0]
        / init.initial_encoder(settings(), "encoder", 1, 4, 8, 1, 1)[0]
    )
    assert float(ratio.square().mean()) == pytest.approx(1.0, rel=1e-5)
    assert float(ratio[0, 0] / ratio[0, 5]) == pytest.approx(3.0, rel=1e-4)  # 1.5 inside, 0.5 outside
    assert float(ratio[0, 0] / ratio[0, 7]) == pytest.approx(1.5, rel=1e-4)  # the last neurons are bridges
    rows = init.initial_decoder(config, 1, 8, 4, 1, 1) / init.initial_decoder(settings(), 1, 8, 4, 1, 1)
    torch.testing.assert_close(rows, ratio.T, rtol=1e-4, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("target", [0.05, 0.3])
def test_thresholds_fire_the_wanted_share(target: float) -> None:
    config = ModelConfig.model_validate(
        {
            "n_layer": 1,
            "n_embd": 128,
            "n_head": 2,
            "latent_total": 1024,
            "initialization": {"firing_targets": {"kind": "gaussian_estimate", "x_target": target}},
        }
    )
    seen: list = []
    Model(config, 64)(torch.randint(0, 64, (4, 64)), observe=seen)
    assert float(seen[0].x_firing.mean() / 256) == pytest.approx(target, rel=0.25)


@torch.no_grad()
def test_explicit_thresholds_of_ten_silence_everything() -> None:
    config = ModelConfig.model_validate(
        {
            "n_layer": 1,
            "n_embd": 16,
            "n_head": 2,
            "latent_total": 32,
            "initialization": {
                "firing_targets": {"kind": "explicit_thresholds", "x_threshold": 10.0, "y_threshold": 10.0}
            },
        }
    )
    seen: list = []
    Model(config, 64)(torch.randint(0, 64, (1, 8)), observe=seen)
    assert float(seen[0].x_firing.sum()) == 0


def test_weights_depend_on_seed_and_name_alone() -> None:
    def build(seed: int, **changes: object) -> dict[str, torch.Tensor]:
        values = {"n_layer": 2, "n_embd": 8, "n_head": 2, "latent_total": 16, **changes}
        return Model(ModelConfig.model_validate(values), 11, seed=seed).state_dict()

    base, same, other = build(1), build(1, n_layer=5, tie_embeddings=True), build(2)
    for name in ("encoder", "encoder_v", "decoder", "embedding.weight"):
        assert torch.equal(base[name], same[name])
        assert not torch.equal(base[name], other[name])
    assert not torch.equal(base["encoder"], base["encoder_v"])
