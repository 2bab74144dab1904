"""Muon for matrices, each as it was declared; AdamW, to the bit, for everything else."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from wyrmling.checkpoint.contents import load_optimizer_tensors, optimizer_tensors
from wyrmling.config.schema.model import Model as ModelConfig
from wyrmling.config.schema.optimizer import Muon as MuonTable
from wyrmling.config.schema.optimizer import Optimizer
from wyrmling.errors import CheckpointError
from wyrmling.model import Model
from wyrmling.numerics.roles import ROLES, declare, heads_of, parts_of
from wyrmling.optim import Muon, MuonSettings, build_optimizer, orthogonalize, set_rates

ADAMW = {"lr": 0.1, "betas": (0.9, 0.95), "eps": 1e-8, "fused": True}


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def matrix(value: Tensor, **shape: object) -> nn.Parameter:
    return declare(nn.Parameter(value.clone()), "matrix", **shape)  # type: ignore[arg-type]


def muon(parameters: list[nn.Parameter], decay: float = 0.0, **settings: object) -> Muon:
    group = {"params": parameters, "weight_decay": decay, "muon": True}
    return Muon([group], MuonSettings(**settings), **ADAMW)  # type: ignore[arg-type]


def steps(
    optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter], count: int, seed: int = 7
) -> None:
    """Some updates with gradients drawn from a seed, a parameter's own for its place in the list."""
    for step in range(count):
        for place, parameter in enumerate(parameters):
            parameter.grad = drawn(*parameter.shape, seed=seed + 100 * step + place, dtype=parameter.dtype)
        optimizer.step()


class EveryRole(nn.Module):
    """One parameter of each role, all of them matrices: the shape must not decide."""

    def __init__(self) -> None:
        super().__init__()
        for role in reversed(ROLES):
            self.register_parameter(role, declare(nn.Parameter(drawn(3, 5)), role))


def built(model: nn.Module, **keys: object) -> tuple[torch.optim.Optimizer, dict[str, str]]:
    optimizer, choices = build_optimizer(model, Optimizer(name="muon", **keys))  # type: ignore[arg-type]
    return optimizer, {choice.name: choice.value for choice in choices}


@pytest.mark.parametrize("adjustment", ["original", "match_rms_adamw"])
@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("shape", [(12, 12), (6, 24), (24, 6)])
def test_five_updates_are_those_of_pytorch(shape: tuple[int, int], nesterov: bool, adjustment: str) -> None:
    """Up to the rounding of bfloat16, in which theirs is computed; theirs counts rows as outputs."""
    start = drawn(*shape)
    theirs, ours = nn.Parameter(start.clone()), matrix(start.T if adjustment == "original" else start)
    reference = torch.optim.Muon(
        [theirs], lr=0.1, weight_decay=0.2, momentum=0.9, nesterov=nesterov, adjust_lr_fn=adjustment
    )
    optimizer = muon(
        [ours],
        decay=0.2,
        momentum=0.9,
        nesterov=nesterov,
        adjustment=adjustment,
        dtype=torch.bfloat16,
    )
    for step in range(5):
        theirs.grad = drawn(*shape, seed=step)
        ours.grad = theirs.grad.T.clone() if adjustment == "original" else theirs.grad.clone()
        reference.step()
        optimizer.step()
    moved = ours.detach().T if adjustment == "original" else ours.detach()
    assert float((moved - theirs.detach()).norm() / (theirs.detach() - start).norm()) < 0.02


def test_matrices_are_found_by_their_role_and_the_rest_moves_as_under_adamw() -> None:
    model, twin = EveryRole(), EveryRole()
    optimizer, choices = built(model, learning_rate=0.1)
    plain, _ = build_optimizer(twin, Optimizer(learning_rate=0.1))
    for each, own in ((optimizer, model), (plain, twin)):
        steps(each, list(own.parameters()), 3)
    for name, parameter in model.named_parameters():
        slots = set(optimizer.state[parameter])
        assert slots == ({"momentum_buffer"} if name == "matrix" else {"step", "exp_avg", "exp_avg_sq"})
        assert torch.equal(parameter, twin.get_parameter(name)) == (name != "matrix")
    assert choices["optimizer"] == "muon, Newton-Schulz in float32"
    assert choices["muon"].startswith("matrix: 1 matrices")
    assert all(role in choices["adamw"] for role in ROLES if role != "matrix")
    assert len(optimizer.param_groups) == len(ROLES)  # none is lost between the two halves


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("shape", "declared", "apart"),
    [
        ((3, 4, 10), {}, lambda w: list(w)),
        ((30, 4), {"heads": 3}, lambda w: list(w.chunk(3, dim=0))),
        ((4, 11), {"parts": (5, 5, 1)}, lambda w: list(w.split((5, 5, 1), dim=1))),
        (
            (8, 6),
            {"heads": 2, "parts": (2, 4)},
            lambda w: [h for p in w.split((2, 4), 1) for h in p.chunk(2, 0)],
        ),
        ((2, 3, 4, 5), {}, lambda w: list(w.flatten(0, 1))),
    ],
)
def test_what_a_parameter_holds_moves_as_if_each_were_a_parameter(
    shape: tuple[int, ...],
    declared: dict[str, object],
    apart: Callable[[Tensor], list[Tensor]],
    dtype: torch.dtype,
) -> None:
    whole = matrix(drawn(*shape, dtype=dtype), **declared)
    pieces = [matrix(piece) for piece in apart(whole.detach())]
    together, alone = muon([whole], decay=0.3), muon(pieces, decay=0.3)
    for step in range(3):
        whole.grad = drawn(*shape, seed=step, dtype=dtype)
        for piece, gradient in zip(pieces, apart(whole.grad), strict=True):
            piece.grad = gradient.clone()
        together.step()
        alone.step()
    tolerance = 1e-10 if dtype == torch.float64 else 1e-5
    for piece, moved in zip(pieces, apart(whole.detach()), strict=True):
        torch.testing.assert_close(moved, piece.detach(), rtol=0, atol=tolerance)


