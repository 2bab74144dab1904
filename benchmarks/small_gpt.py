"""A small GPT of PyTorch's own layers, in the well-known setting for tiny Shakespeare on a CPU.

4 layers, 4 heads, width 128, windows of 64 characters, 12 rows, 2000 steps, no dropout, AdamW: 0.8 M parameters that
reach about 1.88 nats per character on the last tenth of the text. It is the yardstick for time: what can a plain
transformer learn in a minute?
"""

from __future__ import annotations

import argparse
import json
import math
import time
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wyrmling.config import load_config
from wyrmling.data.dataset import prepare_dataset
from wyrmling.data.order import IGNORED
from wyrmling.data.store import Split
from wyrmling.data.streams import Documents
from wyrmling.training.evaluation import read_side_by_side
from wyrmling.training.machine import keep_freed_memory
from wyrmling.watch.memory import current_memory


@dataclass(frozen=True)
class Setting:
    """Sizes, length and rates; the defaults are the well-known ones."""

    layers: int = 4
    heads: int = 4
    width: int = 128
    length: int = 64
    rows: int = 12
    steps: int = 2000
    warmup: int = 100
    peak: float = 1e-3
    least: float = 1e-4
    decay: float = 0.1
    betas: tuple[float, float] = (0.9, 0.99)
    clip: float = 1.0

    def rate(self, step: int) -> float:
        """The learning rate of a step, counted from 0: up in a line, down along a cosine."""
        if step < self.warmup:
            return self.peak * (step + 1) / (self.warmup + 1)
        share = (step - self.warmup) / max(self.steps - self.warmup, 1)
        return self.least + (self.peak - self.least) * (1 + math.cos(math.pi * share)) / 2


class Block(nn.Module):
    """Attention and a perceptron, each behind its norm and beside the stream."""

    def __init__(self, setting: Setting) -> None:
        super().__init__()
        self.heads, width = setting.heads, setting.width
        self.first, self.second = nn.LayerNorm(width, bias=False), nn.LayerNorm(width, bias=False)
        self.attend = nn.Linear(width, 3 * width, bias=False)
        self.join = nn.Linear(width, width, bias=False)
        self.widen = nn.Linear(width, 4 * width, bias=False)
        self.narrow = nn.Linear(4 * width, width, bias=False)

    def forward(self, h: Tensor) -> Tensor:
        """h [B, T, D], the same shape out."""
        rows, length, width = h.shape
        query, key, value = (
            part.view(rows, length, self.heads, -1).transpose(1, 2)
            for part in self.attend(self.first(h)).split(width, dim=-1)
        )
        read = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        h = h + self.join(read.transpose(1, 2).reshape(rows, length, width))
        return h + self.narrow(F.gelu(self.widen(self.second(h))))


class SmallGPT(nn.Module):
    """Embedding of tokens and places, blocks, a head tied to the embedding."""

    def __init__(self, setting: Setting, vocabulary: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, setting.width)
        self.places = nn.Embedding(setting.length, setting.width)
        self.blocks = nn.ModuleList(Block(setting) for _ in range(setting.layers))
        self.norm = nn.LayerNorm(setting.width, bias=False)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                narrower = (
                    math.sqrt(2 * setting.layers) if name.endswith(("join.weight", "narrow.weight")) else 1
                )
                nn.init.normal_(parameter, std=0.02 / narrower)

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores [B, T, V] of tokens int64 [B, T]."""
        h = self.tokens(tokens) + self.places.weight[: tokens.shape[1]]
        for block in self.blocks:
            h = block(h)
        return self.norm(h) @ self.tokens.weight.t()

    def parameter_count(self) -> int:
        """Weights without those of places, as it is usually counted."""
        return sum(p.numel() for p in self.parameters()) - self.places.weight.numel()


def build_optimizer(model: SmallGPT, setting: Setting) -> torch.optim.AdamW:
    """Matrices and embeddings decay, gains do not."""
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": setting.decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=setting.peak, betas=setting.betas, fused=True)


def loss_sum(model: SmallGPT, tokens: Tensor, targets: Tensor, low: bool) -> Tensor:
    """Nats summed over targets [B, T] that are not ignored; `low` is bfloat16 autocast."""
    with torch.autocast("cpu", torch.bfloat16, enabled=low):
        scores = model(tokens)
    return F.cross_entropy(
        scores.float().flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="sum"
    )


def train(text: Tensor, vocabulary: int, setting: Setting, seed: int, *, low: bool = False) -> SmallGPT:
    """A model trained on windows drawn from anywhere in `text`, int64 [characters]."""
    torch.manual_seed(seed)
    model = SmallGPT(setting, vocabulary)
    optimizer = build_optimizer(model, setting)
    for step in range(setting.steps):
        starts = torch.randint(len(text) - setting.length, (setting.rows,)).tolist()
        windows = torch.stack([text[start : start + setting.length + 1] for start in starts])
        loss = loss_sum(model, windows[:, :-1], windows[:, 1:], low) / windows[:, 1:].numel()
        for group in optimizer.param_groups:
            group["lr"] = setting.rate(step)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), setting.clip)
        optimizer.step()
    return model


@torch.no_grad()
def evaluate(model: SmallGPT, split: Split, length: int, rows: int = 64) -> tuple[float, int]:
    """Nats per character over every target of a split once, in windows that do not overlap, and their number."""
    windows = Documents.cut(len(split), length)
    total = 0.0
    for reading in read_side_by_side(split, windows, length, rows):
        total += float(loss_sum(model, reading.tokens, reading.targets, False))
    count = int(windows.targets.sum())
    return total / count, count


def run(
    recipe: str, overrides: list[str], seed: int, low: bool, threads: int, steps: int | None
) -> dict[str, float]:
    """In a child process: train on a recipe's characters and evaluate on its validation part."""
    torch.set_num_threads(threads)
    keep_freed_memory()
    config = load_config(recipe, [*overrides, "dataset.tokenizer.type=char"])
    dataset = prepare_dataset(config)
    assert dataset.validation is not None
    setting = Setting() if steps is None else Setting(steps=steps)
    text = torch.from_numpy(dataset.train.tokens.astype("int64"))
    begun = time.perf_counter()
    model = train(text, dataset.tokenizer.vocab_size, setting, seed, low=low)
    seconds = time.perf_counter() - begun
    memory = current_memory()  # nothing that was freed has gone back
    loss, targets = evaluate(model, dataset.validation, setting.length)
    return {
        "seconds": seconds,
        "memory_bytes": memory,
        "loss": loss,
        "targets": targets,
        "parameters": model.parameter_count(),
        "tokens": setting.steps * setting.rows * setting.length,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--measure", required=True)
    print(json.dumps(run(**json.loads(parser.parse_args().measure))))
