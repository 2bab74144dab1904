"""Sequence memories: what the past says about the neurons that fire now."""

from .base import Memory, MemoryState, reset_rows
from .choose import FormChoice, choose_form
from .linear.module import LinearAttention

__all__ = ["FormChoice", "LinearAttention", "Memory", "MemoryState", "choose_form", "reset_rows"]
