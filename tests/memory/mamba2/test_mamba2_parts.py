"""The parts of Mamba-2 between its projections: the short convolution, the gated norm."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from wyrmling.memory.mamba2.convolution import causal_convolution
from wyrmling.memory.mamba2.gate import gated_norm


def draw(*shape: int, seed: int = 0) -> Tensor:
    rng = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(*shape, dtype=torch.float64, generator=rng).requires_grad_()


@settings(max_examples=40)
@given(
    rows=st.integers(1, 3),
    length=st.integers(1, 9),
    channels=st.integers(1, 4),
    taps=st.integers(1, 5),
    bias=st.booleans(),
)
def test_the_convolution_is_that_of_torch_after_its_window(
    rows: int, length: int, channels: int, taps: int, bias: bool
) -> None:
    """Values, next window, and gradients, to the window and through it; also where T is shorter than the window."""
    inputs, window = draw(rows, length, channels), draw(rows, channels, taps - 1, seed=1)
    weight, shift = draw(channels, taps, seed=2), draw(channels, seed=3) if bias else None
    leaves = [inputs, weight, *([shift] if bias else []), *([window] if taps > 1 else [])]
    along = draw(rows, length, channels, seed=4).detach(), draw(rows, channels, taps - 1, seed=5).detach()

    seen = torch.cat([window, inputs.mT], dim=2)
    expected = functional.silu(functional.conv1d(seen, weight[:, None], shift, groups=channels)).mT
    next_window = seen[:, :, length:]
    results = causal_convolution(inputs, weight, shift, window)
    torch.testing.assert_close(results, (expected, next_window), rtol=1e-12, atol=1e-12)

    def gradients(outputs: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
        loss = sum((output * a).sum() for output, a in zip(outputs, along, strict=True))
        return torch.autograd.grad(loss, leaves)

    torch.testing.assert_close(gradients(results), gradients((expected, next_window)), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("length", "taps"), [(1, 4), (2, 4), (5, 3), (4, 1)])
def test_the_gradient_of_the_convolution_is_right(bias: bool, length: int, taps: int) -> None:
    shift = draw(3) if bias else None

    def convolve(inputs: Tensor, weight: Tensor, window: Tensor, *shift: Tensor) -> tuple[Tensor, Tensor]:
        return causal_convolution(inputs, weight, shift[0] if shift else None, window)

    given = (draw(2, length, 3), draw(3, taps), draw(2, 3, taps - 1), *([shift] if bias else []))
    assert torch.autograd.gradcheck(convolve, given)


@pytest.mark.parametrize("length", [1, 2, 3, 9])
def test_a_window_alone_is_differentiable(length: int) -> None:
    """A loss of the next window alone: the inputs in it, and what is left of the old window."""
    inputs, weight, window = draw(2, length, 3), draw(3, 4), draw(2, 3, 3)
    along = draw(2, 3, 3, seed=7).detach()
    found = torch.autograd.grad(
        (causal_convolution(inputs, weight, None, window)[1] * along).sum(), [inputs, window]
    )
    seen = torch.cat([window, inputs.mT], dim=2)[:, :, length:]
    torch.testing.assert_close(found, torch.autograd.grad((seen * along).sum(), [inputs, window]))


def test_a_window_holds_no_stream_alive() -> None:
    """The window's memory is the window's size, not that of all inputs."""
    inputs = draw(1, 500, 3)
    for piece in (inputs, inputs[:, :1]):
        _, window = causal_convolution(piece, draw(3, 4), None, draw(1, 3, 3))
        assert window.untyped_storage().nbytes() <= 4 * 3 * 8


def _expected_norm(y: Tensor, z: Tensor, weight: Tensor, groups: int, eps: float, norm_first: bool) -> Tensor:
    gate = z * torch.sigmoid(z)
    v = y if norm_first else y * gate
    shares = [s / torch.sqrt(s.square().mean(-1, keepdim=True) + eps) for s in v.chunk(groups, dim=-1)]
    out = torch.cat(shares, dim=-1) * weight
    return out * gate if norm_first else out


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("groups", [1, 2, 3])
@pytest.mark.parametrize("eps", [1e-5, 0.5])
def test_the_gated_norm_by_its_definition(norm_first: bool, groups: int, eps: float) -> None:
    y, z, weight = draw(2, 5, 6), draw(2, 5, 6, seed=1), draw(6)
    expected = _expected_norm(y, z, weight, groups, eps, norm_first)
    found = gated_norm(y, z, weight, groups=groups, eps=eps, norm_first=norm_first)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    along = draw(2, 5, 6, seed=2).detach()
    torch.testing.assert_close(
        torch.autograd.grad((found * along).sum(), [y, z, weight]),
        torch.autograd.grad((expected * along).sum(), [y, z, weight]),
        rtol=1e-11,
        atol=1e-11,
    )


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("groups", [1, 2])
def test_the_gradient_of_the_gated_norm_is_right(norm_first: bool, groups: int) -> None:
    def norm(*given: Tensor) -> Tensor:
        return gated_norm(*given, groups=groups, eps=1e-3, norm_first=norm_first)

    assert torch.autograd.gradcheck(norm, (draw(2, 3, 4), draw(2, 3, 4, seed=1), draw(4)))


@pytest.mark.parametrize("norm_first", [False, True])
def test_the_gated_norm_of_nothing_is_nothing(norm_first: bool) -> None:
    """Zeros and gates that are shut: finite values and gradients."""
    y, z, weight = torch.zeros(1, 2, 4), torch.full((1, 2, 4), -200.0), torch.ones(4)
    leaves = [t.requires_grad_() for t in (y, z, weight)]
    found = gated_norm(*leaves, groups=2, eps=1e-5, norm_first=norm_first)
    assert float(found.detach().abs().max()) == 0
    assert all(bool(torch.isfinite(g).all()) for g in torch.autograd.grad(found.sum(), leaves))


def test_both_refuse_a_second_derivative() -> None:
    inputs, weight = draw(1, 4, 2), draw(2, 3)
    convolved, _ = causal_convolution(inputs, weight, None, draw(1, 2, 2))
    normed = gated_norm(inputs, inputs, draw(2), groups=1, eps=1e-5, norm_first=False)
    for output in (convolved, normed):
        (first,) = torch.autograd.grad(output.square().sum(), inputs, create_graph=True)
        with pytest.raises(RuntimeError, match="differentiate"):
            first.square().sum().backward()


@pytest.mark.parametrize("norm_first", [False, True])
def test_the_gradient_of_the_gated_norm_is_as_exact_inside_autocast(norm_first: bool) -> None:
    inputs = [draw(2, 5, 64), draw(2, 5, 64, seed=1), draw(64)]
    leaves = [x.detach().float().requires_grad_() for x in inputs]
    loss = gated_norm(*leaves, groups=2, eps=1e-5, norm_first=norm_first).pow(3).sum()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = torch.autograd.grad(loss, leaves, retain_graph=True)
    for one, other in zip(inside, torch.autograd.grad(loss, leaves), strict=True):
        assert torch.equal(one, other)
