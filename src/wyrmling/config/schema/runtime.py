"""`[runtime]`: on what, and with what precision, the work is done."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, ByteSize, Field

from .base import CountingInt, PositiveInt, Table

Fraction = Annotated[float, Field(gt=0, le=1)]


def _as_word(value: Any) -> Any:
    """The TOML words true and false say on and off too."""
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else value


Compiling = Annotated[
    Literal["auto", "on", "off"],
    BeforeValidator(_as_word, json_schema_input_type=Literal["auto", "on", "off", True, False]),
]


def _as_number(value: Any) -> Any:
    """A part of a byte, written as text, is as wrong as the number."""
    try:
        return float(value) if isinstance(value, str) and "." in value else value
    except ValueError:
        return value  # "1.5 GB"


class StartupAutotune(Table):
    """Find the largest micro-batch that fits in the memory, by trying real training steps, before a run begins."""

    alternatives: ClassVar[tuple[tuple[str, str], ...]] = (
        ("target_memory_fraction", "target_device_memory_mb"),
    )

    enabled: bool = Field(default=False, description="Choose training.batch_size when a run is created.")
    target_memory_fraction: Fraction | None = Field(
        default=0.8, description="Share of the memory that is free then which a training step may take."
    )
    target_device_memory_mb: PositiveInt | None = Field(
        default=None, description="The memory in MiB that it may take, instead of a share."
    )
    min_batch_size: PositiveInt = Field(default=1, description="The smallest number of rows to try.")
    max_batch_size: PositiveInt | None = Field(
        default=None,
        description="The largest; unset: training.target_effective_batch_size, else training.batch_size.",
    )
    probe_steps: PositiveInt = Field(
        default=1, description="Optimizer steps that are measured for each number of rows, after a first one."
    )
    binary_search: bool = Field(
        default=True, description="Look between the last number that fits and the first that does not."
    )


class Runtime(Table):
    """The machine's side. Nothing here changes what is computed, only how exactly and how fast."""

    device: Literal["auto", "cpu", "cuda", "mps"] = Field(
        default="auto", description='"auto": cuda, then mps, then cpu.'
    )
    dtype: Literal["auto", "float32", "bfloat16", "float64"] = Field(
        default="auto",
        description='Type of the products; "auto": bfloat16 where the processor multiplies it and matrices are large '
        "enough to gain by it, else float32. "
        "Weights, states and sums stay float32.",
    )
    threads: PositiveInt | None = Field(
        default=None,
        description="CPU threads, at most 64, or 8 per core; unset: OMP_NUM_THREADS, else one per core.",
    )
    compile: Compiling = Field(
        default="auto",
        description='Compile the small kernels between the products on the CPU; "auto": when a C++ compiler works '
        "here and the run is long enough to pay for it. true and false mean on and off.",
    )
    deterministic: bool = Field(
        default=True, description="Only use operations that give the same result every time."
    )
    prefetch: CountingInt = Field(
        default=2, description="Optimizer steps whose batches are prepared ahead; 0: none."
    )
    activation_memory: Annotated[
        Literal["auto", "keep", "recompute"] | ByteSize, BeforeValidator(_as_number)
    ] = Field(
        default="auto",
        description="Keep what the backward pass needs, or compute it again; a number of bytes "
        '("500 MB"): keep what fits in it. "auto": what fits in 30 % of all memory.',
    )
    startup_autotune: StartupAutotune = Field(
        default_factory=StartupAutotune, description="Find the largest micro-batch that fits."
    )
