"""Every parameter is in exactly one group, and only the documented roles decay."""

from __future__ import annotations

import copy
import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from wyrmling.config.schema.model import Model as ModelConfig
from wyrmling.config.schema.optimizer import Optimizer
from wyrmling.model import Model
from wyrmling.numerics.roles import ROLES, declare, role_of
from wyrmling.optim import DECAYED_ROLES, build_optimizer, parameter_groups, set_rates, summarize


class EveryRole(nn.Module):
    """One parameter of each role, all of them matrices: the shape must not decide."""

    def __init__(self) -> None:
        super().__init__()
        for role in reversed(ROLES):
            self.register_parameter(role, declare(nn.Parameter(torch.randn(3, 5)), role))


def test_weight_decay_shrinks_only_documented_roles_and_by_exactly_its_factor() -> None:
    model = EveryRole()
    optimizer, _ = build_optimizer(model, Optimizer(learning_rate=0.1, weight_decay=0.5))
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for name, parameter in model.named_parameters():
        if name in ("matrix", "embedding", "head", "conv"):
            torch.testing.assert_close(parameter.detach(), before[name] * (1 - 0.1 * 0.5), rtol=3e-7, atol=0)
        else:
            assert torch.equal(parameter, before[name]), name


@pytest.mark.parametrize("name", ["adamw", "muon", "bitnet_published"])
@pytest.mark.parametrize("decays", [True, False])
def test_convolutions_decay_unless_told_otherwise(name: str, decays: bool) -> None:
    """Through changes of the decay too; nothing else follows the key."""
    optimizer, choices = build_optimizer(EveryRole(), Optimizer(name=name, decay_convolutions=decays))
    for found in (0.1, 0.25):
        set_rates(optimizer, 0.01, found)
        of_role = {group["role"]: group["weight_decay"] for group in optimizer.param_groups}
        assert of_role["conv"] == (found if decays else 0)
        assert of_role["matrix"] == of_role["head"] == found
        assert of_role["bias"] == of_role["gain"] == of_role["decay"] == 0
    value = next(choice.value for choice in choices if choice.name == "weight decay")
    assert ("conv" in value) == decays


def test_marker_attributes_of_other_libraries_do_not_matter() -> None:
    """Only the declared role decides: neither the shape nor a flag on the parameter."""
    model = EveryRole()
    model.matrix._no_weight_decay = True
    decays = {group.role: group.weight_decay for group in parameter_groups(model.named_parameters(), 0.1)}
    assert {role for role, decay in decays.items() if decay > 0} == DECAYED_ROLES


@given(
    roles=st.lists(st.sampled_from(ROLES), min_size=1, max_size=12),
    frozen=st.sets(st.integers(0, 11)),
    tied=st.lists(st.integers(0, 11), max_size=4),
    order=st.randoms(use_true_random=False),
)
def test_every_trained_parameter_is_in_exactly_one_group(
    roles: list, frozen: set[int], tied: list[int], order: random.Random
) -> None:
    named = [(f"p{index}", declare(nn.Parameter(torch.ones(2)), role)) for index, role in enumerate(roles)]
    for index in frozen:
        if index < len(named):
            named[index][1].requires_grad_(False)
    named += [(f"tied{n}", named[index][1]) for n, index in enumerate(tied) if index < len(roles)]
    shuffled = named.copy()
    order.shuffle(shuffled)
    trained = {id(parameter) for _, parameter in named if parameter.requires_grad}
    if not trained:
        with pytest.raises(ValueError, match="frozen"):
            parameter_groups(shuffled, 0.1)
        return
    groups = parameter_groups(shuffled, 0.1)
    members = [parameter for group in groups for parameter in group.parameters]
    assert len(members) == len(trained)
    assert {id(parameter) for parameter in members} == trained
    assert all(parameter.role == group.role for group in groups for parameter in group.parameters)
    assert [group.names for group in groups] == [group.names for group in parameter_groups(named, 0.1)]
    assert [group.role for group in groups] == [role for role in ROLES if role in {g.role for g in groups}]


def test_frozen_parameters_do_not_move() -> None:
    model = EveryRole()
    model.matrix.requires_grad_(False)
    before = model.matrix.clone()
    optimizer, _ = build_optimizer(model, Optimizer(weight_decay=0.5))
    sum(parameter.square().sum() for parameter in model.parameters()).backward()
    optimizer.step()
    assert torch.equal(model.matrix, before)


