"""`[runtime]`: on what, and with what precision, the work is done."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from .base import CountingInt, PositiveInt, Table


class Runtime(Table):
    """The machine's side. Nothing here changes what is computed, only how exactly and how fast."""

    device: Literal["auto", "cpu", "cuda", "mps"] = Field(
        default="auto", description='"auto": cuda, then mps, then cpu.'
    )
    dtype: Literal["auto", "float32", "bfloat16", "float64"] = Field(
        default="auto",
        description='Type of the products; "auto": bfloat16 where the processor multiplies it, else float32. '
        "Weights, states and sums stay float32.",
    )
    threads: PositiveInt | None = Field(default=None, description="CPU threads; unset: what PyTorch takes.")
    compile: Literal[False] = Field(default=False, description="The model is not compiled.")
    deterministic: bool = Field(
        default=True, description="Only use operations that give the same result every time."
    )
    prefetch: CountingInt = Field(
        default=2, description="Optimizer steps whose batches are prepared ahead; 0: none."
    )
    activation_memory: Literal["auto", "keep", "recompute"] = Field(
        default="auto", description="Keep what the backward pass needs, or compute it again."
    )
