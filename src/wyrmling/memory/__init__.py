"""Sequence memories: what the past says about the neurons that fire now."""

from .base import Memory, MemoryState, reset_rows
from .choose import FormChoice, choose_form
from .linear.module import LinearAttention
from .mamba2.module import Mamba2
from .mamba3.module import Mamba3
from .rwkv8.module import Rwkv8

__all__ = [
    "FormChoice",
    "LinearAttention",
    "Mamba2",
    "Mamba3",
    "Memory",
    "MemoryState",
    "Rwkv8",
    "choose_form",
    "reset_rows",
]