def test_heads_together_are_one_matrix_with_their_outputs_side_by_side() -> None:
    stack = matrix(drawn(3, 4, 10, dtype=torch.float64))
    rows = matrix(drawn(30, 4, dtype=torch.float64), heads=3)
    wide, tall = (
        matrix(stack.detach().transpose(0, 1).reshape(4, 30)),
        matrix(rows.detach()),
    )
    together, alone = muon([stack, rows], split_heads=False), muon([wide, tall])
    stack.grad, rows.grad = drawn(3, 4, 10, dtype=torch.float64), drawn(30, 4, seed=1, dtype=torch.float64)
    wide.grad, tall.grad = stack.grad.transpose(0, 1).reshape(4, 30), rows.grad.clone()
    together.step()
    alone.step()
    moved = stack.detach().transpose(0, 1).reshape(4, 30)
    torch.testing.assert_close(moved, wide.detach(), rtol=0, atol=1e-10)
    torch.testing.assert_close(rows.detach(), tall.detach(), rtol=0, atol=1e-10)


def test_weights_that_are_not_contiguous_move_in_place() -> None:
    straight = matrix(drawn(6, 10, dtype=torch.float64), heads=2, parts=(4, 6))
    turned = declare(nn.Parameter(straight.detach().T.contiguous().T), "matrix", heads=2, parts=(4, 6))
    assert not turned.is_contiguous()
    steps(muon([straight]), [straight], 2)
    steps(muon([turned]), [turned], 2)
    torch.testing.assert_close(turned.detach(), straight.detach(), rtol=0, atol=1e-12)


@given(inputs=st.integers(8, 40), outputs=st.integers(8, 40), seed=st.integers(0, 99))
def test_an_update_has_the_size_of_one_of_adamw(inputs: int, outputs: int, seed: int) -> None:
    weight = matrix(torch.zeros(inputs, outputs))
    steps(muon([weight]), [weight], 1, seed=seed)
    assert 0.13 < float(weight.detach().square().mean().sqrt()) / 0.1 < 0.25


@pytest.mark.parametrize("shape", [(4, 6), (1, 9), (9, 1), (2, 5, 3)])
def test_without_a_gradient_to_speak_of_only_the_weight_decay_acts(shape: tuple[int, ...]) -> None:
    weight = matrix(drawn(*shape))
    before = weight.detach().clone()
    optimizer = muon([weight], decay=0.5)
    weight.grad = torch.zeros(shape)
    optimizer.step()
    torch.testing.assert_close(weight.detach(), before * (1 - 0.1 * 0.5), rtol=3e-7, atol=0)
    weight.grad = torch.full(shape, 1e-30)
    optimizer.step()
    torch.testing.assert_close(weight.detach(), before * (1 - 0.1 * 0.5) ** 2, rtol=1e-6, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(4, 6), (1, 9), (9, 1), (2, 5, 3), (3, 50)])
def test_huge_gradients_give_updates_of_the_usual_size(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    weight = matrix(drawn(*shape))
    before = weight.detach().clone()
    optimizer = muon([weight], dtype=dtype)
    for size in (1e30, 1e-30, -1e30, 1.0):
        weight.grad = size * drawn(*shape, seed=2)
        optimizer.step()
        assert bool(torch.isfinite(weight).all())
    assert float((weight.detach() - before).abs().max()) < 4 * 0.1 * 1.3 * 0.2 * math.sqrt(max(shape[-2:]))


def test_parameters_without_a_gradient_neither_decay_nor_get_state() -> None:
    first, second = matrix(drawn(3, 4)), matrix(drawn(3, 4))
    optimizer = muon([first, second], decay=0.5)
    second.grad = drawn(3, 4)
    optimizer.step()
    assert torch.equal(first.detach(), drawn(3, 4))
    assert list(optimizer.state) == [second]


@pytest.mark.parametrize("through", ["checkpoint", "state_dict"])
def test_a_resumed_optimizer_goes_on_bit_for_bit(through: str) -> None:
    model, resumed = EveryRole(), EveryRole()
    optimizer, _ = built(model)
    steps(optimizer, list(model.parameters()), 3)
    resumed.load_state_dict(model.state_dict())
    fresh, _ = built(resumed)
    if through == "checkpoint":
        load_optimizer_tensors(fresh, resumed, optimizer_tensors(optimizer, model))
    else:
        fresh.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for each, own in ((optimizer, model), (fresh, resumed)):
        steps(each, list(own.parameters()), 3, seed=1000)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, resumed.get_parameter(name)), name


