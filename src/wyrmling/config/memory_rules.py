"""Rules of the memories, and of the states that are carried through training."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from .problems import Problem, at_most

if TYPE_CHECKING:
    from .schema import Config, Mamba, Training


def memory_rules(config: Config) -> Iterator[Problem]:
    """What the memory in force can do, and the sizes of the Mamba memories."""
    model = config.effective_model
    kernel, mamba = model.sequence_kernel, model.mamba
    if kernel.memory_system == "linear_attention":
        return
    key = "model.sequence_kernel"
    if config.training.sequence_kernel_override is not None:
        key = "training.sequence_kernel_override"
    if kernel.executor in ("fused", "dense"):
        yield Problem(
            f'{key}.executor = "{kernel.executor}" requires {key}.memory_system = "linear_attention" '
            f'(it is "{kernel.memory_system}"); leave the executor out',
            (f"{key}.executor", f"{key}.memory_system", key),
        )
    if kernel.memory_system in ("mamba2", "mamba3"):
        yield from _mamba(kernel.memory_system, mamba, model.n_embd)


def _mamba(memory: str, mamba: Mamba, width: int) -> Iterator[Problem]:
    inner, table = mamba.inner_width(width), "model.mamba"
    sizes = (f"{table}.headdim", f"{table}.expand", "model.n_embd")
    if inner % mamba.head_width(width):
        yield Problem(
            f"{table}.expand * model.n_embd must be divisible by {table}.headdim ({inner} and {mamba.headdim})",
            sizes,
        )
    elif mamba.head_count(width) % mamba.ngroups:
        yield Problem(
            f"the memory heads ({table}.expand * model.n_embd / {table}.headdim) must be divisible by "
            f"{table}.ngroups ({mamba.head_count(width)} and {mamba.ngroups})",
            (f"{table}.ngroups", *sizes),
        )
    if mamba.dt_min > mamba.dt_max:
        yield at_most(f"{table}.dt_min", f"{table}.dt_max", mamba.dt_min, mamba.dt_max)
    if memory == "mamba2" and mamba.a_init_min > mamba.a_init_max:
        yield at_most(f"{table}.a_init_min", f"{table}.a_init_max", mamba.a_init_min, mamba.a_init_max)
    if memory == "mamba3" and mamba.rope_angles < 1:
        yield Problem(
            f"{table}.d_state * {table}.rope_fraction must be at least 2, one pair to rotate "
            f"({mamba.d_state} * {mamba.rope_fraction:g})",
            (f"{table}.d_state", f"{table}.rope_fraction"),
        )


def chunk_rules(training: Training) -> Iterator[Problem]:
    """Truncated backpropagation through time, and the order that states need."""
    chunk, block, table = training.tbptt_chunk_size, training.block_size, "training"
    if chunk is not None and chunk > block:
        yield at_most(f"{table}.tbptt_chunk_size", f"{table}.block_size", chunk, block)
    if training.tbptt_window > 1 and chunk is None:
        yield Problem(
            f"{table}.tbptt_window requires {table}.tbptt_chunk_size",
            (f"{table}.tbptt_window", f"{table}.tbptt_chunk_size"),
        )
    if training.tbptt_persist_across_steps and training.order != "streaming":
        yield Problem(
            f'{table}.tbptt_persist_across_steps requires {table}.order = "streaming" (it is "{training.order}"); '
            "leave the order out",
            (f"{table}.order", f"{table}.tbptt_persist_across_steps"),
        )
    if training.min_logical_block_size is not None and training.order != "streaming":
        yield Problem(
            f'{table}.min_logical_block_size requires {table}.order = "streaming" (it is "{training.order}")',
            (f"{table}.min_logical_block_size", f"{table}.order"),
        )
