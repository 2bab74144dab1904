"""Learning to close brackets from rewards: a complete, small example of GDPO. Half a minute on two cores.

    python examples/gdpo_brackets.py

1.  A tiny model reads lines of brackets, one closing bracket in three of them drawn by lot, until it writes such lines.
2.  Of every prompt, two to four opening brackets, it draws a group of continuations. Two rewards look at a line:
        hard    1 if every bracket is closed by its own kind and the line ends there, else 0
        easy    the share of the line before its first mistake
3.  GDPO moves the model towards what did better than its group. The hard reward is measured before and after, on
    prompts for which nothing was ever rewarded.

docs/gdpo.md has the formulas.
"""

from __future__ import annotations

import argparse
import itertools
import random
import tempfile
from collections.abc import Sequence

import torch

import wyrmling
from wyrmling.config import Config, with_overrides
from wyrmling.generation import GenerationSettings
from wyrmling.optim import build_optimizer, scale_and_clip
from wyrmling.text.tokenizers import build_tokenizer
from wyrmling.training.gdpo import (
    Rollouts,
    advantages,
    draw_rollouts,
    log_probabilities,
    policy_loss,
)

PAIRS = {"(": ")", "[": "]", "{": "}"}
PROMPTS = ["".join(kinds) for length in (2, 3, 4) for kinds in itertools.product(PAIRS, repeat=length)]
LINE_END = ord("\n")
TEXT = [
    "training.block_size=32",
    "training.batch_size=16",
    "training.log_frequency=50",
    "training.sample_tokens=24",
    "model.n_embd=48",
    "model.latent_total=384",
    "optimizer.learning_rate=4e-3",
    "runtime.dtype=float32",
]
REWARDS = [
    "training.gdpo.enabled=true",
    "training.gdpo.group_size=8",
    "training.gdpo.advantage_clip=3.0",
    "optimizer.learning_rate=7e-4",
    "optimizer.weight_decay=0.0",
]


def line(generator: random.Random) -> str:
    """Opening brackets and what closes them, one in three replaced by any closing bracket."""
    start = generator.choice(PROMPTS)
    ends = [PAIRS[bracket] for bracket in reversed(start)]
    drawn = [generator.choice(list(PAIRS.values())) if generator.random() < 1 / 3 else end for end in ends]
    return f"{start}{''.join(drawn)}\n"


def rewards(text: str) -> tuple[float, float]:
    """(hard, easy) of a line."""
    waiting: list[str] = []
    for place, character in enumerate(text):
        if character in PAIRS:
            waiting.append(PAIRS[character])
        elif character == "\n" and not waiting:
            return 1.0, 1.0
        elif not waiting or character != waiting.pop():
            return 0.0, place / len(text)
    return 0.0, 0.5  # no mistake so far, and no end


def draw(
    model: wyrmling.Model, prompts: Sequence[str], group_size: int, seed: int
) -> tuple[Rollouts, list[list[str]], torch.Tensor, torch.Tensor]:
    """Rollouts, the lines that they make, and their hard and easy rewards [prompts, group]."""
    rollouts = draw_rollouts(
        model,
        [list(prompt.encode()) for prompt in prompts],
        group_size,
        GenerationSettings(max_tokens=10, seed=seed),
        vocab_size=256,
        stop=lambda row, token: "end of the line" if token == LINE_END else None,
    )
    lines = [
        [prompt + bytes(ids).decode("latin-1") for ids in group]
        for prompt, group in zip(prompts, rollouts.continuations, strict=True)
    ]
    hard, easy = torch.tensor([[rewards(text) for text in group] for group in lines]).unbind(-1)
    return rollouts, lines, hard, easy


def read_text(steps: int) -> tuple[Config, wyrmling.Model]:
    """A model that writes lines of brackets, mistakes included."""
    generator = random.Random(1)
    config = wyrmling.load_config("tiny", [*TEXT, f"training.max_iters={steps}"])
    tokenizer = build_tokenizer(config.dataset.tokenizer, lambda: iter(()))
    text = "".join(line(generator) for _ in range(4000))
    dataset = wyrmling.Dataset.from_texts(text, tokenizer=tokenizer)
    with tempfile.TemporaryDirectory() as folder:
        place = f'run_layout.base_dir="{folder.replace(chr(92), "/")}"'
        run = wyrmling.train(with_overrides(config, [place]), dataset=dataset)
    print(f"after {run.step} steps of text: {run.loss:.3f} nats per byte")
    return config, run.model


def learn(model: wyrmling.Model, config: Config, prompts: Sequence[str], steps: int) -> None:
    """GDPO: 16 prompts a step, two updates with what was drawn for them."""
    table, generator, running = config.training.gdpo, random.Random(2), None
    optimizer, _ = build_optimizer(model, config.optimizer)
    for step in range(1, steps + 1):
        rollouts, _, hard, easy = draw(model, generator.sample(prompts, 16), table.group_size, seed=step)
        gains, running = advantages(hard, easy, table, running)
        with torch.no_grad():
            old = log_probabilities(model, rollouts)
        for _ in range(2):  # the second update is where the clip range counts
            new = log_probabilities(model, rollouts)
            loss = policy_loss(
                new, old, gains, clip_range=table.policy_clip_range, weight=table.policy_weight
            )
            optimizer.zero_grad()
            loss.backward()
            scale_and_clip(model.parameters(), max_norm=1.0)
            optimizer.step()
        if step % 20 == 0:
            print(f"step {step:3}: {hard.mean():4.0%} of the lines are right")


def main(text_steps: int = 600, steps: int = 100) -> tuple[float, float]:
    """Read text, then learn from rewards; the mean hard reward before and after."""
    prompts = random.Random(3).sample(PROMPTS, len(PROMPTS))
    held_out, rewarded = prompts[:30], prompts[30:]
    config, model = read_text(text_steps)
    found = []
    for moment in ("before", "after"):
        if moment == "after":
            learn(model, with_overrides(config, REWARDS), rewarded, steps)
        _, lines, hard, _ = draw(model, held_out, group_size=8, seed=0)
        found.append(float(hard.mean()))
        print(
            f"{moment}: {found[-1]:.0%} right, such as {'  '.join(group[0].strip() for group in lines[:5])}"
        )
    return found[0], found[1]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--text-steps", type=int, default=600, help="steps on text")
    parser.add_argument("--steps", type=int, default=100, help="steps on rewards")
    arguments = parser.parse_args()
    main(arguments.text_steps, arguments.steps)