def test_state_of_one_optimizer_is_refused_by_the_other() -> None:
    model = EveryRole()
    optimizer, _ = built(model)
    steps(optimizer, list(model.parameters()), 1)
    plain, _ = build_optimizer(model, Optimizer())
    with pytest.raises(CheckpointError, match="was trained with Muon and this is AdamW"):
        load_optimizer_tensors(plain, model, optimizer_tensors(optimizer, model))


def test_rates_of_a_step_reach_both_halves_and_decay_only_what_decays() -> None:
    model = EveryRole()
    optimizer, _ = built(model, weight_decay=0.5, muon=MuonTable(lr_scale=4.0))
    set_rates(optimizer, 0.01)
    assert {group["weight_decay"] for group in optimizer.param_groups} == {0.0, 0.5}
    set_rates(optimizer, 0.01, 0.25)
    for group in optimizer.param_groups:
        assert group["lr"] == (0.04 if group["role"] == "matrix" else 0.01)
        assert group["weight_decay"] == (
            0.25 if group["role"] in ("matrix", "embedding", "head", "conv") else 0.0
        )


def test_the_products_follow_the_model_or_the_configuration() -> None:
    def dtype(products: torch.dtype, asked: str = "auto") -> torch.dtype:
        table = Optimizer.model_validate({"name": "muon", "muon": {"dtype": asked}})
        optimizer, _ = build_optimizer(EveryRole(), table, products=products)
        assert isinstance(optimizer, Muon)
        return optimizer.settings.dtype

    assert dtype(torch.bfloat16) == torch.bfloat16
    assert dtype(torch.float32) == dtype(torch.float64) == torch.float32
    assert dtype(torch.bfloat16, "float32") == torch.float32
    assert dtype(torch.float32, "bfloat16") == torch.bfloat16


@pytest.mark.parametrize("tied", [False, True])
def test_a_model_and_its_copy_move_each_head_of_encoders_and_decoder(tied: bool) -> None:
    table = {"n_layer": 1, "n_embd": 8, "n_head": 2, "mlp_internal_dim_multiplier": 4, "tie_embeddings": tied}
    model = Model(ModelConfig.model_validate(table), 7)
    for own in (model, copy.deepcopy(model)):
        optimizer, choices = built(own, weight_decay=0.0, learning_rate=0.1)
        assert choices["muon"].startswith("decoder, encoder, encoder_v: 6 matrices, each head apart")
        assert heads_of(own.decoder) == 2
        before, gradient = own.decoder.detach().clone(), drawn(*own.decoder.shape)
        own.decoder.grad = gradient.clone()
        optimizer.step()
        first = 0.1 * 0.2 * math.sqrt(16) * orthogonalize(gradient[:16])
        torch.testing.assert_close(before[:16] - own.decoder.detach()[:16], first, rtol=1e-4, atol=1e-5)


def test_parts_and_heads_that_do_not_fit_are_refused() -> None:
    weight = nn.Parameter(torch.ones(6, 4))
    for wrong, message in (
        ({"parts": (1, 2)}, "do not make up the last axis"),
        ({"parts": (4, 0)}, "do not make up the last axis"),
        ({"heads": 4}, "4 heads do not lie one below the other"),
        ({"heads": 0}, "0 heads"),
    ):
        with pytest.raises(ValueError, match=message):
            declare(weight, "matrix", **wrong)  # type: ignore[arg-type]
    assert not hasattr(weight, "role")
    declared = declare(weight, "matrix", parts=[1, 3], heads=2)
    assert (parts_of(declared), heads_of(declared)) == ((1, 3), 2)
    assert (parts_of(nn.Parameter(torch.ones(2))), heads_of(nn.Parameter(torch.ones(2)))) == ((), 1)


def test_a_matrix_of_one_axis_is_refused() -> None:
    model = nn.Module()
    model.odd = declare(nn.Parameter(torch.ones(3)), "matrix")
    with pytest.raises(ValueError, match="holds no matrix"):
        built(model)


def test_an_update_takes_a_closure_and_is_no_part_of_a_graph() -> None:
    weight = matrix(torch.ones(2, 3))
    optimizer = muon([weight])

    def closure() -> float:
        loss = weight.square().sum()
        loss.backward()
        return float(loss.detach())

    assert optimizer.step(closure) == 6.0
    assert weight.is_leaf
    assert float(weight.detach().max()) < 1.0
