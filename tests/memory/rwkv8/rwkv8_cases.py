"""Random streams and states for the RWKV-8 tests, and what a pass over them leads to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from memory_cases import draw
from wyrmling.memory.rwkv8 import chunked, naive

Form = Callable[..., tuple[Tensor, Tensor | None, Tensor | None]]


class Case(NamedTuple):
    """All inputs of the recurrence. `rho` and `norm` as a random prefix leaves them, or None."""

    neurons: Tensor  # [B, H, T, N], about half of them zero
    values: Tensor  # [B, T, D]
    log_decay: Tensor  # [H, N]
    rho: Tensor | None  # [B, H, N, D]
    norm: Tensor | None  # [B, H, N]

    def to(self, dtype: torch.dtype) -> Case:
        return Case(*(None if x is None else x.to(dtype) for x in self))


def firing(*shape: int, seed: int = 0) -> Tensor:
    """What a layer's neurons look like: zero or positive."""
    return draw(*shape, seed=seed).relu()


def decays(heads: int, neurons: int, seed: int = 0) -> Tensor:
    """Logs of decays from nearly 0 to nearly 1."""
    return torch.nn.functional.logsigmoid(4 * draw(heads, neurons, seed=seed + 7))


def make_case(
    rows: int = 2,
    heads: int = 2,
    length: int = 7,
    neurons: int = 5,
    width: int = 3,
    *,
    carried: bool = True,
    seed: int = 0,
) -> Case:
    log_decay, rho, norm = decays(heads, neurons, seed), None, None
    if carried:
        before = firing(rows, heads, 6, neurons, seed=seed + 3), draw(rows, 6, width, seed=seed + 4)
        empty = torch.zeros(rows, heads, neurons, width).double(), torch.zeros(rows, heads, neurons).double()
        _, rho, norm = naive.decayed_recurrence(*before, log_decay, *empty)
    neurons_, values = (
        firing(rows, heads, length, neurons, seed=seed + 1),
        draw(rows, length, width, seed=seed + 2),
    )
    return Case(neurons_, values, log_decay, rho, norm)


def loop(neurons: Tensor, values: Tensor, log_decay: Tensor, rho: Tensor | None, norm: Tensor | None):  # type: ignore[no-untyped-def]
    """The truth, which takes no None."""
    rows, heads, _, width = neurons.shape
    if rho is None or norm is None:
        rho = values.new_zeros(rows, heads, width, values.shape[2])
        norm = values.new_zeros(rows, heads, width)
    return naive.decayed_recurrence(neurons, values, log_decay, rho, norm)


def by_chunks(chunk: int) -> Form:
    def form(*inputs: Tensor | None):  # type: ignore[no-untyped-def]
        return chunked.decayed_recurrence(*inputs, chunk=chunk)  # type: ignore[arg-type]

    return form


def outcome(
    form: Form, case: Case, cuts: Sequence[int] = (), low: torch.dtype | None = None
) -> dict[str, Tensor]:
    """Reads, final state, and the gradients of a random functional of them all to every input, by name.

    Args:
        cuts: where one call ends and the next begins.
        low: type that the neurons are rounded to on their way in.
    """
    given = {name: x.clone().requires_grad_() for name, x in case._asdict().items() if x is not None}
    neurons = given["neurons"] if low is None else given["neurons"].to(low)
    state, reads = (given.get("rho"), given.get("norm")), []
    for begin, end in zip([0, *cuts], [*cuts, neurons.shape[2]], strict=True):
        read, *state = form(
            neurons[:, :, begin:end], given["values"][:, begin:end], given["log_decay"], *state
        )
        reads.append(read)
    found = {"reads": torch.cat(reads, dim=2), "state.rho": state[0], "state.norm": state[1]}
    loss = sum((x * draw(*x.shape, seed=90).to(x)).sum() for x in found.values())
    gradients = torch.autograd.grad(loss, list(given.values()))
    found.update({f"gradient.{name}": g for name, g in zip(given, gradients, strict=True)})
    return {name: x.detach() for name, x in found.items()}
