"""A sample of what the model writes, for the eyes of the person who trains it."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import UserError
from ..generation.text import generate_text
from .session import Session


@dataclass(frozen=True)
class Sample:
    """A prompt and what the model wrote after it."""

    prompt: str
    text: str


def write_sample(session: Session) -> Sample | None:
    """Continue the configured prompt; None where the tokenizer has no text or does not know the prompt.

    Drawn with a fixed seed, so a sample is a function of the weights, and drawing it changes nothing.
    """
    settings, training = session.config.generation, session.config.training
    if session.dataset.tokenizer.kind == "pretokenized":
        return None
    tokens = training.sample_tokens or (settings.max_tokens if isinstance(settings.max_tokens, int) else 200)
    seed = training.seed if settings.seed is None else settings.seed
    try:
        text = generate_text(session, settings.prompt, max_tokens=tokens, seed=seed)
    except UserError:
        return None
    return Sample(settings.prompt, text)
