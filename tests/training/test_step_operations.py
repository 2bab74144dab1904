"""The operations of a training step, counted from sizes alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from wyrmling.config.schema.model import Model as ModelConfig
from wyrmling.config.schema.model import SequenceKernel
from wyrmling.model import Composed, Model, State
from wyrmling.training.profiling.operations import step_operations
from wyrmling.training.streams import backward_in_chunks


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


@pytest.mark.parametrize("carries", [False, True])
@pytest.mark.parametrize(
    ("fused", "chunk", "tile", "window"),
    [
        *[(False, None, tile, 1) for tile in (20, 6)],
        *[(False, chunk, tile, window) for chunk, tile in [(8, 8), (8, 4), (6, 6)] for window in (1, 2, 3)],
        *[(True, chunk, 20, 1) for chunk in (None, 8, 6)],
    ],
)
def test_chunks_windows_and_carried_states_are_counted_as_they_are_computed(
    fused: bool, chunk: int | None, tile: int, window: int, carries: bool
) -> None:
    """Every product that PyTorch runs, in place or not. In a pass through an earlier chunk the fused layer computes the
    last layer as a whole, where half of it has no effect; so it is compared without windows."""
    one = model(sequence_kernel=SequenceKernel(executor="dense"))
    if not fused:
        one.layer_step = Composed(one.memory, one.norm)
        one.layer_step.tile_tokens = tile
    tokens = torch.zeros(2, 20, dtype=torch.int64)

    def forward(
        inputs: Tensor, targets: Tensor, state: State | None, reset: Tensor | None, carry: bool
    ) -> tuple[Tensor, State | None]:
        hidden, after = one(inputs, state, reset=reset, carry=carry)
        return one.loss_sum(hidden, targets), after

    state = one(tokens[:, :5])[1].detach() if carries else None
    with Products() as counter:
        backward_in_chunks(forward, tokens, tokens, state, None, chunk=chunk, window=window, carry=carries)
    counted = step_operations(one, rows=2, length=20, tile=tile, chunk=chunk, window=window, carries=carries)
    assert counted == counter.operations


class Products(TorchDispatchMode):
    """Counts the operations of every matrix product, with PyTorch's own formulas where it has one."""

    operations = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func.overloadpacket in flop_registry:
            self.operations += flop_registry[func.overloadpacket](*args, **(kwargs or {}), out_val=out)
        elif func.overloadpacket in (torch.ops.aten.addmm_, torch.ops.aten.baddbmm_):
            self.operations += 2 * args[1].numel() * args[2].shape[-1]
        return out


@pytest.mark.parametrize("memory", ["rwkv8", "mamba2", "mamba3"])
def test_other_memories_are_counted_by_their_definition(memory: str) -> None:
    """Their matrices once per token, every number of the state written once and read once, three passes in all."""
    changes = {"mamba": {"headdim": 4, "d_state": 4}} if memory.startswith("mamba") else {}
    one = model(sequence_kernel=SequenceKernel(memory_system=memory), **changes)
    sides = 0 if memory == "rwkv8" else one.memory.in_proj.numel() + one.memory.out_proj.numel()
    layers = 3 * (3 * 8 * 48 + sides) + 2 * one.geometry.state_numbers
    assert step_operations(one, rows=2, length=20, tile=20) == 2 * 3 * 2 * 20 * (layers + 8 * 11)
