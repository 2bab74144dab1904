"""The fused layer is the layer: whatever its cuts, options and uses, it gives what the loop over tokens gives."""

from __future__ import annotations

import copy
import gc
import pickle
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from agreement import POSITIONS, Outcome, assert_equal, build, naive, prefix_state, run
from wyrmling.model import Model
from wyrmling.model.fused import planning
from wyrmling.model.fused.executor import FusedWeights
from wyrmling.numerics.dropout import Dropout

NORMS = ("layer_norm", "rms_norm", "dynamic_tanh", "derf")


def fused(positions: str, *, executor: str = "fused", **changes: Any) -> Model:
    model = build(positions, executor=executor, **changes)
    assert all(isinstance(weights, FusedWeights) for weights in model.layer_weights())
    return model


def draw_tokens(rows: int, length: int, seed: int = 0) -> Tensor:
    return torch.randint(0, 13, (rows, length), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("positions", POSITIONS)
@settings(max_examples=15)
@given(data=st.data())
def test_any_cut_of_the_work_gives_what_the_loop_gives(positions: str, data: st.DataObject) -> None:
    """Chunks, kept or rolled-back states, rows and heads per tile, recompute, thresholds, norms, rows apart."""
    model = fused(
        positions,
        executor=data.draw(st.sampled_from(["dense", "chunked"]), "form"),
        relu_threshold=data.draw(st.sampled_from([0.0, 0.05]), "threshold"),
        normalization={
            "kind": data.draw(st.sampled_from(NORMS), "norm"),
            "affine": data.draw(st.booleans(), "affine"),
        },
        tie_embeddings=data.draw(st.booleans(), "tied"),
    )
    step = model.layer_step
    step.recompute = data.draw(st.booleans(), "recompute")
    step.chunk = data.draw(st.integers(1, 9), "chunk")
    step.keep_every = data.draw(st.sampled_from([None, 1, 2, 3]), "keep every")
    length = data.draw(st.integers(1, 23), "length")
    rows = data.draw(st.integers(1, 3), "rows")
    tokens = draw_tokens(rows, length, data.draw(st.integers(0, 99), "seed"))
    state = prefix_state(model, rows, 5) if data.draw(st.booleans(), "carried") else None
    numbers = data.draw(st.sampled_from([1, 100, 400, 1 << 20]), "numbers per tile")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planning, "TILE_NUMBERS", numbers)
        found = run(model, tokens, state, [])
    assert_equal(found, naive(model, tokens, state))


def test_slabs_of_the_eager_kernels_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    model = fused("rope")
    tokens, state = draw_tokens(3, 19), prefix_state(model, 3, 2)
    truth = naive(model, tokens, state)
    for slab in (1, 100, 1000):
        monkeypatch.setattr("wyrmling.model.fused.kernels.SLAB", slab)
        assert_equal(run(model, tokens, None, []), naive(model, tokens, None))
        assert_equal(run(model, tokens, state, []), truth)


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("executor", ["dense", "chunked"])
def test_narrow_layers_share_the_first_neurons(positions: str, executor: str) -> None:
    schedule = {"type": "late_layer", "base_latent_total": 16, "last_layers": 1}
    model = fused(positions, executor=executor, neurons=8, latent_fanout_schedule=schedule)
    model.layer_step.chunk = 4
    tokens, state = draw_tokens(2, 11), prefix_state(model, 2, 1)
    assert_equal(run(model, tokens, state, [4, 5]), naive(model, tokens, state))


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("executor", ["dense", "chunked"])
@pytest.mark.parametrize("positions", POSITIONS)
def test_dropout_is_that_of_the_composed_layer(positions: str, executor: str, recompute: bool) -> None:
    """The masks, replayed in the backward pass; also where chunks do not end with the tiles of the masks."""
    model = fused(positions, executor=executor)
    model.layer_step.recompute, model.layer_step.chunk = recompute, 37
    key = Dropout(0.3, seed=1, step=4, rows=(7, 2))
    tokens, state = draw_tokens(2, 100), prefix_state(model, 2, 1)
    found = run(model, tokens, state, [], key)
    cut = run(model, tokens, state, [1, 40, 64], key)
    model.layer_step = model.layer_step.composed
    truth = run(model, tokens, state, [], key)
    assert_equal(found, truth)
    assert_equal(cut, truth)


