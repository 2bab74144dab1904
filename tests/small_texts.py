"""Text that tests train on."""

from __future__ import annotations

import random

SENTENCE = "to be or not that is the question whether tis nobler in mind to suffer slings and arrows"
WORDS = SENTENCE.split()


def small_text(lines: int = 400, seed: int = 0) -> str:
    """Text with something to learn: lines of a few words, the same on every machine."""
    draw = random.Random(seed)
    return "".join(" ".join(draw.choices(WORDS, k=draw.randint(3, 8))) + "\n" for _ in range(lines))
