"""First weights and checks of sizes that the Mamba memories share."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ...numerics.first_draws import generator


def require(holds: bool, message: str) -> None:
    """Refuse settings that do not fit each other.

    Raises:
        ValueError: `model.mamba.` and the message, which begins with the key's name, unless `holds`.
    """
    if not holds:
        raise ValueError(f"model.mamba.{message}")


def positive_numbers(**numbers: float) -> None:
    """Refuse numbers, by the names of their keys, that are not positive and finite (ValueError)."""
    for name, number in numbers.items():
        require(0 < number < math.inf, f"{name}: must be positive and finite, got {number}")


def positive_counts(**counts: int) -> None:
    """Refuse counts, by the names of their keys, below 1 (ValueError)."""
    for name, count in counts.items():
        require(count > 0, f"{name}: must be at least 1, got {count}")


def uniform(count: int, smallest: float, largest: float, *, seed: int, name: str) -> Tensor:
    """float64 [count], uniform in [smallest, largest]."""
    drawn = torch.rand(count, generator=generator(seed, name), dtype=torch.float64)
    return smallest + drawn * (largest - smallest)


def layer_uniform(*shape: int, fan_in: int, seed: int, name: str) -> Tensor:
    """float32, uniform within 1 / sqrt(fan_in) of 0: what `nn.Linear` and `nn.Conv1d`, biases too, begin with."""
    return (2 * torch.rand(*shape, generator=generator(seed, name)) - 1) / math.sqrt(fan_in)


def log_uniform(count: int, smallest: float, largest: float, *, seed: int, name: str) -> Tensor:
    """float64 [count] in [smallest, largest], uniform in their logarithms."""
    return uniform(count, math.log(smallest), math.log(largest), seed=seed, name=name).exp()


def inverse_softplus(x: Tensor) -> Tensor:
    """What softplus makes x > 0 of."""
    return x + torch.log(-torch.expm1(-x))