@pytest.mark.parametrize("rate", [0.0, 0.3])
@pytest.mark.parametrize("positions", POSITIONS)
def test_what_is_observed_is_the_same(positions: str, rate: float) -> None:
    model = fused(positions, executor="chunked")
    model.layer_step.chunk = 5
    key = Dropout(rate, seed=1, step=4, rows=(0, 1)) if rate else None
    seen: list[list[Any]] = [[], []]
    tokens = draw_tokens(2, 23)
    model(tokens, observe=seen[0], dropout=key)
    model.layer_step = model.layer_step.composed
    model(tokens, observe=seen[1], dropout=key)
    for one, other in zip(*seen, strict=True):
        assert one.tokens == other.tokens
        for a, b in zip(one[:3], other[:3], strict=True):
            torch.testing.assert_close(a.double(), b.double(), rtol=1e-5, atol=1e-5)


def test_a_reset_row_forgets_everything_even_what_is_not_a_number() -> None:
    model = fused("alibi", executor="chunked")
    model.layer_step.chunk = 3
    state = prefix_state(model, 2, 1)
    poisoned = state.map(lambda t: torch.where(torch.tensor([True, False]).view(2, 1, 1, 1), torch.nan, t))
    tokens = draw_tokens(2, 8)
    hidden, after = model(tokens, poisoned, reset=torch.tensor([True, False]))
    fresh, _ = model(tokens[:1])
    torch.testing.assert_close(hidden[:1], fresh, rtol=0, atol=1e-12)
    torch.testing.assert_close(hidden[1:], model(tokens[1:], state.select([1]))[0], rtol=0, atol=1e-12)
    assert after.position.tolist() == [8, 8 + int(state.position[1])]


def layer_inputs(model: Model) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(3)
    hidden = torch.randn(2, 7, 8, generator=generator, dtype=torch.float64)
    rho = torch.randn(2, 2, model.memory.key_width, 8, generator=generator, dtype=torch.float64)
    weights = (model.encoder, model.encoder_v, model.decoder)
    return tuple(t.detach().clone().requires_grad_() for t in (hidden, rho, *weights))


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("executor", ["dense", "chunked"])
def test_gradients_by_differences(positions: str, executor: str) -> None:
    model = fused(positions, executor=executor, n_layer=1, neurons=1 if positions == "alibi" else 2)
    model.layer_step.chunk = 3

    def layer(hidden: Tensor, rho: Tensor, encoder: Tensor, encoder_v: Tensor, decoder: Tensor) -> Any:
        matrices = encoder, encoder_v, decoder.view(2, -1, 8)
        (weights,) = model.layer_step.prepare(*matrices, model.geometry.layer_neurons)
        out, state, _ = model.layer_step(
            weights, hidden, {"rho": rho}, position=torch.tensor([3, 50]), layer=0
        )
        return out, state["rho"]

    assert torch.autograd.gradcheck(layer, layer_inputs(model), fast_mode=True)


