"""A sample of what the model writes, for the eyes of the person who trains it."""

from __future__ import annotations

from dataclasses import dataclass

from ..generation.text import generate_text
from .session import Session


@dataclass(frozen=True)
class Sample:
    """A prompt and what the model wrote after it."""

    prompt: str
    text: str


def write_sample(session: Session) -> Sample:
    """Continue the configured prompt. Drawn with a fixed seed: a function of the weights, which changes nothing.

    Raises:
        DataError: the tokenizer does not know the prompt.
    """
    settings, training = session.config.generation, session.config.training
    tokens = training.sample_tokens or (settings.max_tokens if isinstance(settings.max_tokens, int) else 200)
    seed = training.seed if settings.seed is None else settings.seed
    text = generate_text(session, settings.prompt, max_tokens=tokens, seed=seed)
    return Sample(settings.prompt, text)
