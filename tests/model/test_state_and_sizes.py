"""States as values, and the figures that are printed about a model, each counted in another way."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from wyrmling.config import load_config
from wyrmling.config.schema.model import Model as ModelConfig
from wyrmling.model import Geometry, Model, State
from wyrmling.numerics.roles import role_of


def small(**changes: object) -> ModelConfig:
    return ModelConfig.model_validate(
        {"n_layer": 2, "n_embd": 8, "n_head": 2, "latent_total": 16, "dropout": 0.0, **changes}
    )


@torch.no_grad()
def state_after(model: Model, lengths: list[int]) -> State:
    return State.cat([model(torch.randint(0, 11, (1, n)))[1] for n in lengths])


def test_rows_can_be_taken_and_put_together() -> None:
    model = Model(small(), 11).double()
    state = state_after(model, [3, 5, 2])
    again = State.cat([state.select([0]), state.select(torch.tensor([1, 2]))])
    assert torch.equal(again.position, torch.tensor([3, 5, 2]))
    for one, other in zip(again.layers, state.layers, strict=True):
        assert torch.equal(one["rho"], other["rho"])
    assert state.select([2, 2, 0]).position.tolist() == [2, 2, 3]


@torch.no_grad()
def test_rows_at_different_positions_read_on_as_if_alone() -> None:
    model = Model(small(), 11).double()
    state = state_after(model, [3, 70])
    tokens = torch.randint(0, 11, (2, 6))
    hidden, after = model(tokens, state)
    for row in range(2):
        alone, _ = model(tokens[row : row + 1], state.select([row]))
        assert float((hidden[row] - alone[0]).abs().max()) < 1e-12
    assert after.position.tolist() == [9, 76]


@pytest.mark.parametrize("memory", ["mamba2", "mamba3", "rwkv8"])
def test_the_recipes_of_the_memories_have_equal_weights(memory: str) -> None:
    """Within 1 %, with the 65 characters of tiny Shakespeare."""
    ours, yardstick = (
        Model(load_config(recipe).model, 65).parameter_count()
        for recipe in (f"shakespeare-{memory}", "shakespeare-cpu")
    )
    assert ours == pytest.approx(yardstick, rel=0.01)


def test_a_state_survives_being_flattened() -> None:
    state = state_after(Model(small(), 11), [4, 1])
    again = State.from_tensors(state.to_tensors())
    assert torch.equal(again.position, state.position)
    for one, other in zip(again.layers, state.layers, strict=True):
        assert one.keys() == other.keys()
        assert torch.equal(one["rho"], other["rho"])


@pytest.mark.parametrize(
    "damage",
    [
        lambda t: t.pop("position"),
        lambda t: t.pop("layers.0.rho"),
        lambda t: t.update(extra=torch.zeros(1)),
        lambda t: t.update(position=torch.zeros(3, dtype=torch.int64)),
    ],
)
def test_a_damaged_state_is_refused(damage: object) -> None:
    tensors = state_after(Model(small(), 11), [4, 1]).to_tensors()
    damage(tensors)
    with pytest.raises(ValueError, match="state"):
        State.from_tensors(tensors)


def test_a_forward_pass_never_changes_the_state_it_was_given() -> None:
    model = Model(small(), 11)
    state = state_after(model, [4])
    before = {name: tensor.clone() for name, tensor in state.to_tensors().items()}
    model(torch.randint(0, 11, (1, 1)), state)
    model(torch.randint(0, 11, (1, 7)), state, reset=torch.tensor([True]))
    for name, tensor in state.to_tensors().items():
        assert torch.equal(tensor, before[name])


@given(
    layers=st.integers(1, 4),
    heads=st.sampled_from([1, 2, 4]),
    width=st.sampled_from([8, 12, 16]),
    multiplier=st.integers(1, 4),
    vocabulary=st.integers(2, 40),
    positions=st.sampled_from(["rope", "alibi", "pope"]),
    rows=st.integers(1, 3),
    tied=st.booleans(),
)
def test_printed_figures_equal_counted_ones(
    layers: int,
    heads: int,
    width: int,
    multiplier: int,
    vocabulary: int,
    positions: str,
    rows: int,
    tied: bool,
) -> None:
    """Parameters by formula, state bytes by the bytes of a real state."""
    total = heads * 2 * width * multiplier
    config = small(
        n_layer=layers,
        n_embd=width,
        n_head=heads,
        latent_total=total,
        rotary_embedding=positions,
        tie_embeddings=tied,
    )
    model = Model(config, vocabulary)
    assert model.parameter_count() == (1 if tied else 2) * vocabulary * width + 3 * total * width
    with torch.no_grad():
        _, state = model(torch.randint(0, vocabulary, (rows, 3)))
    assert state.nbytes() == model.geometry.state_bytes(rows)
    assert model.initial_state(rows).nbytes() == model.geometry.state_bytes(rows)


def saved_bytes(model: Model, rows: int, length: int) -> int:
    """Bytes of distinct storages that autograd keeps between forward and backward, weights left out."""
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        hidden, _ = model(torch.randint(0, 11, (rows, length)), carry=False)
        loss = model.loss_sum(hidden, torch.randint(0, 11, (rows, length)))
    loss.backward()
    return sum(kept.values())


@pytest.mark.parametrize(("rows", "length", "tile"), [(2, 64, 64), (3, 200, 200), (2, 200, 16), (1, 210, 7)])
def test_the_estimate_of_a_step_is_near_what_autograd_keeps(rows: int, length: int, tile: int) -> None:
    """In one tile, and in tiles with a state at every border (which outweigh the neurons where tiles are short)."""
    executor = "dense" if tile == length else "chunked"
    kernel = {"memory_system": "linear_attention", "executor": executor}
    model = Model(small(n_embd=32, latent_total=1024, n_layer=3, sequence_kernel=kernel), 11)
    model.memory.chunk = tile
    model.layer_step = model.layer_step.composed
    measured = saved_bytes(model, rows, length)
    estimate = model.geometry.activation_bytes(rows, length, recompute=False, tile=tile)
    assert 0.7 < estimate / measured < 1.4


def test_recompute_keeps_no_neurons() -> None:
    """What is kept does not depend on the number of neurons."""

    def kept(total: int) -> int:
        model = Model(small(n_embd=32, latent_total=total, n_layer=3), 11, recompute=True)
        return saved_bytes(model, 2, 100)

    assert kept(2048) == kept(256)


def test_every_parameter_declares_its_role() -> None:
    model = Model(small(normalization={"affine": True}), 11)
    roles = {name: role_of(parameter, name) for name, parameter in model.named_parameters()}
    assert roles == {
        "embedding.weight": "embedding",
        "encoder": "matrix",
        "encoder_v": "matrix",
        "decoder": "matrix",
        "lm_head": "head",
        "norm.gain": "gain",
        "norm.bias": "bias",
    }


def test_tied_embedding_and_head_are_one_tensor() -> None:
    model = Model(small(tie_embeddings=True), 11)
    assert model.lm_head is None
    hidden, _ = model(torch.randint(0, 11, (1, 4)))
    model.logits(hidden).sum().backward()
    assert model.head_weight().data_ptr() == model.embedding.weight.data_ptr()
    assert "lm_head" not in model.state_dict()


def test_narrow_layers_take_the_first_neurons_of_every_head() -> None:
    """Encoders and decoder agree on which neurons these are: neurons beyond a layer's width have no effect there."""
    schedule = {"type": "late_layer", "base_latent_total": 8, "last_layers": 1}
    model = Model(small(latent_total=32, latent_fanout_schedule=schedule), 11).double()
    model.layer_step = model.layer_step.composed
    first, last = model.layer_weights()
    assert (first.encoder.shape[2], last.encoder.shape[2]) == (4, 16)
    decoder = model.decoder.view(2, 16, 8)
    assert torch.equal(first.decoder, decoder[:, :4])
    assert torch.equal(first.encoder, model.encoder[..., :4])


