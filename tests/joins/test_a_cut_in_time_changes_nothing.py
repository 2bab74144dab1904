"""Law 2: the whole pass, chunks of any sizes and single tokens agree: outputs, states and gradients."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agreement import POSITIONS, TOLERANCE, assert_equal, build, naive, prefix_state, run
from wyrmling.numerics.dropout import Dropout


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("executor", ["dense", "chunked"])
@settings(max_examples=8)
@given(data=st.data())
def test_every_executor_and_cut_equals_the_loop(positions: str, executor: str, data: st.DataObject) -> None:
    """Values, final state, gradients of weights and initial state; odd lengths, any split, rows apart."""
    model = build(positions, executor=executor)
    if data.draw(st.booleans(), "composed"):
        model.layer_step = model.layer_step.composed
    model.memory.chunk = data.draw(st.integers(1, 9), "chunk")
    model.layer_step.recompute = data.draw(st.booleans(), "recompute")
    rows = data.draw(st.integers(1, 3), "rows")
    length = data.draw(st.integers(1, 23), "length")
    drawn = data.draw(st.sets(st.integers(1, 22), max_size=4), "cuts")
    cuts = sorted(cut for cut in drawn if cut < length)
    seed = data.draw(st.integers(0, 1000), "seed")
    tokens = torch.randint(0, 13, (rows, length), generator=torch.Generator().manual_seed(seed))
    state = prefix_state(model, rows, seed) if data.draw(st.booleans(), "carried") else None
    assert_equal(run(model, tokens, state, cuts), naive(model, tokens, state))


@pytest.mark.parametrize("positions", POSITIONS)
def test_token_by_token_equals_the_whole_pass(positions: str) -> None:
    model = build(positions)
    tokens = torch.randint(0, 13, (2, 17))
    state = prefix_state(model, 2, 3)
    assert_equal(run(model, tokens, state, list(range(1, 17))), naive(model, tokens, state))


@pytest.mark.parametrize("positions", POSITIONS)
def test_blocks_of_scores_longer_than_one_row_block(positions: str) -> None:
    """More than 128 tokens, not a multiple: several blocks of rows in the dense form."""
    model = build(positions, executor="dense")
    tokens = torch.randint(0, 13, (1, 261))
    assert_equal(run(model, tokens, None, [130]), naive(model, tokens, None))


@pytest.mark.parametrize(
    "schedule",
    [
        {"type": "late_layer", "base_latent_total": 16, "last_layers": 1},
        {"type": "geometric", "min_latent_total": 16},
    ],
)
def test_narrow_layers_obey_too(schedule: dict[str, object]) -> None:
    model = build("rope", neurons=8, latent_fanout_schedule=schedule)
    assert len(set(model.geometry.layer_neurons)) > 1
    tokens = torch.randint(0, 13, (2, 11))
    state = prefix_state(model, 2, 1)
    assert_equal(run(model, tokens, state, [4, 5]), naive(model, tokens, state))


def test_dropout_masks_do_not_move_with_the_cut() -> None:
    """Masks are a function of the position: with dropout on, a cut still changes nothing."""
    model = build("rope")
    tokens = torch.randint(0, 13, (2, 150))
    key = Dropout(0.3, seed=1, step=4, rows=(7, 2))
    whole = run(model, tokens, None, [], key)
    assert_equal(run(model, tokens, None, [1, 63, 64, 70], key), whole)
    model.layer_step.recompute = True
    assert_equal(run(model, tokens, None, [65], key), whole)
    assert float((run(model, tokens, None, []).hidden - whole.hidden).abs().max()) > 1e-3


@pytest.mark.parametrize("positions", POSITIONS)
@settings(max_examples=8)
@given(data=st.data())
def test_a_row_reset_alone_behaves_as_new(positions: str, data: st.DataObject) -> None:
    """The reset row equals a fresh one; its neighbours do not notice."""
    model = build(positions)
    rows, length = data.draw(st.integers(2, 4)), data.draw(st.integers(1, 9))
    which = data.draw(st.integers(0, rows - 1))
    tokens = torch.randint(0, 13, (rows, length), generator=torch.Generator().manual_seed(length))
    state = prefix_state(model, rows, 2)
    reset = torch.arange(rows) == which
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    hidden, after = model(tokens, state, reset=reset)
    kept, kept_after = model(tokens, state)
    fresh, fresh_after = model(tokens[which : which + 1], None)
    assert float((hidden[which] - fresh[0]).abs().max()) < TOLERANCE
    assert int(after.position[which]) == length
    for layer, alone, untouched in zip(after.layers, fresh_after.layers, kept_after.layers, strict=True):
        assert float((layer["rho"][which] - alone["rho"][0]).abs().max()) < TOLERANCE
        others = ~reset
        assert float((layer["rho"][others] - untouched["rho"][others]).abs().max()) < TOLERANCE
    assert float((hidden[~reset] - kept[~reset]).abs().max()) < TOLERANCE


@torch.no_grad()
def test_a_reset_row_forgets_even_nan() -> None:
    model = build("rope")
    state = prefix_state(model, 2, 0)
    for layer in state.layers:
        layer["rho"][1] = float("nan")
    hidden, after = model(torch.randint(0, 13, (2, 5)), state, reset=torch.tensor([False, True]))
    assert bool(torch.isfinite(hidden).all())
    assert all(bool(torch.isfinite(layer["rho"]).all()) for layer in after.layers)


def test_a_detached_state_stops_the_gradient_and_only_that() -> None:
    """Values stay; the gradient is that of the last piece with its state as a constant."""
    model = build("rope")
    tokens = torch.randint(0, 13, (1, 12))
    _, state = model(tokens[:, :7])
    detached = state.detach()
    assert not any(t.requires_grad for layer in detached.layers for t in layer.values())
    attached_hidden, _ = model(tokens[:, 7:], state)
    hidden, _ = model(tokens[:, 7:], detached)
    assert torch.equal(hidden, attached_hidden)
    model.zero_grad()
    hidden.sum().backward()
    constant = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    copies = detached.map(torch.Tensor.clone)
    model.zero_grad()
    model(tokens[:, 7:], copies)[0].sum().backward()
    for name, gradient in constant.items():
        assert torch.equal(gradient, dict(model.named_parameters())[name].grad)


@torch.no_grad()
def test_float32_agrees_within_float32() -> None:
    model = build("rope", neurons=16).float()
    tokens = torch.randint(0, 13, (2, 65))
    whole, state = model(tokens)
    for cuts in ([1], [16, 17, 33], [64]):
        current, outputs = None, []
        for begin, end in zip([0, *cuts], [*cuts, 65], strict=True):
            hidden, current = model(tokens[:, begin:end], current)
            outputs.append(hidden)
        assert float((torch.cat(outputs, 1) - whole).abs().max()) < 1e-4
        assert current.layers[0]["rho"].dtype == torch.float32
        relative = (current.layers[2]["rho"] - state.layers[2]["rho"]).abs().max() / state.layers[2][
            "rho"
        ].abs().max()
        assert float(relative) < 1e-4


@torch.no_grad()
def test_no_token_depends_on_later_ones() -> None:
    model = build("rope")
    tokens = torch.randint(0, 13, (1, 20))
    changed = tokens.clone()
    changed[0, 12] = (changed[0, 12] + 1) % 13
    before, after = model(tokens)[0], model(changed)[0]
    assert float((before[:, :12] - after[:, :12]).abs().max()) < TOLERANCE
    assert float((before[:, 12:] - after[:, 12:]).abs().max()) > 1e-6


def test_no_tokens_is_the_identity_on_the_state() -> None:
    model = build("rope")
    state = prefix_state(model, 2, 1)
    hidden, after = model(torch.zeros(2, 0, dtype=torch.int64), state)
    assert hidden.shape == (2, 0, 8)
    assert after is state


def test_no_rows_is_a_pass_like_any_other() -> None:
    model = build("rope")
    hidden, after = model(torch.zeros(0, 5, dtype=torch.int64))
    assert hidden.shape == (0, 5, 8)
    assert after.rows == 0


def test_a_state_of_other_rows_is_refused_not_broadcast() -> None:
    model = build("rope")
    _, state = model(torch.randint(0, 13, (1, 3)))
    with pytest.raises(ValueError, match="1 rows, the tokens have 4"):
        model(torch.randint(0, 13, (4, 3)), state)


@pytest.mark.parametrize("recompute", [False, True])
def test_gradients_do_not_depend_on_whether_the_final_state_is_wanted(recompute: bool) -> None:
    """What every training step does: several tiles, the last state dropped; gradients flow through the others."""
    model = build("rope", executor="chunked")
    model.memory.chunk, model.layer_step.recompute = 4, recompute
    tokens, targets = torch.randint(0, 13, (2, 11)), torch.randint(0, 13, (2, 11))

    def gradients(carry: bool) -> dict[str, torch.Tensor]:
        model.zero_grad(set_to_none=True)
        model.loss_sum(model(tokens, carry=carry)[0], targets).backward()
        return {name: parameter.grad for name, parameter in model.named_parameters()}

    kept, dropped = gradients(True), gradients(False)
    model.memory.executor = "naive"
    exact = gradients(True)
    for name, gradient in exact.items():
        torch.testing.assert_close(dropped[name], gradient, rtol=1e-9, atol=1e-10)
        torch.testing.assert_close(kept[name], gradient, rtol=1e-9, atol=1e-10)
