"""Continual backprop: which neurons are replaced, when, and what replacing one changes and what it leaves alone."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from wyrmling.config.schema.continual import ContinualBackprop as Table
from wyrmling.config.schema.model import Model as ModelConfig
from wyrmling.config.schema.optimizer import Optimizer
from wyrmling.config.schema.scales import ModuleScale
from wyrmling.errors import CheckpointError
from wyrmling.model import Model, Observed
from wyrmling.optim import Scales, build_optimizer, module_scales, set_rates
from wyrmling.optim.continual import Activity, ContinualBackprop, contribution, least
from wyrmling.optim.replacement import forget_neurons, replace_neurons

H, D, N = 2, 8, 16
BASE = 1e-3
SGD = torch.optim.SGD


def dragon(memory: str = "linear_attention", positions: str = "rope", **changes: Any) -> Model:
    config = {
        "n_layer": 2,
        "n_embd": D,
        "n_head": H,
        "latent_total": H * N,
        "dropout": 0.0,
        "rotary_embedding": positions,
        "sequence_kernel": memory,
        "mamba": {"headdim": 4, "ngroups": 2, "d_state": 4, "chunk_size": 3},
        **changes,
    }
    return Model(ModelConfig.model_validate(config), 13, seed=5).double()


def backprop(model: Model, **table: Any) -> ContinualBackprop:
    g = model.geometry
    return ContinualBackprop(Table(**table), g.heads, g.neurons, base_rate=BASE, seed=5)


def tokens(rows: int = 3, length: int = 7) -> Tensor:
    return torch.randint(0, 13, (rows, length), generator=torch.Generator().manual_seed(1))


def watched(model: Model) -> Activity:
    """What the neurons of a model do on some text."""
    seen: list[Observed] = []
    with torch.no_grad():
        model(tokens(), observe=seen)
    activity = Activity(model.geometry.heads, model.geometry.neurons)
    activity.add(seen)
    return activity


def moved(model: Model, **optimizer: Any) -> torch.optim.Optimizer:
    """An optimizer that has taken two steps, so that it remembers something everywhere."""
    update, _ = build_optimizer(model, Optimizer(**optimizer))
    for _ in range(2):
        model.loss_sum(model(tokens())[0], tokens()).backward()
        set_rates(update, BASE)
        update.step()
        update.zero_grad()
    return update


def marked(model: Model, *neurons: tuple[int, int]) -> Tensor:
    chosen = torch.zeros(model.geometry.heads, model.geometry.neurons, dtype=torch.bool)
    for head, neuron in neurons:
        chosen[head, neuron] = True
    return chosen


def test_the_contribution_is_activity_times_weights_out_over_weights_in() -> None:
    model = dragon()
    heads, neurons = model.geometry.heads, model.geometry.neurons
    activity = torch.rand(heads, neurons, dtype=torch.float64)
    with torch.no_grad():
        model.encoder[1, :, 3] = model.encoder_v[1, :, 3] = 0
    found, published = (contribution(activity, model, epsilon) for epsilon in (1e-3, None))
    for h in range(heads):
        for n in range(neurons):
            into = float((model.encoder[h, :, n].abs().sum() + model.encoder_v[h, :, n].abs().sum()).detach())
            out = float(model.decoder[h * neurons + n].detach().abs().sum())
            expected = float(activity[h, n]) * out
            assert float(found[h, n]) == pytest.approx(expected / max(1e-3, into), rel=1e-12)
            assert float(published[h, n]) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("utility", ["contribution", "contribution_per_input"])
def test_the_utility_is_the_one_that_is_asked_for(utility: str) -> None:
    model = dragon()
    with torch.no_grad():
        model.encoder *= torch.rand(H, 1, N) + 0.1
    ours, seen = backprop(model, utility=utility), watched(model)
    ours.after_step(1, seen, model, SGD(model.parameters()), BASE)
    epsilon = None if utility == "contribution" else ours.table.utility_epsilon
    torch.testing.assert_close(
        ours.corrected(), contribution(seen.mean(), model, epsilon), rtol=1e-12, atol=0
    )


@pytest.mark.parametrize("dead", [(0, 0), (0, 5), (1, 2), (1, 15)])
def test_a_dead_neuron_goes_before_a_useful_one_wherever_it_stands(dead: tuple[int, int]) -> None:
    """Its gate never opens, so nothing of it reaches the decoder; the others are not touched."""
    model = dragon()
    with torch.no_grad():
        model.encoder_v[dead[0], :, dead[1]] = 0
    ours = backprop(
        model, maturity_steps=1, sample_interval_steps=1, replace_interval_steps=2, replacement_rate=1 / 32
    )
    assert ours.after_step(1, watched(model), model, SGD(model.parameters()), BASE) is None
    chosen = ours.after_step(2, watched(model), model, SGD(model.parameters()), BASE)
    assert chosen is not None
    assert torch.equal(chosen, marked(model, dead))
    others = ours.corrected()[~chosen]
    assert bool((others > 0).all())


@settings(max_examples=40)
@given(
    values=st.lists(
        st.tuples(st.sampled_from([0.0, 0.5, 0.5000001, 2.0]), st.booleans()), min_size=1, max_size=24
    ),
    count=st.integers(-1, 30),
)
def test_the_least_useful_are_chosen_and_of_equals_the_first(
    values: list[tuple[float, bool]], count: int
) -> None:
    utility = torch.tensor([[value for value, _ in values]], dtype=torch.float64)
    mature = torch.tensor([[ripe for _, ripe in values]])
    order = sorted((value, place) for place, (value, ripe) in enumerate(values) if ripe)
    expected = {place for _, place in order[: max(count, 0)]}
    assert set(least(utility, mature, count)[0].nonzero().flatten().tolist()) == expected


def test_the_utility_is_the_mean_of_the_samples_without_bias() -> None:
    """With equal samples it is the sample, from the first on; a new neuron does not inherit the old one's."""
    model = dragon()
    ours = backprop(model, utility_decay=0.9, replacement_rate=0.0)
    activity = watched(model)
    expected = contribution(activity.mean(), model, ours.table.utility_epsilon)
    assert bool((ours.corrected() == 0).all())
    for step in range(1, 4):
        ours.after_step(step, activity, model, SGD(model.parameters()), BASE)
        torch.testing.assert_close(ours.corrected(), expected, rtol=1e-12, atol=0)
    ours.after_step(4, None, model, SGD(model.parameters()), BASE)
    torch.testing.assert_close(ours.corrected(), expected, rtol=1e-12, atol=0)


