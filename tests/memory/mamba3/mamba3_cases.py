"""Random tokens and states for the Mamba-3 tests, and what a pass over them leads to."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from memory_cases import draw
from wyrmling.memory.base import MemoryState
from wyrmling.memory.mamba3 import naive
from wyrmling.memory.mamba3.naive import Tokens

Form = Callable[[Tokens, Tensor, MemoryState | None], tuple[Tensor, MemoryState | None]]


def make_tokens(
    rows: int = 2,
    heads: int = 2,
    length: int = 7,
    *,
    keys: int = 6,
    values: int = 3,
    angles: int = 2,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
) -> Tokens:
    step = draw(rows, heads, length, seed=seed + 1).exp() * 0.4
    tokens = Tokens(
        log_decay=-step * draw(rows, heads, length, seed=seed + 2).exp() * 0.5,
        step=step,
        blend=torch.sigmoid(draw(rows, heads, length, seed=seed + 3)),
        spin=torch.tanh(draw(rows, length, angles, seed=seed + 4)),
        values=draw(rows, heads, length, values, seed=seed + 5),
        keys=draw(rows, heads, length, keys, seed=seed + 6),
        queries=draw(rows, heads, length, keys, seed=seed + 7),
    )
    return Tokens(*(part.to(dtype) for part in tokens))


def empty_state(tokens: Tokens) -> MemoryState:
    rows, heads, _, values = tokens.values.shape
    keys, angles = tokens.keys.shape[-1], tokens.spin.shape[-1]
    zeros = tokens.values.new_zeros
    return {
        "ssm": zeros(rows, heads, values, keys),
        "angle": zeros(rows, heads, angles),
        "key": zeros(rows, heads, keys),
        "value": zeros(rows, heads, values),
    }


def part_of(tokens: Tokens, begin: int, end: int) -> Tokens:
    """Tokens begin .. end-1."""
    return Tokens(*(x[:, begin:end] if name == "spin" else x[:, :, begin:end] for name, x in _named(tokens)))


def _named(tokens: Tokens) -> list[tuple[str, Tensor]]:
    return list(zip(Tokens._fields, tokens, strict=True))


def prefix_state(tokens: Tokens, seed: int = 50) -> MemoryState:
    """A state as a random stream of the same sizes leaves it."""
    rows, heads, _, values = tokens.values.shape
    before = make_tokens(
        rows, heads, 5, keys=tokens.keys.shape[-1], values=values, angles=tokens.spin.shape[-1], seed=seed
    )
    return naive.mamba3(before, draw(heads).to(torch.float64), empty_state(before))[1]


def outcome(
    form: Form, tokens: Tokens, skip: Tensor, state: MemoryState | None, cuts: Sequence[int] = ()
) -> dict[str, Tensor]:
    """Reads, final state, and the gradients of a random functional of both to every input, by name."""
    leaves = Tokens(*(x.clone().requires_grad_() for x in tokens))
    skip = skip.clone().requires_grad_()
    first = (
        None if state is None else {k: x.to(skip.dtype).clone().requires_grad_() for k, x in state.items()}
    )
    current, reads = first, []
    for begin, end in zip([0, *cuts], [*cuts, tokens.step.shape[2]], strict=True):
        read, current = form(part_of(leaves, begin, end), skip, current)
        reads.append(read)
    found = {"reads": torch.cat(reads, dim=2), **{f"state.{k}": x for k, x in (current or {}).items()}}
    loss = sum((x * draw(*x.shape, seed=90).to(x)).sum() for x in found.values())
    inputs = {**dict(_named(leaves)), "skip": skip, **{f"from.{k}": x for k, x in (first or {}).items()}}
    gradients = torch.autograd.grad(loss, list(inputs.values()))
    found.update({f"gradient.{k}": g for k, g in zip(inputs, gradients, strict=True)})
    return {name: x.detach() for name, x in found.items()}
