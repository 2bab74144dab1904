"""The small passes of the fused layer: eager against the formulas, compiled against eager."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from wyrmling.model.fused.kernels import EAGER, Kernels, kernels
from wyrmling.watch.survey import find_compiler

Shape = tuple[int, int, int, int]


def tensors(shape: Shape, apart: bool, dtype: torch.dtype, seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def draw(*sizes: int) -> Tensor:
        return torch.randn(sizes, generator=generator, dtype=torch.float64).to(dtype)

    _, rows, length, neurons = shape
    found = {name: draw(*shape) for name in ("z", "q", "y", "g", "g_y", "g_q", "gated")}
    found["x"] = draw(*shape).relu()
    found["cos"], found["sin"] = (draw(rows if apart else 1, length, neurons // 2) for _ in range(2))
    found["mask"] = (draw(*shape) > 0).view(torch.uint8)
    return found


def all_passes(
    run: Kernels, given_tensors: dict[str, Tensor], masked: bool, threshold: float
) -> list[Tensor]:
    """Every pass once, on copies; everything that was written."""
    t = {name: tensor.clone() for name, tensor in given_tensors.items()}
    mask = t["mask"] if masked else None
    run.fire_rotate(t["z"], t["cos"], t["sin"], threshold, t["q"])
    turned = torch.empty_like(t["q"])
    run.rotate(t["x"], t["cos"], t["sin"], turned)
    run.gate(t["y"], t["x"], mask, threshold, t["gated"])
    again = torch.empty_like(t["gated"])
    run.gate_backward(t["g"], t["x"], t["y"], mask, again, t["g_y"])
    g_x = t["g"].clone()
    run.rotate_backward(t["g_q"], g_x, t["x"], t["cos"], t["sin"])
    fired = given_tensors["y"].clone()
    run.fire(fired, threshold)
    assert torch.equal(t["x"], given_tensors["x"])
    assert torch.equal(t["g_q"], given_tensors["g_q"])
    return [t["z"], t["q"], turned, t["y"], t["gated"], again, t["g"], t["g_y"], g_x, fired]


def by_formula(t: dict[str, Tensor], masked: bool, threshold: float) -> list[Tensor]:
    mask = t["mask"].double() if masked else torch.ones_like(t["x"])
    half = t["x"].shape[-1] // 2

    def turn(x: Tensor, sign: int = 1) -> Tensor:
        a, b, c, s = x[..., :half], x[..., half:], t["cos"], sign * t["sin"]
        return torch.cat([a * c - b * s, b * c + a * s], dim=-1)

    z, y, x = (t["z"] - threshold).relu(), (t["y"] - threshold).relu(), t["x"]
    gated = x * y * mask
    g, g_y = t["g"] * mask * y, t["g"] * mask * x * (y > 0)
    g_x = (g + turn(t["g_q"], -1)) * (x > 0)
    return [z, turn(z), turn(x), y, gated, gated, g, g_y, g_x, y]


SHAPES = st.tuples(
    st.integers(1, 3), st.integers(1, 3), st.integers(1, 9), st.integers(1, 9).map(lambda n: 2 * n)
)


@settings(max_examples=40)
@given(SHAPES, st.booleans(), st.booleans(), st.sampled_from([0.0, 0.3]), st.sampled_from([1, 40, 1 << 19]))
def test_eager_passes_follow_the_formulas(
    shape: Shape, apart: bool, masked: bool, threshold: float, slab: int
) -> None:
    t = tensors(shape, apart, torch.float64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("wyrmling.model.fused.kernels.SLAB", slab)
        found = all_passes(EAGER, t, masked, threshold)
    for one, other in zip(found, by_formula(t, masked, threshold), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler")
def test_compiled_passes_are_the_eager_ones_to_rounding() -> None:
    compiled = kernels("compiled")
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 4e-2)):
        for shape in ((1, 1, 5, 6), (2, 3, 7, 130), (1, 2, 64, 48)):
            for masked in (False, True):
                t = tensors(shape, shape[1] == 3, dtype)
                pairs = zip(
                    all_passes(compiled, t, masked, 0.25), all_passes(EAGER, t, masked, 0.25), strict=True
                )
                for one, other in pairs:
                    torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)
