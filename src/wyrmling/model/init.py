"""The first weights.

Each tensor is drawn from its own generator, keyed by (seed, tensor name): the weights do not depend on the order in
which a model is built, and a model that differs in one tensor agrees in all others. Default: Normal(0, 0.02)
everywhere, as the published BDH. The families below are the described system's; std formulas per (fan_in, fan_out).
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Literal

import torch
from torch import Tensor

from ..config.schema.initialization import Initialization, NeuronGains, TopologyPrior
from ..numerics.first_draws import generator

MatrixName = Literal["encoder", "encoder_v", "decoder", "lm_head"]


def embedding_std(config: Initialization, width: int) -> float:
    """Standard deviation of the embedding's entries."""
    if config.kind == "simple_normal":
        return config.simple_normal_std
    if config.kind == "he_glorot":
        return math.sqrt(2 / (2 * width))
    return min(1 / math.sqrt(width), 0.02)


def matrix_std(config: Initialization, name: MatrixName, fan_in: int, fan_out: int, depth: int) -> float:
    """Standard deviation of a matrix's entries before neuron gains, residual scaling included."""
    if config.kind == "simple_normal":
        base = config.simple_normal_std
    elif config.kind == "he_glorot":
        base = math.sqrt(2 / fan_in) if name.startswith("encoder") else math.sqrt(2 / (fan_in + fan_out))
    else:
        base = min(1 / math.sqrt(fan_in + fan_out), 0.02)
    if name == "lm_head":
        return base
    scaling = config.residual_scaling
    family = config.kind in ("near_critical", "headwise_semi_orthogonal")
    by_depth = scaling.kind == "depth_scaled" or (scaling.kind == "family_default" and family)
    return base * scaling.gain * (1 / math.sqrt(max(depth, 1)) if by_depth else 1.0)


def thresholds(
    config: Initialization, relu_threshold: float, width: int, neurons: int, depth: int
) -> tuple[float, float]:
    """(theta_x, theta_y): what a neuron must exceed to fire.

    `gaussian_estimate`: sqrt(D) std z(1 - target), for a normalised input and Gaussian weights (gains ignored).
    """
    targets = config.firing_targets
    if targets.kind == "explicit_thresholds":
        return targets.x_threshold, targets.y_threshold
    if targets.kind == "gaussian_estimate":
        x_std = matrix_std(config, "encoder", width, neurons, depth)
        y_std = matrix_std(config, "encoder_v", width, neurons, depth)
        quantile = NormalDist().inv_cdf
        return (
            math.sqrt(width) * x_std * quantile(1 - targets.x_target),
            math.sqrt(width) * y_std * quantile(1 - targets.y_target),
        )
    return relu_threshold, relu_threshold


def initial_embedding(config: Initialization, vocab_size: int, width: int, seed: int) -> Tensor:
    """float32 [V, D]."""
    drawn = torch.randn(vocab_size, width, generator=generator(seed, "embedding"))
    return drawn * embedding_std(config, width)


def initial_head(config: Initialization, width: int, vocab_size: int, seed: int) -> Tensor:
    """float32 [D, V]."""
    drawn = torch.randn(width, vocab_size, generator=generator(seed, "lm_head"))
    return drawn * matrix_std(config, "lm_head", width, vocab_size, 1)


def initial_encoder(
    config: Initialization,
    name: Literal["encoder", "encoder_v"],
    heads: int,
    width: int,
    neurons: int,
    depth: int,
    seed: int,
) -> Tensor:
    """float32 [H, D, N]: normal or semi-orthogonal per head, times a topology pattern, times one gain per neuron."""
    std = matrix_std(config, name, width, neurons, depth)
    rng = generator(seed, name)
    if config.kind == "headwise_semi_orthogonal":
        weights = torch.stack([_semi_orthogonal(width, neurons, std, rng) for _ in range(heads)])
    else:
        weights = torch.randn(heads, width, neurons, generator=rng) * std
    weights = weights * _topology(config.topology_prior, width, neurons)
    return weights * _gains(config.neuron_gains, heads * neurons, generator(seed, name, "gains")).view(
        heads, 1, neurons
    )


def initial_decoder(
    config: Initialization, heads: int, neurons: int, width: int, depth: int, seed: int
) -> Tensor:
    """float32 [H N, D], head-major."""
    total = heads * neurons
    std = matrix_std(config, "decoder", total, width, depth)
    rng = generator(seed, "decoder")
    if config.kind == "headwise_semi_orthogonal":
        weights = _semi_orthogonal(total, width, std, rng)
    else:
        weights = torch.randn(total, width, generator=rng) * std
    weights = weights * _topology(config.topology_prior, width, neurons).expand(width, neurons).t().repeat(
        heads, 1
    )
    return weights * _gains(config.neuron_gains, total, generator(seed, "decoder", "gains"))[:, None]


def _gains(config: NeuronGains, count: int, rng: torch.Generator) -> Tensor:
    """One strength per neuron, root mean square 1."""
    if config.kind == "iid":
        return torch.ones(count)
    gains = torch.exp(torch.randn(count, generator=rng) * config.log_sigma).clamp_max(config.max_gain)
    return gains / gains.square().mean().sqrt().clamp_min(1e-6)


def _topology(config: TopologyPrior, width: int, neurons: int) -> Tensor:
    """Multiplicative pattern [D, N], root mean square 1: communities of neurons, the last of them bridges."""
    if config.kind == "iid":
        return torch.ones(1, 1)
    communities = max(1, min(config.community_count, width, neurons))
    of_dimension = torch.arange(width) * communities // width
    of_neuron = torch.arange(neurons) * communities // neurons
    same = of_dimension[:, None] == of_neuron[None, :]
    pattern = torch.where(same, config.intra_gain, config.inter_gain)
    bridges = round(config.bridge_fraction * neurons)
    if bridges:
        pattern[:, -bridges:] = config.bridge_gain
    return pattern / pattern.square().mean().sqrt()


def _semi_orthogonal(rows: int, columns: int, std: float, rng: torch.Generator) -> Tensor:
    """Orthonormal square blocks tiled along the longer axis, the last cut off, scaled to standard deviation `std`."""
    size = min(rows, columns)
    blocks = []
    for _ in range(-(-max(rows, columns) // size)):
        q, r = torch.linalg.qr(torch.randn(size, size, generator=rng))
        blocks.append(q * torch.sign(torch.diagonal(r)))
    if rows <= columns:
        tiled = torch.cat(blocks, dim=1)[:, :columns]
    else:
        tiled = torch.cat(blocks, dim=0)[:rows]
    return tiled * (std * math.sqrt(size))
