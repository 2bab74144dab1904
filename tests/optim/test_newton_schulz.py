"""Singular values near 1, in either form, for any shape, at any scale."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.optim._muon import _zeropower_via_newtonschulz

from wyrmling.optim import newton_schulz
from wyrmling.optim.newton_schulz import COEFFICIENTS, orthogonalize

SHAPES = st.tuples(st.integers(1, 3), st.integers(1, 9), st.integers(1, 40))
DTYPES = [torch.float32, torch.bfloat16, torch.float64]


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def by_the_formula(matrix: Tensor, steps: int) -> Tensor:
    """One matrix, as it is written down."""
    a, b, c = COEFFICIENTS
    x = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    x = x / x.norm()
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x if matrix.shape[0] <= matrix.shape[1] else x.T


@given(shape=SHAPES, tall=st.booleans(), steps=st.integers(1, 6), seed=st.integers(0, 99))
def test_a_stack_is_each_matrix_by_the_formula(
    shape: tuple[int, int, int], tall: bool, steps: int, seed: int
) -> None:
    """Long matrices take the form on the square, the others the direct one."""
    matrices = drawn(*shape, seed=seed)
    matrices = matrices.mT if tall else matrices
    found = orthogonalize(matrices, steps)
    for matrix, own in zip(matrices, found, strict=True):
        torch.testing.assert_close(own, by_the_formula(matrix, steps), rtol=1e-10, atol=1e-10)


@given(rows=st.integers(1, 9), columns=st.integers(1, 40), seed=st.integers(0, 99))
def test_both_forms_agree(rows: int, columns: int, seed: int) -> None:
    for dtype, tolerance in ((torch.float64, 1e-10), (torch.float32, 2e-4)):
        unit = newton_schulz._unit(drawn(2, rows, columns, seed=seed, dtype=dtype))
        direct, square = newton_schulz._direct(unit, 5), newton_schulz._on_the_square(unit, 5)
        torch.testing.assert_close(direct, square, rtol=0, atol=tolerance)


def test_the_form_follows_shape_and_dtype() -> None:
    def pays(rows: int, columns: int, dtype: torch.dtype) -> bool:
        return newton_schulz._square_pays(torch.empty(1, rows, columns, dtype=dtype), 5)

    assert pays(8, 64, torch.float32)
    assert not pays(8, 8, torch.float32)
    assert not pays(8, 64, torch.bfloat16)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(32, 32), (24, 96), (96, 24)])
def test_singular_values_are_near_one_and_directions_stay(shape: tuple[int, int], dtype: torch.dtype) -> None:
    gradient = drawn(*shape, seed=5)
    found = orthogonalize(gradient.to(torch.float32) if dtype != torch.float64 else gradient, dtype=dtype)
    assert found.dtype == dtype
    values = torch.linalg.svdvals(found.double())
    assert float(values[:-2].min()) > 0.3
    assert float(values.max()) < 1.3
    u, _, v = torch.linalg.svd(gradient, full_matrices=False)
    cosine = torch.nn.functional.cosine_similarity(found.double().flatten(), (u @ v).flatten(), dim=0)
    assert float(cosine) > 0.95


@given(shape=SHAPES, factor=st.floats(1e-3, 1e6), seed=st.integers(0, 99))
def test_scale_changes_nothing_and_rotations_pass_through(
    shape: tuple[int, int, int], factor: float, seed: int
) -> None:
    matrices = drawn(*shape, seed=seed)
    found = orthogonalize(matrices)
    torch.testing.assert_close(orthogonalize(matrices * factor), found, rtol=1e-9, atol=1e-9)
    turn = torch.linalg.qr(drawn(shape[1], shape[1], seed=seed + 1))[0]
    torch.testing.assert_close(orthogonalize(turn @ matrices), turn @ found, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (7, 1), (5, 6), (3, 40), (40, 3)])
@pytest.mark.parametrize("size", [0.0, 1e-40, 1e-30, 1e-7, 1.0, 1e30, 3e38])
def test_every_finite_gradient_gives_a_finite_update(
    shape: tuple[int, int], size: float, dtype: torch.dtype
) -> None:
    kind = torch.float64 if dtype == torch.float64 else torch.float32
    gradient = size * drawn(*shape, dtype=kind).clamp(-1, 1)
    found = orthogonalize(gradient, dtype=dtype)
    assert bool(torch.isfinite(found).all())
    assert float(found.double().norm()) < 1.3 * min(shape) ** 0.5
    if size >= 1.0:
        assert float(found.double().norm()) > 0.3
    if size == 0:
        assert not found.any()
    single = torch.zeros(shape, dtype=kind)
    single[0, 0] = size
    assert bool(torch.isfinite(orthogonalize(single, dtype=dtype)).all())


def test_what_pytorch_computes() -> None:
    """Theirs is in bfloat16 and takes one matrix: the same up to its rounding."""
    for seed, shape in enumerate([(16, 16), (8, 40), (40, 8)]):
        gradient = drawn(*shape, seed=seed, dtype=torch.float32)
        theirs = _zeropower_via_newtonschulz(gradient.clone(), COEFFICIENTS, 5, newton_schulz.EPSILON)
        for dtype in (torch.bfloat16, torch.float32):
            ours = orthogonalize(gradient, dtype=dtype)
            assert float((ours.float() - theirs.float()).norm() / theirs.float().norm()) < 0.03


@pytest.mark.parametrize("dtype", DTYPES)
def test_twice_gives_the_same_bits(dtype: torch.dtype) -> None:
    gradient = drawn(3, 24, 64, dtype=torch.float32)
    assert torch.equal(orthogonalize(gradient, dtype=dtype), orthogonalize(gradient.clone(), dtype=dtype))
