"""From prompts to text: sampling, the batched engine, streaming text, conversations that can be saved.

`GenerationSettings` can be had without torch; the rest is imported when it is first asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .settings import GenerationSettings, SamplingSettings

if TYPE_CHECKING:
    from .conversation import Conversation, load_conversation, model_fingerprint, save_conversation
    from .engine import Generation, Result, Step, generate, window_length
    from .mode import evaluating
    from .text import (
        Continuation,
        Piece,
        Prompt,
        TextGeneration,
        as_json,
        encode_prompt,
        generate_text,
        output_format,
        start_token,
    )

_HOMES = {
    "conversation": ("Conversation", "load_conversation", "model_fingerprint", "save_conversation"),
    "engine": ("Generation", "Result", "Step", "generate", "window_length"),
    "mode": ("evaluating",),
    "text": (
        "Continuation",
        "Piece",
        "Prompt",
        "TextGeneration",
        "as_json",
        "encode_prompt",
        "generate_text",
        "output_format",
        "start_token",
    ),
}

__all__ = [
    "Continuation",
    "Conversation",
    "Generation",
    "GenerationSettings",
    "Piece",
    "Prompt",
    "Result",
    "SamplingSettings",
    "Step",
    "TextGeneration",
    "as_json",
    "encode_prompt",
    "evaluating",
    "generate",
    "generate_text",
    "load_conversation",
    "model_fingerprint",
    "output_format",
    "save_conversation",
    "start_token",
    "window_length",
]


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f".{module}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
