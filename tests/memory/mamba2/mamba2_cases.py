"""Small Mamba-2 memories, and everything that a pass through one leads to."""

from __future__ import annotations

import torch
from torch import Tensor

from wyrmling.memory import MemoryState
from wyrmling.memory.mamba2.module import Mamba2

TOLERANCE = 1e-10


def build(
    *,
    width: int = 6,
    headdim: int = 3,
    d_state: int = 4,
    executor: str = "auto",
    seed: int = 3,
    **options: object,
) -> Mamba2:
    """A float64 memory in which every part matters: no weight keeps the value that makes it invisible."""
    memory = Mamba2(width, headdim=headdim, d_state=d_state, executor=executor, seed=seed, **options).double()
    rng = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in memory.named_parameters():
            if name in ("conv_bias", "dt_bias", "a_log", "d_skip", "norm_weight"):
                parameter += torch.randn(parameter.shape, generator=rng, dtype=torch.float64)
    return memory


def read(
    memory: Mamba2, stream: Tensor, state: MemoryState | None = None, **options: object
) -> tuple[Tensor, MemoryState | None]:
    """A call with neurons that say nothing."""
    rows, length, _ = stream.shape
    start = torch.zeros(rows, dtype=torch.int64)
    return memory(stream.new_zeros(rows, 2, length, 5), stream, state, position=start, **options)


def draw(rows: int, length: int, width: int = 6, seed: int = 0) -> Tensor:
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(rows, length, width, generator=rng, dtype=torch.float64)


@torch.no_grad()
def prefix_state(memory: Mamba2, rows: int, seed: int = 1, length: int = 7) -> MemoryState:
    """The state that a random prefix leaves, by the loop."""
    executor, memory.executor = memory.executor, "naive"
    stream = draw(rows, length, memory.width, 1000 + seed).to(memory.in_proj.dtype)
    state = read(memory, stream)[1]
    memory.executor = executor
    return state


def outcome(
    memory: Mamba2, stream: Tensor, state: MemoryState | None = None, cuts: list[int] | None = None
) -> dict[str, Tensor]:
    """Read, final state, and the gradient of everything; the stream taken in pieces that end at `cuts`."""
    cuts = cuts or []
    stream = stream.clone().requires_grad_()
    first = None if state is None else {n: t.clone().requires_grad_() for n, t in state.items()}
    current, reads = first, []
    for begin, end in zip([0, *cuts], [*cuts, stream.shape[1]], strict=True):
        found, current = read(memory, stream[:, begin:end], current)
        reads.append(found)
    results = {"read": torch.cat(reads, dim=2), **current}
    rng = torch.Generator().manual_seed(99)
    loss = torch.zeros((), dtype=stream.dtype)
    for result in results.values():
        along = torch.randn(result.shape, generator=rng, dtype=torch.float64)
        loss = loss + (result * along.to(result.dtype)).sum()
    leaves = {"stream": stream, **dict(memory.named_parameters())}
    if first is not None:
        leaves.update({f"initial {name}": tensor for name, tensor in first.items()})
    gradients = torch.autograd.grad(loss, list(leaves.values()))
    named = {f"gradient of {name}": g for name, g in zip(leaves, gradients, strict=True)}
    return {**{name: t.detach() for name, t in results.items()}, **named}


def naively(memory: Mamba2, stream: Tensor, state: MemoryState | None = None) -> dict[str, Tensor]:
    """The truth: the loop over tokens in one pass."""
    executor, memory.executor = memory.executor, "naive"
    found = outcome(memory, stream, state)
    memory.executor = executor
    return found


@torch.no_grad()
def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float = TOLERANCE) -> None:
    """Equal names, and values that agree relative to the largest of each tensor."""
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].shape == tensor.shape, name
        if tensor.numel():
            scale = max(1.0, float(tensor.abs().max()))
            worst = float((found[name] - tensor).abs().max()) / scale
            assert worst < tolerance, f"{name} differs by {worst:.1e}"
