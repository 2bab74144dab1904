"""`[model.mamba]`: the sizes of the Mamba memories (`model.sequence_kernel` = "mamba2" or "mamba3")."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from .base import PositiveFloat, PositiveInt, Table

LARGEST_HEAD = 64


def largest_head(inner: int, limit: int = LARGEST_HEAD) -> int:
    """The largest divisor of the inner width up to `limit`."""
    return next(size for size in range(min(inner, limit), 0, -1) if inner % size == 0)


def _half_or_whole(value: float) -> float:
    if value not in (0.5, 1.0):
        raise ValueError("must be 0.5 or 1.0")
    return value


class Mamba(Table):
    """Sizes and first weights of Mamba-2 and Mamba-3; read by no other memory."""

    d_state: PositiveInt = Field(default=128, description="Width of a key (N): numbers of state per channel.")
    d_conv: PositiveInt = Field(default=4, description="Taps of the convolution over time (mamba2).")
    expand: PositiveInt = Field(default=2, description="Inner width, in units of n_embd.")
    headdim: PositiveInt | None = Field(
        default=None,
        description="Channels of a memory head (P); unset: the largest divisor of the inner width up to 64.",
    )
    ngroups: PositiveInt = Field(default=1, description="Groups of memory heads that share keys and queries.")
    conv_bias: bool = Field(default=True, description="Add a bias after the convolution (mamba2).")
    dt_min: PositiveFloat = Field(default=1e-3, description="Smallest first time step.")
    dt_max: PositiveFloat = Field(default=0.1, description="Largest first time step.")
    dt_init_floor: PositiveFloat = Field(default=1e-4, description="No first time step is below this.")
    a_init_min: PositiveFloat = Field(default=1.0, description="Smallest first decay rate (mamba2).")
    a_init_max: PositiveFloat = Field(
        default=16.0, description="Largest first decay rate; they are uniform in between (mamba2)."
    )
    norm_eps: PositiveFloat = Field(
        default=1e-5, description="Added to the mean square of the memory's norms."
    )
    norm_before_gate: bool = Field(
        default=False, description="Normalise before the gate instead of after it (mamba2)."
    )
    norm_full_width: bool = Field(
        default=False, description="Normalise all channels together instead of each group (mamba2)."
    )
    rope_fraction: Annotated[float, AfterValidator(_half_or_whole)] = Field(
        default=0.5, description="Share of a key that is rotated (mamba3): 0.5 or 1.0."
    )
    a_floor: PositiveFloat = Field(default=1e-4, description="No decay rate is below this (mamba3).")
    heavy_tail: bool = Field(
        default=False, description="Decay rates by the public code's heavy-tailed function (mamba3)."
    )
    is_outproj_norm: bool = Field(default=False, description="Normalise each head before the gate (mamba3).")
    chunk_size: PositiveInt = Field(default=64, description="Tokens that are computed at a time.")

    def inner_width(self, width: int) -> int:
        """Channels of the memory for a stream of this width."""
        return self.expand * width

    def head_width(self, width: int) -> int:
        """Channels of a memory head for a stream of this width."""
        return self.headdim or largest_head(self.inner_width(width))

    def head_count(self, width: int) -> int:
        """Memory heads; `rules` guarantees that the channels divide."""
        return self.inner_width(width) // self.head_width(width)

    @property
    def rope_angles(self) -> int:
        """Pairs of a key that are rotated (mamba3): its rotated part, rounded down to pairs."""
        return int(self.d_state * self.rope_fraction) // 2
