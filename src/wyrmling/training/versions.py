"""What software a run was made with."""

from __future__ import annotations

import platform

import numpy as np
import torch

from .._version import __version__


def versions() -> dict[str, str]:
    """Versions of what decides a number: this package, torch, numpy, Python."""
    return {
        "wyrmling": __version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }
