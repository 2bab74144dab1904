"""What happens around a fused layer: changed weights, failures, threads, modes, several models, what stays alive."""

from __future__ import annotations

import gc
import pickle
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from agreement import POSITIONS, Outcome, assert_equal, build, naive, prefix_state, run
from wyrmling.model import Model
from wyrmling.model.fused import executor as module
from wyrmling.model.fused import planning
from wyrmling.model.fused.block import Decays
from wyrmling.model.layer import Observed
from wyrmling.numerics.dropout import Dropout
from wyrmling.watch.survey import find_compiler

TOKENS = torch.randint(0, 13, (2, 23), generator=torch.Generator().manual_seed(4))


def chunked(positions: str, **changes: Any) -> Model:
    model = build(positions, executor="chunked", **changes)
    model.layer_step.chunk = 5
    return model


def gradients(model: Model) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def assert_same(found: dict[str, Tensor], truth: dict[str, Tensor], factor: float = 1.0) -> None:
    assert found.keys() == truth.keys()
    for name, exact in truth.items():
        torch.testing.assert_close(found[name], factor * exact, rtol=1e-10, atol=1e-10, msg=name)


def equal_bits(one: Outcome, other: Outcome) -> bool:
    return torch.equal(one.hidden, other.hidden) and all(
        torch.equal(one.gradients[name], gradient) for name, gradient in other.gradients.items()
    )


@pytest.mark.parametrize("weight", ["encoder", "encoder_v", "decoder"])
@pytest.mark.parametrize("positions", POSITIONS)
def test_weights_changed_before_the_backward_pass_are_an_error(positions: str, weight: str) -> None:
    """As everywhere in PyTorch: the gradient would be that of neither the old nor the new weights."""
    model = chunked(positions)
    hidden, _ = model(TOKENS, carry=False)
    with torch.no_grad():
        getattr(model, weight).mul_(1.5)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        hidden.square().sum().backward()
    hidden, _ = model(TOKENS, carry=False)
    hidden.square().sum().backward()


def test_a_decaying_state_is_never_rolled_back() -> None:
    model = chunked("alibi")
    model.layer_step.keep_every = 0
    assert_equal(run(model, TOKENS, None, []), naive(model, TOKENS, None))


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("carry", [False, True])
@pytest.mark.parametrize("positions", POSITIONS)
def test_a_state_that_wants_no_gradient(positions: str, carry: bool, recompute: bool) -> None:
    """Rows at unequal positions, a state without gradient: weights get what the composed layer gives them."""
    model = chunked(positions)
    model.layer_step.recompute = recompute
    state = prefix_state(model, 2, 3)
    assert len(set(state.position.tolist())) == 2

    def both() -> tuple[Tensor, dict[str, Tensor]]:
        model.zero_grad(set_to_none=True)
        hidden, after = model(TOKENS, state, carry=carry)
        loss = hidden.square().sum()
        if after is not None:
            loss = loss + after.layers[-1]["rho"].square().sum()
        loss.backward()
        return hidden.detach(), gradients(model)

    hidden, found = both()
    model.layer_step = model.layer_step.composed
    truth, exact = both()
    assert_same({"hidden": hidden, **found}, {"hidden": truth, **exact})


