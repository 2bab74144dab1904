"""`[runtime]`: on what, and with what precision, the work is done."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ByteSize, Field

from .base import CountingInt, PositiveInt, Table


def _as_word(value: Any) -> Any:
    """The TOML words true and false say on and off too."""
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else value


Compiling = Annotated[
    Literal["auto", "on", "off"],
    BeforeValidator(_as_word, json_schema_input_type=Literal["auto", "on", "off", True, False]),
]


class Runtime(Table):
    """The machine's side. Nothing here changes what is computed, only how exactly and how fast."""

    device: Literal["auto", "cpu", "cuda", "mps"] = Field(
        default="auto", description='"auto": cuda, then mps, then cpu.'
    )
    dtype: Literal["auto", "float32", "bfloat16", "float64"] = Field(
        default="auto",
        description='Type of the products; "auto": bfloat16 where it is measured to be faster, else float32. '
        "Weights, states and sums stay float32.",
    )
    threads: PositiveInt | None = Field(default=None, description="CPU threads; unset: what PyTorch takes.")
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
    activation_memory: Literal["auto", "keep", "recompute"] | ByteSize = Field(
        default="auto",
        description="Keep what the backward pass needs, or compute it again; a number of bytes "
        '("500 MB"): keep what fits in it. "auto": what fits in the free memory.',
    )