def test_the_newest_samples_weigh_most() -> None:
    model = dragon()
    ours = backprop(model, utility_decay=0.75, replacement_rate=0.0)
    loud, quiet = watched(model), watched(model)
    loud.total *= 4
    unit = contribution(quiet.mean(), model, ours.table.utility_epsilon)
    for step, activity in enumerate([loud, quiet, quiet], start=1):
        ours.after_step(step, activity, model, SGD(model.parameters()), BASE)
    weights = [0.75**2 * 0.25, 0.75 * 0.25, 0.25]
    mean = (4 * weights[0] + weights[1] + weights[2]) / sum(weights)
    torch.testing.assert_close(ours.corrected(), unit * mean, rtol=1e-12, atol=0)


def test_a_step_is_summed_once_and_over_layers() -> None:
    """Every sampled step has sums of its own; other steps have none."""
    model = dragon()
    ours = backprop(model, sample_interval_steps=3)
    assert [step for step in range(1, 10) if ours.activity(step) is not None] == [3, 6, 9]
    first, second = ours.activity(3), ours.activity(6)
    assert first is not None
    assert second is not None
    seen: list[Observed] = []
    model(tokens(), observe=seen)
    first.add(seen)
    first.add(seen)
    assert first.tokens == 42
    expected = sum(layer.activity.double() for layer in seen) / 21
    torch.testing.assert_close(first.mean(), expected, rtol=1e-12, atol=0)
    assert second.tokens == 0
    assert bool((second.mean() == 0).all())


def test_narrow_layers_count_for_the_neurons_that_they_have() -> None:
    model = dragon(
        latent_total=64,
        latent_fanout_schedule={"type": "late_layer", "last_layers": 1, "base_latent_total": 16},
    )
    seen: list[Observed] = []
    model(tokens(), observe=seen)
    narrow, wide = (layer.activity.double() for layer in seen)
    activity = Activity(H, 32)
    activity.add(seen)
    assert narrow.shape == (H, 8)
    torch.testing.assert_close(activity.total[:, :8], narrow + wide[:, :8], rtol=1e-12, atol=0)
    assert torch.equal(activity.total[:, 8:], wide[:, 8:])


