"""A sample of what the model writes, for the eyes of the person who trains it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..generation.settings import GenerationSettings
from ..generation.text import TextGeneration, encode_prompt
from .session import Session


@dataclass(frozen=True)
class Sample:
    """A prompt and what the model wrote after it."""

    prompt: str
    text: str


def write_sample(session: Session, stop: Callable[[], bool]) -> Sample | None:
    """Continue the configured prompt. Drawn with a fixed seed: a function of the weights, which changes nothing.

    Args:
        stop: asked before every token; a sample that is stopped is None.
    Raises:
        DataError: the tokenizer does not know the prompt.
    """
    settings, training = session.config.generation, session.config.training
    tokens = training.sample_tokens or (settings.max_tokens if isinstance(settings.max_tokens, int) else 200)
    seed = training.seed if settings.seed is None else settings.seed
    chosen = GenerationSettings.from_config(settings, {"max_tokens": tokens, "seed": seed})
    prompt = encode_prompt(session.tokenizer, settings.prompt)
    writing = TextGeneration(session.model, session.tokenizer, [prompt], chosen)
    for _ in writing:
        if stop():
            return None
    return Sample(settings.prompt, writing.results[0].text)
