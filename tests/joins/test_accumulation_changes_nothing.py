"""Law 5: rows cut into micro-batches give the step of the whole batch, whatever number of targets a row has."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import wyrmling
from wyrmling.config import Config
from wyrmling.config.schema.model import Model as ModelConfig
from wyrmling.data.batches import Batch
from wyrmling.model import Model
from wyrmling.training.machine import Machine
from wyrmling.training.step import StepOutcome, StepRules, optimizer_step
from wyrmling.watch.profile import StageProfile

MACHINE = Machine(torch.device("cpu"), torch.float64, 1, False, ())


def rows_of_unequal_length() -> tuple[torch.Tensor, torch.Tensor]:
    """Eight rows with 3 to 16 targets, the rest ignored."""
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randint(0, 11, (8, 16), generator=generator)
    targets = torch.randint(0, 11, (8, 16), generator=generator)
    for row, kept in enumerate([3, 16, 9, 5, 12, 4, 7, 10]):
        targets[row, kept:] = -100
    return tokens, targets


def step(size: int, *, dropout: float = 0.0, optimizer: str = "SGD") -> tuple[Model, StepOutcome]:
    config = ModelConfig(n_layer=2, n_embd=8, n_head=2, latent_total=32, dropout=dropout)
    model = Model(config, 11, seed=2).double()
    update = getattr(torch.optim, optimizer)(model.parameters(), lr=0.1)
    tokens, targets = rows_of_unequal_length()
    batches = [
        Batch(
            0,
            torch.arange(begin, begin + size),
            tokens[begin : begin + size],
            targets[begin : begin + size],
            int((targets[begin : begin + size] >= 0).sum()),
            None,
        )
        for begin in range(0, 8, size)
    ]
    outcome = optimizer_step(
        model,
        update,
        batches,
        MACHINE,
        step=1,
        rate=0.1,
        rules=StepRules(dropout, 5, {"max_norm": 0.05, "max_value": None}),
        profile=StageProfile(),
    )
    return model, outcome


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_weights_loss_and_norm_agree(size: int, dropout: float) -> None:
    """With dropout too: masks follow the global row."""
    whole, expected = step(8, dropout=dropout)
    model, found = step(size, dropout=dropout)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter, whole.get_parameter(name), rtol=1e-10, atol=1e-12)
    assert found.loss() == pytest.approx(expected.loss(), rel=1e-12)
    assert found.gradient_norm == pytest.approx(expected.gradient_norm, rel=1e-10)
    assert found.targets == expected.targets == 66


def test_the_loss_is_the_mean_over_all_targets() -> None:
    """Not the mean of the rows' means."""
    model, outcome = step(1)
    fresh = Model(model.config, 11, seed=2).double()
    tokens, targets = rows_of_unequal_length()
    with torch.no_grad():
        losses = fresh.token_losses(fresh(tokens)[0], targets)
    assert outcome.loss() == pytest.approx(float(losses.sum() / 66), rel=1e-12)
    by_rows = float((losses.sum(1) / (targets >= 0).sum(1)).mean())
    assert abs(outcome.loss() - by_rows) > 1e-4


def test_gradients_are_cleared_between_steps() -> None:
    model, _ = step(4)
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("memory", ["linear_attention", "mamba3"])
def test_streams_follow_their_rows(tiny_config: Callable[..., Config], memory: str) -> None:
    """States are carried, and rows end in documents of unequal length: cut into one, two or four micro-batches."""
    found = []
    for rows, parts in ((4, 1), (2, 2), (1, 4)):
        config = tiny_config(
            "training.tbptt_chunk_size=8", "training.tbptt_persist_across_steps=true", "training.max_iters=7",
            "training.min_logical_block_size=70", f"training.batch_size={rows}", "runtime.dtype=float64",
            f"training.gradient_accumulation_steps={parts}", f"model.sequence_kernel={memory}", "model.dropout=0.1",
            "model.mamba.headdim=8", "model.mamba.d_state=4", "model.mamba.chunk_size=5",
        )  # fmt: skip
        found.append(wyrmling.train(config))
    for other in found[1:]:
        assert other.loss == pytest.approx(found[0].loss, rel=1e-10)
        for name, parameter in other.model.named_parameters():
            torch.testing.assert_close(parameter, found[0].model.get_parameter(name), rtol=1e-10, atol=1e-10)