@settings(max_examples=12)
@example(rate=0.2, maturity=1, sample=5, interval=1)
@given(
    rate=st.floats(0, 0.2),
    maturity=st.integers(1, 12),
    sample=st.integers(1, 5),
    interval=st.integers(1, 9),
)
def test_over_many_steps_the_rate_is_kept_and_the_young_are_safe(
    rate: float, maturity: int, sample: int, interval: int
) -> None:
    """What was replaced, what could not be, and what is left of the budget: the sum of rate times mature neurons."""
    model = dragon()
    ours = backprop(
        model,
        replacement_rate=rate,
        maturity_steps=maturity,
        sample_interval_steps=sample,
        replace_interval_steps=interval,
    )
    born = torch.zeros(H, N, dtype=torch.int64)
    allowed, replaced, lost, activity = 0.0, 0, 0, watched(model)
    for step in range(1, 61):
        mature = (step - born > maturity) & (step // sample * sample > born)
        allowed += rate * int(mature.sum())
        sampled = ours.activity(step) is not None
        due = int(allowed - replaced - lost + 1e-9)
        chosen = ours.after_step(step, activity if sampled else None, model, SGD(model.parameters()), BASE)
        if step % interval == 0:
            assert (0 if chosen is None else int(chosen.sum())) == min(due, int(mature.sum()))
            lost += max(0, due - int(mature.sum()))
        if chosen is not None:
            assert step % interval == 0
            assert not bool((chosen & ~mature).any())
            born[chosen] = step
            replaced += int(chosen.sum())
        assert replaced + lost + ours.budget == pytest.approx(allowed, abs=1e-9)
        assert step % interval or ours.budget < 1


def test_a_budget_that_cannot_be_spent_does_not_pile_up() -> None:
    """A coupling that asks for ten times all of 32 neurons replaces 32, and not the next ones as they come of age."""
    model = dragon()
    ours = backprop(
        model, lr_coupling="global_ratio", replacement_rate=0.5, maturity_steps=2, replace_interval_steps=2
    )
    ours.age += 1000
    update = SGD(model.parameters())
    counts = []
    for step in range(1, 9):
        chosen = ours.after_step(step, watched(model), model, update, 10 * BASE if step < 3 else BASE / 64)
        counts.append(0 if chosen is None else int(chosen.sum()))
    assert counts[:4] == [0, 32, 0, 0]
    assert sum(counts[4:]) <= 1
    assert ours.budget < 1


def test_fractions_of_a_neuron_add_up() -> None:
    """32 mature neurons at a rate of 1/320: one every ten steps."""
    model = dragon()
    ours = backprop(
        model, replacement_rate=1 / 320, maturity_steps=1, sample_interval_steps=1, replace_interval_steps=1
    )
    ours.age += 1000
    counts = []
    for step in range(1, 41):
        chosen = ours.after_step(step, watched(model), model, SGD(model.parameters()), BASE)
        counts.append(0 if chosen is None else int(chosen.sum()))
    assert sum(counts) in (3, 4)
    assert max(counts) == 1


@pytest.mark.parametrize(
    ("coupling", "rate", "scale", "power", "expected"),
    [
        ("none", 5e-4, 0.5, 1.0, 1.0),
        ("global_ratio", 5e-4, 0.5, 1.0, 0.5),
        ("target_group_ratio", 5e-4, 0.5, 1.0, 0.25),
        ("target_group_ratio", 5e-4, 0.5, 2.0, 0.0625),
        ("global_ratio", 5e-4, 0.5, 0.0, 1.0),
        ("global_ratio", 0.0, 1.0, 1.0, 0.0),
    ],
)
def test_the_replacement_rate_follows_the_learning_rate(
    coupling: str, rate: float, scale: float, power: float, expected: float
) -> None:
    model = dragon("rwkv8")
    update = SGD(model.parameters())
    update.param_groups[0]["lr_scale"] = scale
    set_rates(update, rate)
    ours = backprop(
        model, lr_coupling=coupling, lr_coupling_power=power, replacement_rate=0.01, replace_interval_steps=99
    )
    ours.age += 1000
    ours.after_step(1, watched(model), model, update, rate)
    assert ours.budget == pytest.approx(0.01 * 32 * expected, abs=1e-6)


@pytest.mark.parametrize("mode", ["gradient", "learning_rate"])
def test_a_part_that_learns_slower_is_replaced_slower(mode: str) -> None:
    """One of four kinds of weights at half the rate, whichever way that is done."""
    model = dragon("rwkv8")
    scale = ModuleScale.model_validate({"target": "shared_lowrank_decoder", "scale": 0.5, "mode": mode})
    scales = Scales(module_scales([scale], [name for name, _ in model.named_parameters()], 10))
    update, _ = build_optimizer(model, Optimizer(), scales=scales)
    set_rates(update, BASE, None, scales.rates(1))
    table = Table(lr_coupling="target_group_ratio", replacement_rate=0.01, replace_interval_steps=99)
    ours = ContinualBackprop(table, H, N, base_rate=BASE, seed=5, scales=scales)
    ours.age += 1000
    ours.after_step(1, watched(model), model, update, BASE)
    assert ours.budget == pytest.approx(0.01 * 32 * 0.875, abs=1e-9)


@pytest.mark.parametrize("memory", ["linear_attention", "rwkv8", "mamba2"])
@pytest.mark.parametrize(
    "optimizer", [{"name": "adamw"}, {"name": "muon"}, {"name": "bitnet_published"}], ids=lambda o: o["name"]
)
def test_weights_and_moments_change_in_the_replaced_neurons_only(
    memory: str, optimizer: dict[str, Any]
) -> None:
    model = dragon(memory)
    update = moved(model, **optimizer)
    before, old = copy.deepcopy(model.state_dict()), copy.deepcopy(update.state_dict())
    chosen = marked(model, (0, 0), (0, 3), (1, 3), (1, 15))
    replace_neurons(model, update, chosen, seed=5, step=None)
    first = dragon(memory)

    def parts(tensor: Tensor, name: str) -> tuple[Tensor, Tensor] | None:
        """The numbers of replaced neurons, and all others."""
        if name in ("encoder", "encoder_v"):
            tensor = tensor.transpose(1, 2)
        elif name == "decoder":
            tensor = tensor.view(H, -1, D)
        elif name != "memory.time_decay":
            return None
        return tensor[chosen], tensor[~chosen]

    for name, parameter in model.named_parameters():
        found, was, fresh = (
            parts(t, name) for t in (parameter.detach(), before[name], first.get_parameter(name))
        )
        if found is None or was is None or fresh is None:
            assert torch.equal(parameter, before[name]), name
            continue
        assert torch.equal(found[0], torch.zeros_like(found[0]) if name == "decoder" else fresh[0]), name
        assert torch.equal(found[1], was[1]), name
        assert not torch.equal(found[0], was[0])
    changed = 0
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    order = [parameter for group in update.param_groups for parameter in group["params"]]
    for index, parameter in enumerate(order):
        name = names[id(parameter)]
        for slot, now in update.state[parameter].items():
            was_slot = old["state"][index][slot]
            pieces = parts(now, name) if now.shape == parameter.shape else None
            if pieces is None:
                assert torch.equal(now, was_slot), (name, slot)
                continue
            earlier = parts(was_slot, name)
            assert earlier is not None
            assert bool((pieces[0] == 0).all()), (name, slot)
            assert bool((earlier[0] != 0).any()), (name, slot)
            assert torch.equal(pieces[1], earlier[1]), (name, slot)
            changed += 1
    assert changed >= 3


def test_new_weights_are_the_first_ones_or_drawn_for_the_step() -> None:
    def encoder_after(step: int | None) -> Tensor:
        model = dragon()
        replace_neurons(model, SGD(model.parameters()), marked(model, (1, 4)), seed=5, step=step)
        return model.encoder[1, :, 4].detach()

    assert torch.equal(encoder_after(None), dragon().encoder[1, :, 4].detach())
    assert torch.equal(encoder_after(64), encoder_after(64))
    assert not torch.equal(encoder_after(64), encoder_after(128))
    assert not torch.equal(encoder_after(64), encoder_after(None))


@pytest.mark.parametrize("setting", ["fresh", "initial"])
def test_the_option_decides_where_weights_come_from(setting: str) -> None:
    model = dragon()
    ours = backprop(
        model,
        new_weights=setting,
        maturity_steps=1,
        sample_interval_steps=1,
        replace_interval_steps=1,
        replacement_rate=1.0,
    )
    ours.age += 1
    with torch.no_grad():
        model.encoder.fill_(1.0)
    chosen = ours.after_step(1, watched(model), model, SGD(model.parameters()), BASE)
    assert chosen is not None
    assert bool(chosen.all())
    same = torch.equal(model.encoder, dragon().encoder)
    assert same == (setting == "initial")
    assert bool((model.decoder == 0).all())


@pytest.mark.parametrize("positions", ["rope", "alibi", "pope"])
def test_a_carried_state_of_linear_attention_forgets_the_neurons(positions: str) -> None:
    """Under rope together with their partners, which are turned into them; in narrow layers too."""
    model = dragon(
        positions=positions,
        latent_total=64,
        latent_fanout_schedule={"type": "late_layer", "last_layers": 1, "base_latent_total": 16},
    )
    state = model(tokens())[1].detach()
    kept = state.map(torch.clone)
    chosen = marked(model, (0, 3), (1, 0), (1, 30))
    after = forget_neurons(model, state, chosen)
    emptied = {"rope": {(0, 2), (0, 3), (1, 0), (1, 1), (1, 30), (1, 31)}}.get(
        positions, {(0, 3), (1, 0), (1, 30)}
    )
    width = 2 if positions == "pope" else 1
    assert torch.equal(after.position, state.position)
    for new, old, untouched in zip(after.layers, kept.layers, state.layers, strict=True):
        assert torch.equal(old["rho"], untouched["rho"])  # a state is a value
        for head in range(H):
            for key in range(old["rho"].shape[2]):
                expected = old["rho"][:, head, key]
                if (head, key // width) in emptied:
                    expected = torch.zeros_like(expected)
                assert torch.equal(new["rho"][:, head, key], expected)


@pytest.mark.parametrize(
    ("memory", "positions"), [("linear_attention", "rope"), ("linear_attention", "alibi"), ("rwkv8", "rope")]
)
def test_what_is_forgotten_is_what_the_neurons_had_written(memory: str, positions: str) -> None:
    """The first layer's state is that of a model in which they never fired."""
    model, silent = dragon(memory, positions), dragon(memory, positions)
    chosen = marked(model, (0, 2), (0, 3), (1, 14), (1, 15))
    with torch.no_grad():
        silent.encoder.transpose(1, 2)[chosen] = 0
    after = forget_neurons(model, model(tokens())[1], chosen)
    expected = silent(tokens())[1]
    for name, tensor in expected.layers[0].items():
        torch.testing.assert_close(after.layers[0][name], tensor, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("memory", ["mamba2", "mamba3"])
def test_the_state_of_a_mamba_memory_knows_nothing_of_neurons(memory: str) -> None:
    model = dragon(memory)
    state = model(tokens())[1]
    after = forget_neurons(model, state, torch.ones(H, model.geometry.neurons, dtype=torch.bool))
    for new, old in zip(after.layers, state.layers, strict=True):
        assert all(torch.equal(new[name], tensor) for name, tensor in old.items())


def test_utilities_ages_and_budget_survive_saving() -> None:
    model = dragon()
    ours = backprop(model, maturity_steps=1, replace_interval_steps=2, replacement_rate=0.07)
    for step in range(1, 6):
        ours.after_step(step, watched(model), model, SGD(model.parameters()), BASE)
    again = backprop(model)
    saved = {name: tensor.clone() for name, tensor in ours.tensors().items()}
    again.load(saved)
    assert again.budget == ours.budget > 0
    for name, tensor in ours.tensors().items():
        assert torch.equal(again.tensors()[name], tensor)
    again.age += 1
    assert torch.equal(saved["age"], ours.age)  # what was read is not shared
    for name in saved:
        with pytest.raises(CheckpointError, match=f"{name} of continual backprop .* init_from_checkpoint"):
            again.load({other: tensor for other, tensor in saved.items() if other != name})
    with pytest.raises(CheckpointError, match="utility of continual backprop"):
        again.load(saved | {"utility": torch.zeros(1, 2, dtype=torch.float64)})


def test_what_neurons_do_is_added_up_where_it_was_seen() -> None:
    """A number that came to the CPU with every layer would be waited for. Nothing can be read from this device."""
    activity, seen = Activity(H, N), torch.ones(H, N, device="meta")
    for _ in range(2):
        activity.add([Observed(seen, seen, seen, 3), Observed(seen[:, :8], seen[:, :8], seen[:, :8], 3)])
    assert (activity.total.device.type, activity.total.dtype, activity.tokens) == ("meta", torch.float64, 6)
