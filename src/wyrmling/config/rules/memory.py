"""Rules of the memories."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..problems import Problem, at_most
from .rulebook import Rulebook

if TYPE_CHECKING:
    from ..schema import Config, Mamba

BOOK = Rulebook()
TABLE = "model.mamba"
_SIZES = (f"{TABLE}.headdim", f"{TABLE}.expand", "model.n_embd")


def _mamba(config: Config) -> tuple[str, Mamba] | None:
    """The Mamba memory in force and its sizes; None where it is another."""
    model = config.effective_model
    memory = model.sequence_kernel.memory_system
    return (memory, model.mamba) if memory in ("mamba2", "mamba3") else None


@BOOK.rule(
    "an-executor-fits-its-memory",
    'The executors "fused" and "dense" need `memory_system = "linear_attention"`, in `model.sequence_kernel` and '
    "`training.sequence_kernel_override`.",
)
def _executor(config: Config) -> Iterator[Problem]:
    kernel = config.effective_model.sequence_kernel
    key = "model.sequence_kernel"
    if config.training.sequence_kernel_override is not None:
        key = "training.sequence_kernel_override"
    if kernel.memory_system != "linear_attention" and kernel.executor in ("fused", "dense"):
        yield Problem(
            f'{key}.executor = "{kernel.executor}" requires {key}.memory_system = "linear_attention" '
            f'(it is "{kernel.memory_system}"); leave the executor out',
            (f"{key}.executor", f"{key}.memory_system", key),
        )


@BOOK.rule(
    "memory-heads-fit",
    f"With a Mamba memory, `{TABLE}.expand` * `model.n_embd` is a multiple of `headdim`, and the heads that this makes "
    "are a multiple of `ngroups`.",
)
def _heads(config: Config) -> Iterator[Problem]:
    found = _mamba(config)
    if found is None:
        return
    mamba, width = found[1], config.model.n_embd
    inner = mamba.inner_width(width)
    if inner % mamba.head_width(width):
        yield Problem(
            f"{TABLE}.expand * model.n_embd must be divisible by {TABLE}.headdim ({inner} and {mamba.headdim})",
            _SIZES,
        )
    elif mamba.head_count(width) % mamba.ngroups:
        yield Problem(
            f"the memory heads ({TABLE}.expand * model.n_embd / {TABLE}.headdim) must be divisible by "
            f"{TABLE}.ngroups ({mamba.head_count(width)} and {mamba.ngroups})",
            (f"{TABLE}.ngroups", *_SIZES),
        )


@BOOK.rule(
    "first-time-steps-fit",
    f"With a Mamba memory, `{TABLE}.dt_min` is at most `dt_max`; with mamba2, `a_init_min` at most `a_init_max`.",
)
def _ranges(config: Config) -> Iterator[Problem]:
    found = _mamba(config)
    if found is None:
        return
    memory, mamba = found
    if mamba.dt_min > mamba.dt_max:
        yield at_most(f"{TABLE}.dt_min", f"{TABLE}.dt_max", mamba.dt_min, mamba.dt_max)
    if memory == "mamba2" and mamba.a_init_min > mamba.a_init_max:
        yield at_most(f"{TABLE}.a_init_min", f"{TABLE}.a_init_max", mamba.a_init_min, mamba.a_init_max)


@BOOK.rule("a-pair-to-rotate", f"With mamba3, `{TABLE}.d_state` * `rope_fraction` is at least 2.")
def _rotation(config: Config) -> Iterator[Problem]:
    found = _mamba(config)
    if found is not None and found[0] == "mamba3" and found[1].rope_angles < 1:
        mamba = found[1]
        yield Problem(
            f"{TABLE}.d_state * {TABLE}.rope_fraction must be at least 2, one pair to rotate "
            f"({mamba.d_state} * {mamba.rope_fraction:g})",
            (f"{TABLE}.d_state", f"{TABLE}.rope_fraction"),
        )
