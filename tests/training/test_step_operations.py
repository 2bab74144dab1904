"""The operations of a training step, counted from sizes alone."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from wyrmling.config.schema.model import Model as ModelConfig
from wyrmling.config.schema.model import SequenceKernel
from wyrmling.model import Composed, Model
from wyrmling.training.profiling.operations import step_operations


def model(**changes: object) -> Model:
    sizes = {"n_layer": 3, "n_embd": 8, "n_head": 2, "latent_total": 48, "dropout": 0.0, **changes}
    return Model(ModelConfig(mlp_internal_dim_multiplier=None, **sizes), 11)  # type: ignore[arg-type]


@pytest.mark.parametrize("positions", ["rope", "alibi", "pope"])
@pytest.mark.parametrize("narrow", [False, True])
def test_linear_attention_does_as_many_as_pytorch_counts(positions: str, narrow: bool) -> None:
    changes: dict[str, object] = {"rotary_embedding": positions}
    if narrow:
        changes["latent_fanout_schedule"] = {"type": "late_layer", "base_latent_total": 16, "last_layers": 1}
    one = model(sequence_kernel=SequenceKernel(executor="dense"), **changes)
    one.layer_step = Composed(one.memory, one.norm)
    tokens = torch.zeros(2, 20, dtype=torch.int64)
    with FlopCounterMode(display=False) as counter:
        hidden, _ = one(tokens, carry=False)
        one.loss_sum(hidden, tokens).backward()
    assert step_operations(one, rows=2, length=20, tile=20) == counter.get_total_flops()


@pytest.mark.parametrize("memory", ["rwkv8", "mamba2", "mamba3"])
def test_other_memories_are_counted_by_their_definition(memory: str) -> None:
    """Their matrices once per token, every number of the state written once and read once, three passes in all."""
    changes = {"mamba": {"headdim": 4, "d_state": 4}} if memory.startswith("mamba") else {}
    one = model(sequence_kernel=SequenceKernel(memory_system=memory), **changes)
    sides = 0 if memory == "rwkv8" else one.memory.in_proj.numel() + one.memory.out_proj.numel()
    layers = 3 * (3 * 8 * 48 + sides) + 2 * one.geometry.state_numbers
    assert step_operations(one, rows=2, length=20, tile=20) == 2 * 3 * 2 * 20 * (layers + 8 * 11)
