"""BDH as a textbook would write it: the published equations, nothing clever.

Full T x T scores per head, the phases of every position computed again in every layer, all activations kept for the
backward pass, the whole prefix run again for every generated token. It is the baseline that speed is measured
against, and the truth that imported weights are compared with. It shares no code with the package.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class PlainBDH(nn.Module):
    """Parameters as in the published code: embed, encoder, encoder_v [H, D, N], decoder [H N, D], lm_head [D, V]."""

    frequencies: Tensor

    def __init__(
        self,
        *,
        n_layer: int = 6,
        n_embd: int = 256,
        n_head: int = 4,
        multiplier: int = 128,
        vocab_size: int = 256,
        dropout: float = 0.1,
        theta: float = 2.0**16,
    ) -> None:
        super().__init__()
        self.n_layer, self.n_head, self.width = n_layer, n_head, n_embd
        neurons = multiplier * n_embd // n_head
        self.embed = nn.Embedding(vocab_size, n_embd)
        self.encoder = nn.Parameter(torch.empty(n_head, n_embd, neurons))
        self.encoder_v = nn.Parameter(torch.empty(n_head, n_embd, neurons))
        self.decoder = nn.Parameter(torch.empty(n_head * neurons, n_embd))
        self.lm_head = nn.Parameter(torch.empty(n_embd, vocab_size))
        self.dropout = nn.Dropout(dropout)
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.02)
        index = torch.arange(neurons, dtype=torch.float32)
        exponent = torch.floor(index / 2) * 2 / neurons
        self.register_buffer("frequencies", 1.0 / (theta**exponent) / (2 * math.pi))

    def rotate(self, x: Tensor) -> Tensor:
        """x [B, H, T, N]: pairs of neurons turned by the phase of their position."""
        position = torch.arange(x.shape[2], device=x.device, dtype=self.frequencies.dtype)[:, None]
        angle = (position * self.frequencies) % 1 * (2 * math.pi)
        turned = torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)
        return x * angle.cos().to(x.dtype) + turned * angle.sin().to(x.dtype)

    def norm(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, (self.width,))

    def hidden(self, tokens: Tensor) -> Tensor:
        """tokens [B, T] -> [B, T, D]."""
        rows, length = tokens.shape
        h = self.norm(self.embed(tokens)).unsqueeze(1)  # [B, 1, T, D]
        for _ in range(self.n_layer):
            x = F.relu(h @ self.encoder)  # [B, H, T, N]
            q = self.rotate(x)
            scores = (q @ q.mT).tril(-1)
            a = self.norm(scores @ h)
            y = F.relu(a @ self.encoder_v)
            gated = self.dropout(x * y)
            delta = gated.transpose(1, 2).reshape(rows, 1, length, -1) @ self.decoder
            h = self.norm(h + self.norm(delta))
        return h.squeeze(1)

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Logits [B, T, V], and the mean token loss where targets are given."""
        logits = self.hidden(tokens) @ self.lm_head
        loss = None if targets is None else F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        return logits, loss

    @torch.no_grad()
    def generate(self, tokens: Tensor, count: int) -> Tensor:
        """Greedy: the whole prefix again for every token."""
        for _ in range(count):
            logits, _ = self(tokens)
            tokens = torch.cat([tokens, logits[:, -1].argmax(-1, keepdim=True)], dim=1)
        return tokens


def as_ours(plain: PlainBDH) -> dict[str, Tensor]:
    """The weights under this package's names (frequencies: one per pair, float64)."""
    return {
        "embedding.weight": plain.embed.weight.detach(),
        "encoder": plain.encoder.detach(),
        "encoder_v": plain.encoder_v.detach(),
        "decoder": plain.decoder.detach(),
        "lm_head": plain.lm_head.detach(),
        "memory.frequencies": plain.frequencies[::2].double(),
    }