def test_a_second_derivative_fails_instead_of_being_wrong() -> None:
    model = fused("rope")
    hidden, _ = model(draw_tokens(1, 5), carry=False)
    (gradient,) = torch.autograd.grad(hidden.square().sum(), [model.embedding.weight], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


def test_every_backward_pass_counts_once() -> None:
    """Twice over one graph, after a pass for the state alone, and over two graphs: sums are those of each pass."""
    model = fused("rope", executor="chunked")
    model.layer_step.chunk = 4
    state = prefix_state(model, 2, 1).map(lambda t: t.requires_grad_())
    hidden, _ = model(draw_tokens(2, 9), state, carry=False)
    loss = hidden.square().sum()
    torch.autograd.grad(loss, [layer["rho"] for layer in state.layers], retain_graph=True)
    loss.backward(retain_graph=True)
    once = model.encoder.grad.clone()
    loss.backward()
    torch.testing.assert_close(model.encoder.grad, 2 * once)
    other, _ = model(draw_tokens(2, 9), state, carry=False)
    model.zero_grad(set_to_none=True)
    last, _ = model(draw_tokens(2, 9), state, carry=False)
    (other.square().sum() + last.square().sum()).backward()
    torch.testing.assert_close(model.encoder.grad, 2 * once)


def test_frozen_weights_get_no_gradient_and_the_others_theirs() -> None:
    model = fused("rope")
    tokens = draw_tokens(2, 9)
    truth = run(model, tokens, None, [])
    model.encoder.requires_grad_(False)
    some = run(model, tokens, None, [])
    assert "encoder" not in some.gradients
    truth.gradients.pop("encoder")
    assert_equal(some, truth)
    for weight in (model.encoder_v, model.decoder):
        weight.requires_grad_(False)
    few = run(model, tokens, None, [])
    assert set(few.gradients) == {"embedding.weight"} | (set(few.gradients) & {"lm_head"})
    torch.testing.assert_close(few.gradients["embedding.weight"], truth.gradients["embedding.weight"])


@pytest.mark.parametrize("used", ["hidden", "state"])
def test_a_loss_of_one_output_alone(used: str) -> None:
    model = fused("rope", executor="chunked", n_layer=1)
    model.layer_step.chunk = 4
    tokens = draw_tokens(2, 9)

    def gradients() -> dict[str, Tensor]:
        model.zero_grad(set_to_none=True)
        hidden, state = model(tokens)
        (hidden if used == "hidden" else state.layers[0]["rho"]).square().sum().backward()
        return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}

    found = gradients()
    model.layer_step = model.layer_step.composed
    for name, truth in gradients().items():
        torch.testing.assert_close(found.get(name, torch.zeros_like(truth)), truth, rtol=1e-9, atol=1e-9)


def test_nothing_is_remembered_between_passes() -> None:
    """Weights and frequencies that are changed in place, copies, pickles: the next pass sees what is there then."""
    model = fused("rope")
    tokens = draw_tokens(2, 9)
    model(tokens)
    with torch.no_grad():
        model.encoder.mul_(-1.5)
        model.memory.frequencies.mul_(1.25)
    assert_equal(run(model, tokens, None, []), naive(model, tokens, None))
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        with torch.no_grad():
            twin.encoder.mul_(0.5)
        assert_equal(run(twin, tokens, None, []), naive(twin, tokens, None))
    assert_equal(run(model, tokens, None, []), naive(model, tokens, None))


def test_a_graph_is_gone_without_the_collector() -> None:
    """No cycle holds the neurons of a step that is over."""
    model = fused("rope")

    def tensors() -> int:
        return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())

    def step() -> None:
        model.zero_grad(set_to_none=True)
        hidden, _ = model(draw_tokens(2, 9), carry=False)
        hidden.sum().backward()
        model.zero_grad(set_to_none=True)

    step()
    gc.collect()
    gc.disable()
    try:
        before = tensors()
        for _ in range(3):
            step()
        assert tensors() <= before
    finally:
        gc.enable()


def test_the_same_bits_every_time() -> None:
    model = fused("rope", executor="chunked").float()
    model.layer_step.chunk = 4

    def bits() -> Outcome:
        return run(model, draw_tokens(2, 23), None, [])

    one, other = bits(), bits()
    assert torch.equal(one.hidden, other.hidden)
    for name, gradient in one.gradients.items():
        assert torch.equal(gradient, other.gradients[name]), name


def relative(found: Tensor, truth: Tensor) -> float:
    return float((found.double() - truth).norm() / truth.norm())


