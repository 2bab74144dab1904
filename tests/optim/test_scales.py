"""Parts of the model with a factor of their own: what they cover, how it moves, what it does to an update."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agreement import build
from wyrmling.config.schema.init_transfer import InitTransfer
from wyrmling.config.schema.optimizer import Optimizer
from wyrmling.config.schema.scales import ModuleScale
from wyrmling.errors import ConfigError
from wyrmling.model import Model
from wyrmling.optim import (
    Scale,
    Scales,
    backbone_scale,
    build_optimizer,
    module_scales,
    scale_and_clip,
    set_rates,
    target_of,
)

Stepped = tuple[dict[str, torch.Tensor], dict[str, dict[str, torch.Tensor]]]
MAMBA = {"headdim": 4, "d_state": 4}


def scales(model: Model, total: int = 10, **table: object) -> Scales:
    names = [name for name, _ in model.named_parameters()]
    return Scales(module_scales([ModuleScale.model_validate(table)], names, total))


def line(total: int, initial: float, **schedule: float) -> Scale:
    table = {"target": "embedding", "scale": initial, "schedule": schedule}
    return module_scales([ModuleScale.model_validate(table)], ["embedding.weight"], total)[0]


def with_gradients(seed: int = 1) -> Model:
    model = build("rope")
    tokens = torch.randint(0, 13, (2, 7), generator=torch.Generator().manual_seed(seed))
    model.loss_sum(model(tokens)[0], tokens).backward()
    return model


@pytest.mark.parametrize("memory", ["linear_attention", "mamba2", "mamba3", "rwkv8"])
def test_every_parameter_belongs_to_a_target_of_its_own(memory: str) -> None:
    model = build("rope", sequence_kernel=memory, mamba=MAMBA, normalization={"affine": True})
    found: dict[str, set[str]] = {}
    for name, _ in model.named_parameters():
        found.setdefault(target_of(name), set()).add(name)
    ours = {name for name, _ in model.memory.named_parameters(prefix="memory")}
    extra = {"linear_attention": {}, "rwkv8": {"shared_lowrank_decay": ours}}.get(memory, {"mamba": ours})
    assert found == {
        "embedding": {"embedding.weight"},
        "normalization": {"norm.gain", "norm.bias"},
        "output_head": {"lm_head"},
        "shared_lowrank_encoder": {"encoder", "encoder_v"},
        "shared_lowrank_decoder": {"decoder"},
        **extra,
    }


def test_a_factor_moves_in_a_line_between_two_fractions_of_the_run() -> None:
    """The described one, from 0.5 to 1 in a run of two steps, first; a line without length jumps after its step."""
    assert [line(2, 0.5, final_scale=1.0).at(step) for step in (1, 2, 3)] == [0.5, 1.0, 1.0]
    middle = line(11, 1.0, final_scale=3.0, start_fraction=0.5, end_fraction=0.7)
    assert [middle.at(step) for step in (5, 6, 7, 8, 9)] == [1.0, 1.0, 2.0, 3.0, 3.0]
    jump = line(11, 1.0, final_scale=3.0, start_fraction=0.5, end_fraction=0.5)
    assert [jump.at(step) for step in (5, 6, 7)] == [1.0, 1.0, 3.0]
    assert jump.describe() == "learning rate of embedding x 1 to step 6, then x 3"


@given(
    st.floats(0, 10),
    st.floats(0, 10),
    st.floats(0, 1),
    st.floats(0, 1),
    st.integers(1, 200),
    st.integers(1, 300),
)
def test_a_line_stays_between_its_ends_and_reaches_both(
    a: float, b: float, x: float, y: float, total: int, step: int
) -> None:
    scale = line(total, a, final_scale=b, start_fraction=min(x, y), end_fraction=max(x, y))
    assert min(a, b) - 1e-12 <= scale.at(step) <= max(a, b) + 1e-12
    assert scale.at(1) == a
    assert scale.at(step) == b or step <= max(scale.end, scale.start + 1)


def test_a_gradient_is_halved_where_that_is_asked_for_and_nowhere_else() -> None:
    model, twin = with_gradients(), with_gradients()
    half = scales(model, target="shared_lowrank_decoder", scale=0.5, mode="gradient")
    half.scale_gradients(model.named_parameters(), 1)
    assert half.rates(1) == {}
    for name, parameter in model.named_parameters():
        factor = 0.5 if name == "decoder" else 1.0
        assert torch.equal(parameter.grad, twin.get_parameter(name).grad * factor), name


def test_a_gradient_follows_its_line_from_step_to_step() -> None:
    norms = []
    for step in (1, 2):
        model = with_gradients()
        rising = scales(
            model,
            2,
            target="shared_lowrank_decoder",
            scale=0.5,
            mode="gradient",
            schedule={"final_scale": 1.0},
        )
        rising.scale_gradients(model.named_parameters(), step)
        norms.append(float(model.decoder.grad.norm()))
    assert norms[1] == pytest.approx(2 * norms[0], rel=1e-12)


def test_what_is_scaled_is_scaled_before_it_is_measured() -> None:
    model, twin = with_gradients(), with_gradients()
    scales(model, target="embedding", scale=0.0, mode="gradient").scale_gradients(model.named_parameters(), 1)
    norm = scale_and_clip(model.parameters())
    assert norm == scale_and_clip(p for name, p in twin.named_parameters() if name != "embedding.weight")


def start() -> Model:
    return build("rope", sequence_kernel="mamba2", mamba=MAMBA, normalization={"affine": True})


def stepped(optimizer: Optimizer, rate: float, table: dict[str, object] | None, steps: int = 4) -> Stepped:
    """A model after some steps with gradients that are always the same ones; its weight decay is strong."""
    model = start()
    chosen = Scales() if table is None else scales(model, steps, **table)
    update, _ = build_optimizer(model, optimizer, total_steps=steps, scales=chosen)
    generator = torch.Generator().manual_seed(3)
    for step in range(1, steps + 1):
        for _, parameter in sorted(model.named_parameters()):
            parameter.grad = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
        chosen.scale_gradients(model.named_parameters(), step)
        set_rates(update, rate, 0.5, chosen.rates(step))
        update.step()
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    return weights, {name: update.state[p] for name, p in model.named_parameters() if p in update.state}


@pytest.mark.parametrize("name", ["adamw", "muon", "bitnet_published"])
@pytest.mark.parametrize("target", ["shared_lowrank_encoder", "mamba", "embedding"])
def test_a_part_moves_and_decays_as_if_the_whole_had_its_rate(name: str, target: str) -> None:
    """A quarter of the rate for a part: the part as in a run with a quarter of the rate, the rest as without."""
    table = Optimizer(name=name, learning_rate=0.04, weight_decay=0.5)  # type: ignore[arg-type]
    ours, _ = stepped(table, 0.04, {"target": target, "scale": 0.25})
    whole, quarter = stepped(table, 0.04, None)[0], stepped(table, 0.01, None)[0]
    for key, weight in ours.items():
        assert torch.equal(weight, (quarter if target_of(key) == target else whole)[key]), key
        assert not torch.equal(quarter[key], whole[key]), key


@pytest.mark.parametrize("name", ["adamw", "muon", "bitnet_published"])
@pytest.mark.parametrize("mode", ["learning_rate", "gradient"])
def test_a_factor_of_nothing_freezes_weights_decay_and_moments(name: str, mode: str) -> None:
    table = Optimizer(name=name, learning_rate=0.04, weight_decay=0.5)  # type: ignore[arg-type]
    ours, moments = stepped(table, 0.04, {"target": "shared_lowrank_decoder", "scale": 0.0, "mode": mode})
    whole, all_moments = stepped(table, 0.04, None)
    for key, weight in ours.items():
        assert torch.equal(weight, start().decoder if key == "decoder" else whole[key]), key
    assert set(moments) == set(all_moments) - {"decoder"}


def test_what_thaws_starts_as_if_that_were_its_first_step() -> None:
    """Frozen for three of four steps: one step's moments, with the correction of a first step."""
    table = {
        "target": "shared_lowrank_decoder",
        "scale": 0.0,
        "schedule": {"final_scale": 1.0, "start_fraction": 0.67, "end_fraction": 0.67},
    }
    ours, moments = stepped(Optimizer(), 0.04, table)
    assert (float(moments["decoder"]["step"]), float(moments["encoder"]["step"])) == (1, 4)
    moved = (ours["decoder"] - start().decoder * (1 - 0.04 * 0.5)).abs()
    torch.testing.assert_close(moved, torch.full_like(moved, 0.04), rtol=1e-4, atol=0)