@pytest.mark.parametrize("numbers", [1, 250])
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("positions", POSITIONS)
def test_masks_and_sums_of_small_tiles(
    positions: str, recompute: bool, numbers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dropout, observation and narrow layers where a tile is one row and head, or some: as the composed layer."""
    monkeypatch.setattr(planning, "TILE_NUMBERS", numbers)
    schedule = {"type": "late_layer", "base_latent_total": 16, "last_layers": 1}
    model = chunked(positions, neurons=8, latent_fanout_schedule=schedule)
    model.layer_step.recompute = recompute
    tokens, state, key = TOKENS.repeat(2, 1)[:3], prefix_state(model, 3, 2), Dropout(0.4, 1, 4, (7, 2, 5))
    assert model.layer_step.plan(3, 23, torch.float64).rows < 3

    def both() -> tuple[Outcome, list[Observed]]:
        seen: list[Observed] = []
        model(tokens, state, dropout=key, observe=seen)
        return run(model, tokens, state, [], key), seen

    found, seen = both()
    model.layer_step = model.layer_step.composed
    truth, expected = both()
    assert_equal(found, truth)
    for one, other in zip(seen, expected, strict=True):
        assert one.tokens == other.tokens
        for a, b in zip(one[:3], other[:3], strict=True):
            torch.testing.assert_close(a.double(), b.double(), rtol=1e-5, atol=1e-5)


def test_one_token_of_one_row_from_a_state() -> None:
    for positions in POSITIONS:
        model = chunked(positions)
        state = prefix_state(model, 1, 0)
        assert_equal(run(model, TOKENS[:1, :1], state, []), naive(model, TOKENS[:1, :1], state))


def test_passes_side_by_side_do_not_mix() -> None:
    """Two models and two passes of each, forward before any goes backward, in another order: sums of each alone."""
    models = [chunked("rope"), chunked("rope", neurons=4)]
    parts = [TOKENS, TOKENS.flip(1)]

    def loss(model: Model, tokens: Tensor) -> Tensor:
        return model(tokens, carry=False)[0].pow(3).sum()

    truths = []
    for model in models:
        for tokens in parts:
            loss(model, tokens).backward()
        truths.append(gradients(model))
        model.zero_grad(set_to_none=True)
    losses = [loss(model, tokens) for tokens in parts for model in models]
    for value in (losses[2], losses[1], losses[0], losses[3]):
        value.backward()
    for model, truth in zip(models, truths, strict=True):
        assert_same(gradients(model), truth)


def test_a_backward_pass_that_failed_leaves_nothing_behind() -> None:
    """It fails below the last layer, which has summed its part already; the next pass over the graph is whole."""
    model = chunked("pope")
    state = prefix_state(model, 2, 1).map(lambda t: t.requires_grad_())
    hidden, _ = model(TOKENS, state, carry=False)
    truth = torch.autograd.grad(hidden.square().sum(), [model.encoder], retain_graph=True)[0]
    loss = hidden.square().sum()
    handle = state.layers[1]["rho"].register_hook(lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        loss.backward(retain_graph=True)
    handle.remove()
    model.zero_grad(set_to_none=True)
    loss.backward()
    torch.testing.assert_close(model.encoder.grad, truth, rtol=1e-12, atol=1e-12)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[weakref.ref[Any]]]:
    """What passes hold besides saved tensors, watched; the collector of cycles is off."""
    seen: list[weakref.ref[Any]] = []

    class Watched(module.LayerCall):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            seen.extend(weakref.ref(thing) for thing in (self, self.workspace, self.shared))

    monkeypatch.setattr(module, "LayerCall", Watched)
    gc.collect()
    gc.disable()
    yield seen
    gc.enable()


@pytest.mark.parametrize("ends", ["backward", "unused", "failed"])
@pytest.mark.parametrize("positions", POSITIONS)
def test_what_a_pass_held_is_gone_with_it(positions: str, ends: str, calls: list[weakref.ref[Any]]) -> None:
    model = chunked(positions)
    state = prefix_state(model, 2, 1).map(lambda t: t.requires_grad_())
    calls.clear()
    hidden, after = model(TOKENS, state)
    assert sum(call() is not None for call in calls) == len(calls) > 0
    loss = hidden.sum() + after.layers[0]["rho"].sum()
    if ends == "failed":
        hidden.register_hook(lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            loss.backward()
    elif ends == "backward":
        loss.backward()
    del hidden, after, loss, state
    assert not [call() for call in calls if call() is not None]


def test_layers_share_the_powers_of_the_decay(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[int, int]] = []
    original = Decays.of

    def counted(decay: Tensor, rows: int, length: int, dtype: torch.dtype) -> Decays:
        made.append((rows, length))
        found = original(decay, rows, length, dtype)
        assert found.between.shape == (len(decay), length, length)  # the same for all rows
        return found

    monkeypatch.setattr(Decays, "of", counted)
    run(chunked("alibi"), TOKENS, None, [])
    assert sorted(made) == [(2, 3), (2, 5)]  # 23 tokens by 5, once for three layers and both directions


def test_copies_and_pickles_do_not_grow_with_use() -> None:
    model = chunked("rope", neurons=64)
    size = len(pickle.dumps(model))
    model(TOKENS.repeat(1, 20))
    assert len(pickle.dumps(model)) < size + 2000


@pytest.mark.parametrize("positions", POSITIONS)
def test_training_after_reading_in_inference_mode(positions: str) -> None:
    model = chunked(positions)
    with torch.inference_mode():
        read, _ = model(TOKENS.repeat(1, 10))
    found = run(model, TOKENS.repeat(1, 10), None, [])
    torch.testing.assert_close(found.hidden, read.clone(), rtol=1e-12, atol=1e-12)
    assert_equal(found, naive(model, TOKENS.repeat(1, 10), None))


def test_the_backward_pass_has_no_modes_of_its_own() -> None:
    """Autocast around the backward pass, or around the forward pass alone: the same bits."""
    model = chunked("rope", normalization={"kind": "derf", "affine": True}).float()
    found = []
    for around in (False, True):
        model.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(TOKENS, carry=False)[0].square().sum()
        with torch.autocast("cpu", torch.bfloat16, enabled=around):
            loss.backward()
        found.append(gradients(model))
    for name, gradient in found[0].items():
        assert torch.equal(gradient, found[1][name]), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_thread_and_two_give_the_same_bits(dtype: torch.dtype) -> None:
    """Tiles of more than 32,768 numbers, which is where PyTorch starts to share out elementwise work."""
    model = build("pope", neurons=64, n_embd=32, n_layer=1, executor="chunked").float()
    model.layer_step.chunk = 50
    tokens, outcomes = TOKENS.repeat(1, 5), []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
                outcomes.append(run(model, tokens, None, []))
    finally:
        torch.set_num_threads(1)
    assert equal_bits(*outcomes)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler")
@pytest.mark.parametrize("positions", ["rope", "alibi"])
def test_a_model_with_compiled_kernels(positions: str) -> None:
    """float64, so that no neuron flips: every kind of size that a run meets, rows apart, with and without masks."""
    model = build(positions, executor="chunked")
    model.layer_step.kernels = "compiled"
    for rows, length, chunk in (
        (2, 23, 5),
        (1, 23, 5),
        (2, 21, 5),
        (1, 21, 4),
    ):  # the last chunk: 3 or 1 tokens
        model.layer_step.chunk = chunk
        for state in (None, prefix_state(model, rows, 1)):
            tokens = TOKENS[:rows, :length]
            assert_equal(run(model, tokens, state, []), naive(model, tokens, state))
    with torch.inference_mode():
        read, _ = model(TOKENS.repeat(1, 10))
    model.layer_step.kernels = "eager"
    torch.testing.assert_close(model(TOKENS.repeat(1, 10))[0], read.clone(), rtol=1e-10, atol=1e-10)
