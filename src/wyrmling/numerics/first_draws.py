"""Generators for first weights: each tensor has its own, so that none depends on what else a model holds."""

from __future__ import annotations

import torch

from .keyed import hash_int


def generator(seed: int, *names: str) -> torch.Generator:
    """A CPU generator that depends on the seed and the names alone."""
    return torch.Generator().manual_seed(hash_int("init", seed, *names) >> 1)