def test_parameters_without_a_gradient_neither_decay_nor_get_state() -> None:
    model = EveryRole()
    before = model.matrix.detach().clone()
    optimizer, _ = build_optimizer(model, Optimizer(weight_decay=0.5))
    model.head.grad = torch.ones_like(model.head)
    optimizer.step()
    assert torch.equal(model.matrix, before)
    assert list(optimizer.state) == [model.head]


def test_a_parameter_without_a_role_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"layer\.weight \(2, 3\) declares no role"):
        parameter_groups([("layer.weight", nn.Parameter(torch.ones(2, 3)))], 0.1)


def test_a_tied_weight_keeps_its_role() -> None:
    weight = declare(nn.Parameter(torch.ones(2)), "embedding")
    assert declare(weight, "embedding") is weight
    with pytest.raises(ValueError, match="'embedding' cannot also be 'head'"):
        declare(weight, "head")
    with pytest.raises(ValueError, match="unknown role"):
        declare(weight, "other")  # type: ignore[arg-type]


def test_roles_survive_a_change_of_dtype() -> None:
    model = EveryRole().to(torch.float64)
    assert [role_of(parameter) for parameter in model.parameters()] == list(reversed(ROLES))


def test_a_deep_copy_loses_roles_and_says_so() -> None:
    """torch copies a parameter's values, not its attributes; the error must name the parameter."""
    with pytest.raises(ValueError, match="declares no role"):
        parameter_groups(copy.deepcopy(EveryRole()).named_parameters(), 0.1)


def test_fused_and_plain_updates_agree() -> None:
    torch.manual_seed(0)
    model, config = EveryRole(), Optimizer(learning_rate=0.01)
    optimizer, choices = build_optimizer(model, config)
    assert choices[0][:2] == ("optimizer", "adamw, fused")
    twin = [nn.Parameter(parameter.detach().clone()) for parameter in model.parameters()]
    plain = torch.optim.AdamW(
        [
            {"params": [copied], "weight_decay": 0.1 if parameter.role in DECAYED_ROLES else 0.0}
            for copied, parameter in zip(twin, model.parameters(), strict=True)
        ],
        lr=0.01,
        betas=(0.9, 0.95),
        eps=1e-8,
        foreach=False,
        fused=False,
    )
    for _ in range(5):
        for copied, parameter in zip(twin, model.parameters(), strict=True):
            parameter.grad = torch.randn_like(parameter)
            copied.grad = parameter.grad.clone()
        optimizer.step()
        plain.step()
    for copied, parameter in zip(twin, model.parameters(), strict=True):
        torch.testing.assert_close(parameter.detach(), copied.detach(), rtol=1e-5, atol=1e-7)


def test_no_fused_update_is_chosen_where_there_is_none() -> None:
    with torch.device("meta"):
        model = EveryRole()
    optimizer, choices = build_optimizer(model, Optimizer())
    assert not optimizer.defaults["fused"]
    assert "meta" in choices[0].reason


@pytest.mark.parametrize("kind", ["layer_norm", "rms_norm", "dynamic_tanh", "derf"])
@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("tied", [False, True])
def test_every_parameter_of_a_model_is_in_one_group(kind: str, affine: bool, tied: bool) -> None:
    normalization = {"kind": kind, "affine": affine}
    table = {"n_layer": 1, "n_embd": 8, "n_head": 2, "mlp_internal_dim_multiplier": 2, "tie_embeddings": tied}
    model = Model(ModelConfig.model_validate({**table, "normalization": normalization}), 7)
    groups = parameter_groups(model.named_parameters(), 0.1)
    assert sum(group.count for group in groups) == model.parameter_count()
    decayed = {name for group in groups if group.weight_decay > 0 for name in group.names}
    head = set() if tied else {"lm_head"}
    assert decayed == {"embedding.weight", "encoder", "encoder_v", "decoder"} | head


def test_the_summary_names_every_parameter_and_what_decays() -> None:
    groups = parameter_groups(EveryRole().named_parameters(), 0.1)
    lines = summarize(groups).splitlines()
    assert len(lines) == len(ROLES)
    for group, line in zip(groups, lines, strict=True):
        assert line.startswith(group.role)
        assert all(name in line for name in group.names)
        assert f"decay {group.weight_decay:g} " in line
