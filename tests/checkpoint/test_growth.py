"""A model that grows computes what it computed before: logits, and from carried states too; then its parts differ."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agreement import build, prefix_state
from wyrmling.checkpoint.contents import load_model_tensors, model_tensors
from wyrmling.checkpoint.transfer import Growth, grow_state
from wyrmling.errors import CheckpointError
from wyrmling.model import Model

EXACT = 1e-10
MAMBA = {"headdim": 4, "d_state": 4, "chunk_size": 3}
TWO_WIDTHS = {"type": "late_layer", "base_latent_total": 16, "last_layers": 1}


def dragon(
    heads: int, neurons: int, *, memory: str = "linear_attention", positions: str = "rope", **changes: Any
) -> Model:
    """`neurons` per head; weights large enough that every part of the layer matters."""
    kernel = {"memory_system": memory}
    sizes = {"n_head": heads, "latent_total": heads * neurons, "mamba": MAMBA}
    return build(positions, **{"sequence_kernel": kernel, **sizes, **changes})


def grown(old: Model, heads: int, neurons: int, **changes: Any) -> tuple[Model, Growth]:
    """The same model with more heads and neurons, from what the configuration alone would draw."""
    settings = old.config.model_dump() | {"n_head": heads, "latent_total": heads * neurons} | changes
    new = Model(type(old.config).model_validate(settings), 13, seed=77).double()
    growth = Growth.between(old.config, new.config, "old")
    before = model_tensors(old)
    load_model_tensors(new, before | growth.tensors(before, model_tensors(new), seed=3))
    return new, growth


@torch.no_grad()
def assert_the_same(old: Model, new: Model, growth: Growth) -> None:
    """Logits from nothing and from a carried state; the states that follow correspond, too."""
    tokens = torch.randint(0, 13, (2, 19), generator=torch.Generator().manual_seed(4))
    for state in (None, prefix_state(old, 2, 6)):
        hidden, after = old(tokens, state)
        other, theirs = new(tokens, None if state is None else grow_state(state, growth))
        scale = float(old.logits(hidden).abs().max())
        assert float((old.logits(hidden) - new.logits(other)).abs().max()) < EXACT * scale
        assert torch.equal(after.position, theirs.position)
        for one, two in zip(grow_state(after, growth).layers, theirs.layers, strict=True):
            for name, part in one.items():
                assert part.shape == two[name].shape
                if "rho" in one:  # what new heads have read is their own
                    part, two[name] = part[:, : growth.heads[0]], two[name][:, : growth.heads[0]]
                torch.testing.assert_close(part, two[name], rtol=EXACT, atol=EXACT)


@settings(max_examples=12)
@given(positions=st.sampled_from(["rope", "alibi"]), fours=st.integers(4, 11), heads=st.integers(2, 4))
def test_any_growth_of_linear_attention_is_exact(positions: str, fours: int, heads: int) -> None:
    neurons = 4 * fours if heads != 3 else 8 * -(-fours // 2)
    old = dragon(2, 16, positions=positions)
    new, growth = grown(old, heads, neurons)
    assert_the_same(old, new, growth)


@pytest.mark.parametrize("memory", ["mamba2", "mamba3"])
def test_memories_that_read_the_stream_alone_grow_at_any_threshold(memory: str) -> None:
    old = dragon(2, 16, memory=memory, relu_threshold=0.05)
    new, growth = grown(old, 4, 28)
    assert_the_same(old, new, growth)
    assert grow_state(prefix_state(old, 2, 1), growth).nbytes() == prefix_state(old, 2, 1).nbytes()


@pytest.mark.parametrize(("memory", "positions"), [("rwkv8", "rope"), ("linear_attention", "pope")])
def test_where_neurons_cannot_split_heads_can_still_be_added(memory: str, positions: str) -> None:
    old = dragon(2, 16, memory=memory, positions=positions)
    new, growth = grown(old, 3, 16)
    assert_the_same(old, new, growth)
    with pytest.raises(
        CheckpointError, match=r"^old has 16 neurons per head and 32 are asked for: .*add heads"
    ):
        grown(old, 2, 32)


@pytest.mark.parametrize("base", [16, 32])
def test_a_narrow_layer_finds_all_copies_of_its_own_neurons(base: int) -> None:
    old = dragon(2, 24, latent_fanout_schedule=TWO_WIDTHS)
    wider = TWO_WIDTHS | {"base_latent_total": base}
    new, growth = grown(old, 2, 40, latent_fanout_schedule=wider)
    assert new.geometry.layer_neurons == (base // 2, base // 2, 40)
    assert_the_same(old, new, growth)


def test_new_heads_leave_narrow_layers_as_narrow_as_they_were() -> None:
    """The schedule counts over all heads: with more of them it has to name more."""
    old = dragon(2, 24, latent_fanout_schedule=TWO_WIDTHS)
    new, growth = grown(old, 4, 24, latent_fanout_schedule=TWO_WIDTHS | {"base_latent_total": 32})
    assert_the_same(old, new, growth)
    with pytest.raises(
        CheckpointError, match=r"layers of 8, 8, 24 neurons per head, this configuration of 4, 4, 24: "
    ):
        grown(old, 4, 24)


def test_growing_again_and_again_stays_exact_and_is_the_same_each_time() -> None:
    """N -> 2 N -> 3 N: a third of the old pairs' copies split again, the same ones whenever it is done."""
    old = dragon(2, 16)
    twice, first = grown(old, 2, 32)
    thrice, second = grown(twice, 3, 48)
    assert_the_same(old, twice, first)
    assert_the_same(twice, thrice, second)
    frequencies = thrice.memory.frequencies
    assert torch.equal(frequencies, old.memory.frequencies.repeat_interleave(3))
    again, _ = grown(twice, 3, 48)
    for name, tensor in model_tensors(thrice).items():
        assert torch.equal(tensor, model_tensors(again)[name]), name


