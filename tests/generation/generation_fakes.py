"""A small recurrent model and tokenizers, for tests of generation that need no trained run."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from wyrmling.model.state import State
from wyrmling.numerics.settings import own_settings


@dataclass(frozen=True)
class Machine:
    """What generation asks of the machine of a run."""

    threads: int = 1

    def settings(self) -> AbstractContextManager[None]:
        return own_settings(self.threads)


MACHINE = Machine()


class Recurrent(nn.Module):
    """h <- tanh(h W + E[token]); exact per row in float64. Records what it was asked to read.

    Dropout in training mode, `fail_at` (the number of the call that raises) and a bias on the scores are
    there to be misused by tests.
    """

    def __init__(self, vocab: int = 11, width: int = 8, seed: int = 0, dropout: float = 0.0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.embedding = nn.Parameter(torch.randn(vocab, width, generator=generator, dtype=torch.float64))
        self.mix = nn.Parameter(
            torch.randn(width, width, generator=generator, dtype=torch.float64) / width**0.5
        )
        self.head = nn.Parameter(torch.randn(width, vocab, generator=generator, dtype=torch.float64))
        self.bias = nn.Parameter(torch.zeros(vocab, dtype=torch.float64))
        self.dropout = nn.Dropout(dropout)
        self.reads: list[tuple[int, int]] = []
        self.scores: list[Tensor] = []
        self.fail_at: int | None = None

    def initial_state(self, rows: int) -> State:
        hidden = torch.zeros(rows, self.mix.shape[0], dtype=torch.float64)
        return State(({"h": hidden},), torch.zeros(rows, dtype=torch.int64))

    def forward(self, tokens: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        if self.fail_at == len(self.reads):
            raise RuntimeError("the machine broke")
        self.reads.append((tokens.shape[0], tokens.shape[1]))
        state = state or self.initial_state(len(tokens))
        h, outputs = state.layers[0]["h"], []
        for token in tokens.T:
            h = torch.tanh((h[:, :, None] * self.mix).sum(1) + self.embedding[token])
            outputs.append(self.dropout(h))
        return torch.stack(outputs, 1), State(({"h": h},), state.position + tokens.shape[1])

    def logits(self, hidden: Tensor) -> Tensor:
        scores = (hidden[..., :, None] * self.head).sum(-2) + self.bias
        self.scores.append(scores.detach())
        return scores

    def scores_after(self, tokens: list[int]) -> Tensor:
        """Scores [V] after a fresh read of `tokens`, in evaluation, not recorded."""
        reads, scores, training = self.reads.copy(), self.scores.copy(), self.training
        self.eval()
        with torch.no_grad():
            hidden, _ = self(torch.tensor([tokens]))
            result = self.logits(hidden[:, -1])[0]
        self.train(training)
        self.reads, self.scores = reads, scores
        return result