@pytest.mark.parametrize("recompute", [False, True])
def test_bfloat16_is_no_worse_than_that_of_the_composed_layer(recompute: bool) -> None:
    model = build("rope", neurons=64, n_embd=32, executor="fused")
    tokens, targets = draw_tokens(4, 96), draw_tokens(4, 96, 1)

    def gradients(low: bool) -> dict[str, Tensor]:
        model.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=low):
            hidden, _ = model(tokens, carry=False)
            loss = model.loss_sum(hidden, targets)
        loss.backward()
        found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        return {"hidden": hidden.detach(), **found}

    truth = gradients(low=False)
    model.float()
    model.layer_step.recompute = recompute
    ours = gradients(low=True)
    model.layer_step = model.layer_step.composed
    composed = gradients(low=True)
    for name, exact in truth.items():
        assert relative(ours[name], exact) < 1.25 * relative(composed[name], exact) + 1e-3, name


def test_float32_agrees_but_for_a_flipped_neuron() -> None:
    """A pre-activation next to zero may fall on the other side: few entries may differ by more than rounding."""
    model = build("rope", neurons=64, n_embd=32, executor="chunked")
    model.layer_step.chunk = 40
    tokens = draw_tokens(3, 150)
    truth = run(model, tokens, None, [])
    model.float()
    found = run(model, tokens, None, [])
    assert relative(found.hidden, truth.hidden) < 1e-3
    for name, exact in truth.gradients.items():
        assert relative(found.gradients[name], exact) < 2e-2, name


@pytest.mark.parametrize("keep_every", [0, 8])
def test_states_found_again_are_those_that_were_there(keep_every: int) -> None:
    """float32, 64 chunks: rolled back, or run forward from every eighth, against all kept."""
    model = build("rope", executor="chunked", n_layer=1).float()
    model.layer_step.chunk = 16
    tokens = draw_tokens(1, 1024)
    model.layer_step.keep_every = 1
    truth = run(model, tokens, None, [])
    model.layer_step.keep_every = keep_every
    found = run(model, tokens, None, [])
    for name, exact in truth.gradients.items():
        assert relative(found.gradients[name], exact.double()) < 1e-5, name


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_states_of_sixty_five_thousand_tokens() -> None:
    """float32: every k-th state kept, k by the plan, against all kept."""
    model = build("rope", executor="chunked", n_layer=1).float()
    model.layer_step.chunk, model.layer_step.recompute = 128, True
    tokens = draw_tokens(1, 65536)
    assert model.layer_step.plan(1, 65536, torch.float32).keep_every > 1
    found = run(model, tokens, None, [])
    model.layer_step.keep_every = 1
    truth = run(model, tokens, None, [])
    for name, exact in truth.gradients.items():
        assert relative(found.gradients[name], exact.double()) < 1e-5, name


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("carried", [False, True])
def test_a_loss_on_one_state_gives_every_executor_the_same_gradients(
    positions: str, recompute: bool, carried: bool
) -> None:
    """Numbers where it depends on a weight, and none where it does not: on no gate before the second layer's state."""
    tokens = draw_tokens(2, 23)
    found: dict[str, list[dict[str, Tensor | None]]] = {}
    for executor in ("fused", "dense", "composed", "naive"):
        model = build(positions, executor="composed" if executor == "naive" else executor)
        model.memory.executor = "naive" if executor == "naive" else model.memory.executor
        model.layer_step.recompute = recompute
        state = prefix_state(model, 2, 3) if carried else None
        for index in range(3):
            model.zero_grad(set_to_none=True)
            _, after = model(tokens, state)
            after.layers[index]["rho"].square().sum().backward()
            found.setdefault(executor, []).append({name: p.grad for name, p in model.named_parameters()})
    for index, expected in enumerate(found["naive"]):
        assert (expected["decoder"] is None) == (expected["encoder_v"] is None) == (index == 0)
        assert expected["lm_head"] is None
        for executor in ("fused", "dense", "composed"):
            for name, gradient in expected.items():
                one = found[executor][index][name]
                assert (one is None) == (gradient is None), (executor, index, name)
                if gradient is not None:
                    scale = max(1.0, float(gradient.abs().max()))
                    assert float((one - gradient).abs().max()) / scale < 1e-10, (executor, index, name)
