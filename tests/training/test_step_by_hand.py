"""One optimizer step, done again by hand: what is summed, divided, measured, clipped, applied, in which order."""

from __future__ import annotations

import copy

import pytest
import torch

from wyrmling.config.schema.model import Model as ModelConfig
from wyrmling.data.batches import Batch
from wyrmling.errors import DivergedError
from wyrmling.model import Model
from wyrmling.numerics.dropout import Dropout
from wyrmling.optim import Limits
from wyrmling.training.machine import Machine
from wyrmling.training.step import StepOutcome, StepRules, optimizer_step
from wyrmling.watch.profile import StageProfile

OFF: Limits = {"max_norm": None, "max_value": None}


def model() -> Model:
    return Model(ModelConfig(n_layer=2, n_embd=8, n_head=2, latent_total=32), 11, seed=2).double()


def batches(pieces: int = 2) -> list[Batch]:
    """Rows 4..7 of a global batch, of unequal length, in `pieces` micro-batches."""
    generator = torch.Generator().manual_seed(9)
    tokens, targets = torch.randint(0, 11, (2, 4, 6), generator=generator)
    for row, kept in enumerate([6, 2, 5, 1]):
        targets[row, kept:] = -100
    size = 4 // pieces
    return [
        Batch(
            3,
            torch.arange(4 + begin, 4 + begin + size),
            tokens[begin : begin + size],
            targets[begin : begin + size],
            int((targets[begin : begin + size] >= 0).sum()),
            None,
        )
        for begin in range(0, 4, size)
    ]


def taken(
    ours: Model,
    *,
    dropout: float = 0.0,
    limits: Limits = OFF,
    rate: float = 0.5,
    dtype: torch.dtype = torch.float64,
) -> StepOutcome:
    return optimizer_step(
        ours,
        torch.optim.SGD(ours.parameters(), lr=99.0),
        batches(),
        Machine(torch.device("cpu"), dtype, 1, False, ()),
        step=7,
        rate=rate,
        rules=StepRules(dropout, 21, limits),
        profile=StageProfile(),
    )


def by_hand(dropout: float) -> tuple[Model, float, dict[str, torch.Tensor]]:
    """Mean loss over the 14 targets and its gradient, from one batch and the step's own masks."""
    ours = model()
    (whole,) = batches(1)
    key = Dropout(dropout, 21, 7, (4, 5, 6, 7)) if dropout else None
    hidden, _ = ours(whole.tokens, dropout=key)
    loss = ours.token_losses(hidden, whole.targets).sum() / 14
    loss.backward()
    gradients = {name: parameter.grad for name, parameter in ours.named_parameters()}
    return ours, float(loss.detach()), gradients


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_weights_move_against_the_mean_gradient_at_the_given_rate(dropout: float) -> None:
    before, loss, gradients = by_hand(dropout)
    ours = model()
    outcome = taken(ours, dropout=dropout)
    assert outcome.targets == 14
    assert outcome.loss() == pytest.approx(loss, rel=1e-12)
    norm = torch.cat([gradient.flatten() for gradient in gradients.values()]).norm()
    assert outcome.gradient_norm == pytest.approx(float(norm), rel=1e-6)
    for name, parameter in ours.named_parameters():
        expected = before.get_parameter(name) - 0.5 * gradients[name]
        torch.testing.assert_close(parameter, expected, rtol=1e-10, atol=1e-12)


def test_what_is_clipped_is_the_mean_gradient() -> None:
    """A limit above the norm of the mean, and below that of the sum, changes nothing; one below both scales all."""
    before, _, gradients = by_hand(0.0)
    norm = float(torch.cat([gradient.flatten() for gradient in gradients.values()]).norm())
    untouched, clipped = model(), model()
    taken(untouched, limits={"max_norm": norm * 2, "max_value": None})
    outcome = taken(clipped, limits={"max_norm": norm / 4, "max_value": None})
    assert outcome.gradient_norm == pytest.approx(norm, rel=1e-6)
    for name, gradient in gradients.items():
        start = before.get_parameter(name)
        torch.testing.assert_close(
            untouched.get_parameter(name), start - 0.5 * gradient, rtol=1e-10, atol=1e-12
        )
        torch.testing.assert_close(
            clipped.get_parameter(name), start - 0.125 * gradient, rtol=1e-6, atol=1e-9
        )


def test_dropout_belongs_to_the_step_the_seed_and_the_rows() -> None:
    plain, dropped = model(), model()
    assert taken(plain).loss() != taken(dropped, dropout=0.3).loss()


def test_a_bfloat16_step_is_near_the_exact_one_and_not_it() -> None:
    exact = taken(model().float(), dtype=torch.float32)
    low = taken(model().float(), dtype=torch.bfloat16)
    assert low.loss() != exact.loss()
    assert low.loss() == pytest.approx(exact.loss(), rel=1e-2)


def test_nothing_changes_when_a_gradient_is_not_finite() -> None:
    """Not a weight, not a moment, not a counter."""
    ours = model()
    update = torch.optim.AdamW(ours.parameters(), lr=0.1)
    machine = Machine(torch.device("cpu"), torch.float64, 1, False, ())

    def step() -> StepOutcome:
        return optimizer_step(
            ours,
            update,
            batches(),
            machine,
            step=1,
            rate=0.1,
            rules=StepRules(0.0, 1, OFF),
            profile=StageProfile(),
        )

    step()
    before = copy.deepcopy((ours.state_dict(), update.state_dict()["state"]))
    handle = ours.encoder.register_hook(lambda gradient: gradient * float("nan"))
    with pytest.raises(DivergedError, match="the gradient of encoder"):
        step()
    handle.remove()
    for name, tensor in ours.state_dict().items():
        assert torch.equal(tensor, before[0][name])
    for index, slots in update.state_dict()["state"].items():
        for name, tensor in slots.items():
            assert torch.equal(tensor, before[1][index][name])


def test_gradients_that_somebody_left_behind_do_not_count() -> None:
    clean, littered = model(), model()
    littered.loss_sum(littered(batches(1)[0].tokens)[0], batches(1)[0].targets).backward()
    assert taken(littered).gradient_norm == taken(clean).gradient_norm