def test_fanout_geometry() -> None:
    late = small(
        n_layer=4,
        latent_total=64,
        latent_fanout_schedule={"type": "late_layer", "base_latent_total": 16, "last_layers": 2},
    )
    assert Geometry.of(late, 11).layer_neurons == (8, 8, 32, 32)
    assert Geometry.of(small(n_layer=3), 11).layer_neurons == (8, 8, 8)


def test_observed_sums_are_counts_of_what_fires() -> None:
    model = Model(small(), 11)
    seen: list = []
    tokens = torch.randint(0, 11, (2, 9))
    with torch.no_grad():
        model(tokens, observe=seen)
        plain = model(tokens)[0]
        model.memory.chunk, model.memory.executor = 4, "chunked"
        tiled: list = []
        hidden = model(tokens, observe=tiled)[0]
    assert len(seen) == 2
    assert all(one.tokens == 18 for one in seen)
    torch.testing.assert_close(hidden, plain)
    for one, other in zip(seen, tiled, strict=True):
        assert torch.equal(one.x_firing, other.x_firing)
        assert other.tokens == 18
        assert bool((one.x_firing <= 18).all())
        assert float(one.activity.min()) >= 0
    first = model.norm(model.embedding(tokens))
    by_hand = (torch.einsum("btd,hdn->bhtn", first, model.encoder) > 0).sum((0, 2)).float()
    assert torch.equal(seen[0].x_firing, by_hand)


def test_a_copy_of_a_model_keeps_its_roles() -> None:
    import copy

    model = copy.deepcopy(Model(small(normalization={"affine": True}), 11))
    roles = {name: role_of(parameter, name) for name, parameter in model.named_parameters()}
    assert roles["norm.gain"] == "gain"
    assert roles["encoder"] == "matrix"
    assert roles["lm_head"] == "head"
    averaged = torch.optim.swa_utils.AveragedModel(model)
    assert all(role_of(parameter, name) for name, parameter in averaged.named_parameters())


def test_a_tied_tensor_gets_both_gradients() -> None:
    tied = Model(small(tie_embeddings=True), 11).double()
    apart = Model(small(), 11).double()
    with torch.no_grad():
        apart.load_state_dict({**tied.state_dict(), "lm_head": tied.embedding.weight.t().clone()})
    tokens, targets = torch.randint(0, 11, (2, 6)), torch.randint(0, 11, (2, 6))
    for model in (tied, apart):
        model.loss_sum(model(tokens)[0], targets).backward()
    together = apart.embedding.weight.grad + apart.lm_head.grad.t()
    torch.testing.assert_close(tied.embedding.weight.grad, together, rtol=1e-10, atol=1e-12)


def test_moving_a_state_leaves_its_position_on_the_cpu() -> None:
    moved = state_after(Model(small(), 11), [4, 1]).to("meta")
    assert moved.layers[0]["rho"].device.type == "meta"
    assert moved.position.tolist() == [4, 1]


def test_losses_of_half_precision_logits_are_computed_in_float32() -> None:
    from wyrmling.model.heads.standard import cross_entropy_sum, token_losses

    logits, targets = (torch.randn(3, 5, 40) * 4).bfloat16(), torch.randint(0, 40, (3, 5))
    assert torch.equal(cross_entropy_sum(logits, targets), cross_entropy_sum(logits.float(), targets))
    assert torch.equal(token_losses(logits, targets), token_losses(logits.float(), targets))