def test_a_target_that_covers_nothing_is_refused_with_what_there_is() -> None:
    with pytest.raises(ConfigError) as caught:
        scales(build("rope"), target="mamba", scale=0.5)
    assert str(caught.value) == (
        'training.module_lr_scales.0.target = "mamba" covers no parameter of this model; it has embedding, '
        "output_head, shared_lowrank_decoder, shared_lowrank_encoder"
    )


def test_the_backbone_is_what_was_transferred() -> None:
    model = build("rope", sequence_kernel="rwkv8", normalization={"affine": True})
    everything = {name for name, _ in model.named_parameters()}
    steps = {"backbone_grad_scale": 0.0, "backbone_grad_scale_steps": 3}
    (plain,) = backbone_scale(InitTransfer(**steps), everything)
    assert plain.names == everything - {"embedding.weight", "lm_head"}
    assert [plain.at(step) for step in (1, 3, 4, 9)] == [0, 0, 1, 1]
    fresh = InitTransfer(**steps, preserve_fresh_norm=True, preserve_fresh_decoder=True)
    (scale,) = backbone_scale(fresh, everything)
    assert scale.names == {"encoder", "encoder_v", "memory.time_decay"}
    assert backbone_scale(InitTransfer(), everything) == []


def test_a_frozen_backbone_has_no_gradient_and_the_surfaces_keep_theirs() -> None:
    """The described test; and a backbone that is held back a little is so for its steps alone."""
    for factor in (0.0, 0.25):
        table = InitTransfer(backbone_grad_scale=factor, backbone_grad_scale_steps=1)
        for step in (1, 2):
            model, twin = with_gradients(), with_gradients()
            held = Scales(backbone_scale(table, [name for name, _ in model.named_parameters()]))
            held.scale_gradients(model.named_parameters(), step)
            for name, parameter in model.named_parameters():
                whole = twin.get_parameter(name).grad
                assert float(whole.norm()) > 0
                surface = name in ("embedding.weight", "lm_head")
                if factor == 0 and step == 1 and not surface:
                    assert parameter.grad is None, name
                else:
                    assert torch.equal(parameter.grad, whole * (1 if surface or step == 2 else factor)), name
