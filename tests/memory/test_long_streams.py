"""How exact each memory is over length: float32 and bfloat16 products against float64, part by part.

A sum of T terms in float32 is off by about sqrt(T) roundings; what grows faster has lost digits to the length of the
stream. bfloat16 rounds single products, which no length makes worse.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from wyrmling.memory import LinearAttention, Mamba2, Mamba3, Memory, Rwkv8
from wyrmling.memory.mamba3.naive import rotated

WIDTH, HEADS, NEURONS = 8, 2, 16
MEMORIES = {
    "rope": lambda: LinearAttention(HEADS, NEURONS, WIDTH),
    "alibi": lambda: LinearAttention(HEADS, NEURONS, WIDTH, positions="alibi", slopes=[1e-5, 1e-3]),
    "pope": lambda: LinearAttention(HEADS, NEURONS, WIDTH, positions="pope"),
    "mamba2": lambda: Mamba2(WIDTH, d_state=8, headdim=2, seed=1),
    "mamba3": lambda: Mamba3(WIDTH, d_state=8, headdim=4, seed=1),
    "rwkv8": lambda: Rwkv8(HEADS, NEURONS, WIDTH),
}
FLOAT32 = 4e-6  # over 512 tokens: up to 2e-6 was measured
BFLOAT16 = 4e-2
FEW = 64  # parts of fewer numbers are sums over the stream that may all but cancel


def outcome(
    name: str, length: int, dtype: torch.dtype, *, calls: int, low: bool = False
) -> dict[str, Tensor]:
    """Reads, final state and gradients of a random functional of the reads; parts of a projection apart.

    Args:
        calls: over which the stream is divided, each handing its state on with its graph.
        low: products in bfloat16.
    """
    rng = torch.Generator().manual_seed(3)
    memory: Memory = MEMORIES[name]().to(dtype)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=rng, dtype=torch.float64).to(dtype)

    neurons = draw(1, HEADS, length, NEURONS).relu().requires_grad_()
    stream = draw(1, length, WIDTH).requires_grad_()
    reads, state, size = [], None, length // calls
    with torch.autocast("cpu", torch.bfloat16, enabled=low):
        for begin in range(0, length, size):
            part = slice(begin, begin + size)
            firing = neurons[:, :, part].bfloat16() if low else neurons[:, :, part]
            read, state = memory(firing, stream[:, part], state, position=torch.tensor([begin]))
            reads.append(read)
    read = torch.cat(reads, dim=2)
    leaves = {"neurons": neurons, "stream": stream, **dict(memory.named_parameters())}
    gradients = torch.autograd.grad(
        (read * draw(*read.shape)).sum(), list(leaves.values()), allow_unused=True
    )
    found = {"read": read.detach(), **{f"state {name}": x.detach() for name, x in state.items()}}
    if "state angle" in found:  # where the frame stands is nobody's business: what lies in it is
        angle = found.pop("state angle")
        found["state key"] = rotated(found["state key"], -angle)
        found["state ssm"] = rotated(found["state ssm"], -angle[:, :, None])
    for name, gradient in zip(leaves, gradients, strict=True):
        if gradient is not None:
            parts = gradient.split(list(memory.parameter_parts.get(name, gradient.shape[-1:])), dim=-1)
            found.update({f"gradient of {name} {index}": part for index, part in enumerate(parts)})
    return found


def check(name: str, length: int, calls: int = 1) -> None:
    exact = outcome(name, length, torch.float64, calls=calls)
    roundings = math.sqrt(length / 512)
    for low, limit in ((False, FLOAT32 * roundings), (True, BFLOAT16)):
        found = outcome(name, length, torch.float32, calls=calls, low=low)
        assert found.keys() == exact.keys()
        for part, expected in exact.items():
            error = float((found[part] - expected).norm() / expected.norm())
            few = 3 if low and expected.numel() < FEW else 1
            assert error < limit * few, f"{part} is off by {error:.1e} after {length} tokens, {low=}"


@pytest.mark.parametrize("name", MEMORIES)
@pytest.mark.parametrize("length", [512, 4096])
def test_digits_do_not_fade_with_length(name: str, length: int) -> None:
    check(name, length)


def test_the_turns_of_mamba3_do_not_add_up_their_rounding() -> None:
    """In one call, and in many with one graph: an increment's gradient is not the sum of all that follows it."""
    exact = outcome("mamba3", 4096, torch.float64, calls=1)
    for calls in (1, 8, 64):
        found = outcome("mamba3", 4096, torch.float32, calls=calls)
        for part in (4, 7):  # steps and spins
            expected = exact[f"gradient of in_proj {part}"]
            error = float((found[f"gradient of in_proj {part}"] - expected).norm() / expected.norm())
            assert error < 2.5e-6


@pytest.mark.slow
@pytest.mark.parametrize("name", MEMORIES)
@pytest.mark.parametrize("length", [32_768, 131_072])
def test_digits_do_not_fade_over_very_long_streams(name: str, length: int) -> None:
    check(name, length)


@pytest.mark.slow
def test_digits_do_not_fade_over_many_calls() -> None:
    check("mamba3", 131_072, calls=256)
