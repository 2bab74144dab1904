"""Groups of continuations, drawn from a model, and how likely the model finds them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ...data.order import IGNORED
from ...errors import ConfigError
from ...generation import GenerationSettings
from ...generation.engine import StopRule, generate
from ...model import Model


@dataclass(frozen=True)
class Rollouts:
    """G continuations of each of B prompts.

    Attributes:
        continuations: the ids that were drawn, by prompt and by member of its group.
        tokens: int64 [B * G, T]: prompt and continuation without the last token, then padding.
        targets: int64 [B * G, T]: the continuation, each token where it is predicted; ignored elsewhere.
    """

    continuations: list[list[list[int]]]
    tokens: Tensor
    targets: Tensor

    @property
    def shape(self) -> tuple[int, int]:
        """(B, G)."""
        return len(self.continuations), len(self.continuations[0])


def draw_rollouts(
    model: Model,
    prompts: Sequence[Sequence[int]],
    group_size: int,
    settings: GenerationSettings,
    *,
    eos_id: int | None = None,
    vocab_size: int | None = None,
    stop: StopRule | None = None,
) -> Rollouts:
    """Draw `group_size` continuations of every prompt, all in one batch.

    Args:
        prompts: token ids, none of them empty.
        settings: of the generation; with a seed the draws are repeatable. Another seed is needed for every batch.
        eos_id, vocab_size, stop: as `generation.engine.generate` takes them.

    Raises:
        ConfigError: settings under which continuations do not come from the model's own probabilities.
        DataError: an empty prompt, or ids outside the vocabulary.
    """
    plain = replace(settings, temperature=1.0, top_k=None, top_p=None, window=None)
    if settings != plain:
        raise ConfigError(
            "rollouts are drawn from the model's own probabilities: leave temperature at 1, and top_k, top_p and "
            "window unset"
        )
    rows = [list(prompt) for prompt in prompts for _ in range(group_size)]
    results = generate(model, rows, settings, eos_id=eos_id, vocab_size=vocab_size, stop=stop).finish()
    longest = max(len(result.prompt) + len(result.tokens) for result in results) - 1
    tokens = torch.zeros(len(rows), longest, dtype=torch.int64)
    targets = torch.full((len(rows), longest), IGNORED, dtype=torch.int64)
    for row, result in enumerate(results):
        known, drawn = len(result.prompt), torch.tensor(result.tokens)
        tokens[row, :known] = torch.tensor(result.prompt)
        tokens[row, known : known + len(drawn) - 1] = drawn[:-1]
        targets[row, known - 1 : known - 1 + len(drawn)] = drawn
    drawn_ids = [result.tokens for result in results]
    groups = [drawn_ids[first : first + group_size] for first in range(0, len(rows), group_size)]
    return Rollouts(groups, tokens, targets)


def log_probabilities(model: Model, rollouts: Rollouts) -> Tensor:
    """The log-probability of every continuation after its prompt, [B, G], nats; gradients flow to the model."""
    device = next(model.parameters()).device
    hidden, _ = model(rollouts.tokens.to(device), carry=False)
    losses = model.token_losses(hidden, rollouts.targets.to(device))
    return -losses.sum(dim=1).view(rollouts.shape)