def test_pairs_split_as_wholes_and_evenly() -> None:
    growth = grown(dragon(2, 16), 2, 20)[1]
    assert growth.parents.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 14, 15]
    assert growth.copies.tolist() == [1] * 6 + [2] * 4 + [1] * 6 + [2] * 4
    assert growth.text() == "16 -> 20 neurons per head (4 of 16 split)"


@pytest.mark.parametrize("memory", ["linear_attention", "mamba2", "mamba3"])
def test_after_two_steps_everything_new_has_moved_and_copies_have_parted(memory: str) -> None:
    """Without weight decay. New heads move in two: their decoder first, then what stands before it."""
    old = dragon(2, 16, memory=memory)
    new, growth = grown(old, 3, 32)
    before = {name: tensor.clone() for name, tensor in model_tensors(new).items()}
    optimizer = torch.optim.SGD(new.parameters(), lr=0.1)
    tokens = torch.randint(0, 13, (4, 30), generator=torch.Generator().manual_seed(1))
    for _ in range(2):
        optimizer.zero_grad()
        hidden, _ = new(tokens[:, :-1])
        new.loss_sum(hidden, tokens[:, 1:]).div(tokens[:, 1:].numel()).backward()
        optimizer.step()
    after = model_tensors(new)
    moved = {
        "encoder": after["encoder"] - before["encoder"],
        "encoder_v": after["encoder_v"] - before["encoder_v"],
        "decoder": (after["decoder"] - before["decoder"]).view(3, 32, -1).mT,
    }
    siblings = growth.parents.argsort(stable=True)
    for name, change in moved.items():  # [H, D, N]
        assert float(change[2].abs().max()) > 0, f"{name} of the new head"
        one, other = change[:2, :, siblings].unflatten(-1, (-1, 2)).unbind(-1)
        fires = (one != 0).any(1)
        assert float(fires.double().mean()) > 0.5, name
        assert bool((one != other).any(1)[fires].all()), f"copies of {name} move as one"


def test_what_cannot_be_exact_is_refused_in_one_line() -> None:
    old = dragon(2, 16)
    explicit = {"firing_targets": {"kind": "explicit_thresholds", "x_threshold": 0.5, "y_threshold": 0.0}}
    for heads, neurons, changes, message in (
        (
            2,
            8,
            {},
            r"2 heads of 16 neurons, this configuration asks for 2 of 8: .*latent_total to 32 or more",
        ),
        (
            1,
            64,
            {},
            "2 heads of 16 neurons, this configuration asks for 1 of 64: both can be added, neither taken",
        ),
        (
            2,
            32,
            {"relu_threshold": 0.5},
            r"fire above 0 and 0, those of this configuration above 0\.5 and 0\.5",
        ),
        (2, 32, {"latent_fanout_schedule": TWO_WIDTHS}, r"layers of 16, 16, 16 neurons.*of 8, 8, 32: "),
    ):
        with pytest.raises(CheckpointError, match=message) as caught:
            grown(old, heads, neurons, **changes)
        assert "\n" not in str(caught.value)
    with pytest.raises(
        CheckpointError, match=r"only where x fires above 0 \(here 0\.5: model.relu_threshold"
    ):
        grown(dragon(2, 16, initialization=explicit), 2, 32)
    only_y = {"firing_targets": {"kind": "explicit_thresholds", "x_threshold": 0.0, "y_threshold": 0.1}}
    gated = dragon(2, 16, initialization=only_y)
    assert_the_same(gated, *grown(gated, 2, 32))


def test_layers_may_be_more_or_fewer_while_it_grows() -> None:
    """Weights are shared: nothing is missing, and what is applied more often is what was there."""
    old = dragon(2, 16)
    for layers in (1, 5):
        new, _ = grown(old, 2, 32, n_layer=layers)
        same = dragon(2, 16, n_layer=layers)
        load_model_tensors(same, model_tensors(old))
        tokens = torch.randint(0, 13, (2, 9))
        with torch.no_grad():
            torch.testing.assert_close(new(tokens)[0], same(tokens)[0], rtol=EXACT, atol=EXACT)
