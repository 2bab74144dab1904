"""Operations are counted as they are done: by hand on a small case, and against PyTorch's own counter."""

from __future__ import annotations

import pytest
import torch
from benchmarks.harness import Timing
from benchmarks.operations import SHAPES, operations, products, rate
from torch.utils.flop_counter import FlopCounterMode

from wyrmling.config.schema.model import Model as ModelConfig
from wyrmling.config.schema.model import SequenceKernel
from wyrmling.model import Composed, Model


def test_a_small_case_by_hand() -> None:
    """One layer, D=2, H=1, N=3, V=5, one row of two tokens: 12 multiply-adds per matrix and pass."""
    found = operations(neurons=[3], width=2, heads=1, vocabulary=5, rows=1, length=2, tile=2)
    assert found == {
        "encoder": 36,
        "encoder_v": 36,
        "decoder": 36,
        "scores": 12 + 12,  # 2 x 2 forward, and (G + G^T) q
        "reads": 3 * 2 * 2 * 2,
        "state": 0,
        "head": 60,
    }


def test_tiles_trade_scores_for_the_state() -> None:
    """Five tokens in tiles of two: the state is read for three of them and written by four."""
    found = operations(neurons=[3], width=2, heads=1, vocabulary=5, rows=1, length=5, tile=2)
    assert found["scores"] == (4 + 4 + 1) * 2 * 3
    assert found["state"] == 3 * (3 + 4) * 3 * 2


@pytest.mark.parametrize(("executor", "length", "tile"), [("dense", 150, 150), ("chunked", 300, 128)])
def test_the_composed_layer_does_as_many(executor: str, length: int, tile: int) -> None:
    config = ModelConfig(
        n_layer=2,
        n_embd=8,
        n_head=2,
        mlp_internal_dim_multiplier=None,
        latent_total=24,
        dropout=0.0,
        sequence_kernel=SequenceKernel(executor=executor),
    )
    model = Model(config, 11)
    model.layer_step = Composed(model.memory, model.norm)
    tokens = torch.zeros(3, length, dtype=torch.int64)
    with FlopCounterMode(display=False) as counter:
        hidden, _ = model(tokens, carry=False)
        model.loss_sum(hidden, tokens).backward()
    found = operations(neurons=[12, 12], width=8, heads=2, vocabulary=11, rows=3, length=length, tile=tile)
    assert counter.get_total_flops() == 2 * sum(found.values())


def test_the_rate_is_that_of_the_fastest_product() -> None:
    names = list(products(torch.float32))
    times = {name: Timing((1.0,)) for name in names}
    times[names[1]] = Timing((0.001,))
    rows, inner, columns = SHAPES[1]
    assert rate(torch.float32, times) == pytest.approx(2000 * rows * inner * columns)
