"""How far rounding carries a decoder from the exact one: the same tokens read twice, the answers compared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ...model.dragon import Model
from .decoder import Decoder


class Drift(NamedTuple):
    """Relative errors |rounded - exact| / |exact| (Euclidean, over everything) after so many tokens.

    Attributes:
        reads: what the layers read from their past, the worst layer.
        logits: the scores of the next token.
        state: the states of all layers together.
        agreement: share of the tokens since the entry before whose likeliest successor is the same for both.
    """

    tokens: int
    reads: float
    logits: float
    state: float
    agreement: float


def drift(
    model: Model,
    tokens: Tensor,
    *,
    weights: str = "float32",
    state: str = "bfloat16",
    at: Sequence[int] = (100, 1_000, 10_000),
) -> list[Drift]:
    """Read int64 tokens [T] with an exact and a rounded decoder, and compare them after `at` tokens.

    Args:
        weights, state: of the rounded decoder, as `Decoder` takes them.
        at: numbers of tokens; those beyond T are left out.
    """
    exact, rounded = Decoder(model), Decoder(model, weights=weights, state=state)
    exact.start(1)
    rounded.start(1)
    found, agreed, last = [], 0, 0
    for count, token in enumerate(tokens.split(1), start=1):
        seen: tuple[list[Tensor], list[Tensor]] = ([], [])
        first = exact.logits(exact.step(token, reads=seen[0]))
        second = rounded.logits(rounded.step(token, reads=seen[1]))
        agreed += int(first.argmax() == second.argmax())
        if count in at:
            pairs = [
                (a["rho"], b["rho"])
                for a, b in zip(exact.state().layers, rounded.state().layers, strict=True)
            ]
            found.append(
                Drift(
                    tokens=count,
                    reads=max(_error([pair]) for pair in zip(*seen, strict=True)),
                    logits=_error([(first, second)]),
                    state=_error(pairs),
                    agreement=agreed / (count - last),
                )
            )
            agreed, last = 0, count
    return found


def _error(pairs: Sequence[tuple[Tensor, Tensor]]) -> float:
    """Relative distance of the second members from the first ones, over all pairs together."""
    with torch.inference_mode():
        away = sum(float((b.double() - a.double()).square().sum()) for a, b in pairs)
        size = sum(float(a.double().square().sum()) for a, _ in pairs)
    return (away / size) ** 0.5 if size else 0.0
