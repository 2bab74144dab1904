"""What the tests of several memories share."""

from __future__ import annotations

import torch
from torch import Tensor

from wyrmling.memory import Memory
from wyrmling.model.layer import Composed, LayerWeights
from wyrmling.numerics.norms import Norm


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Normal numbers, the same in every dtype."""
    generator = torch.Generator().manual_seed(1000 * seed + sum(shape))
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def assert_close(one: dict[str, Tensor], other: dict[str, Tensor], tolerance: float = 1e-10) -> None:
    """Every entry, relative to the largest number of its tensor (at least 1)."""
    assert one.keys() == other.keys()
    for name, expected in other.items():
        assert one[name].shape == expected.shape, name
        worst = float((one[name] - expected).abs().max()) / max(1.0, float(expected.abs().max()))
        assert worst < tolerance, f"{name} differs by {worst:.1e}"


def assert_tiles_agree(memory: Memory, *, recompute: bool) -> None:
    """The composed layer (D = 8, H = 2, N = 6) on 9 tokens at once, and in tiles that hand the state on."""
    weights = LayerWeights(draw(2, 8, 6, seed=1), draw(2, 8, 6, seed=2), draw(2, 6, 8))
    hidden, position = draw(2, 9, 8).requires_grad_(), torch.zeros(2, dtype=torch.int64)
    layer = Composed(memory, Norm(8), recompute=recompute)

    def run() -> list[Tensor]:
        output, state, _ = layer(weights, hidden, None, position=position, layer=0)
        assert state is not None
        loss = output.square().sum() + sum((x * draw(*x.shape)).sum() for x in state.values())
        return [output, *state.values(), *torch.autograd.grad(loss, [hidden, *memory.parameters()])]

    whole = run()
    assert memory.choice(9).tile == 9
    layer.tile_tokens = 4
    for one, other in zip(run(), whole, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)
