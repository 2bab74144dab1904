"""What software a run was made with."""

from __future__ import annotations

import platform

import numpy as np
import torch

from .._version import __version__
from ..config.schema.model import Model

ARITHMETIC = "2"
"""Raised when the same run would end in other last bits than before. 2: decays from float64 exponents, rounded once;
Mamba-3's angles by segments. A record without it is of 1."""


def arithmetic_differs(recorded: str, model: Model) -> bool:
    """Whether a run of this model, recorded with an earlier arithmetic, would go on with other last bits."""
    memory = model.sequence_kernel.memory_system
    decays = memory == "linear_attention" and model.rotary_embedding == "alibi"
    return recorded != ARITHMETIC and (decays or memory in ("rwkv8", "mamba3"))


def versions() -> dict[str, str]:
    """Versions of what decides a number: this package, its arithmetic, torch, numpy, Python."""
    return {
        "arithmetic": ARITHMETIC,
        "wyrmling": __version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }
