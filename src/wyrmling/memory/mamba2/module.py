"""Mamba-2 as a memory: projections of the stream, the block between them, the state.

The dense stream alone is read; neurons only gate what comes of the read, in the layer. One read serves all heads of
the layer.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from ...numerics.roles import Role, declare
from ..base import Memory, MemoryState, sums_dtype
from ..choose import FormChoice
from ..ssd.chunked import CHUNK, SEGMENT
from ..ssd.weights import (
    inverse_softplus,
    layer_uniform,
    log_uniform,
    positive_counts,
    positive_numbers,
    require,
    uniform,
)
from . import chunked, naive
from .naive import Geometry, Weights

EXECUTORS = ("auto", "reference", "naive")


class Mamba2(Memory):
    """The published Mamba-2 block over the dense stream.

        z | xBC | dt = stream in_proj;      read = mix(z, xBC, dt) out_proj

    with the short convolution, the state space recurrence and the gated norm of `naive.py` in between.

    Args:
        width: D of the stream.
        d_state: N, width of a key.
        d_conv: K taps of the convolution; the last K - 1 raw inputs are part of the state.
        expand: inner width in units of D.
        headdim: P, channels of a head; H = expand D / P heads.
        ngroups: G groups of heads that share keys and queries.
        conv_bias: add a bias after the convolution.
        dt_min, dt_max, dt_init_floor: range of the first time steps, and what none of them goes below.
        a_init_min, a_init_max: range of the first decay rates -A, which are uniform in it.
        norm_eps: added to the mean squares of the norm.
        norm_before_gate: normalise before the gate; the published block does it after.
        norm_full_width: one mean square over all channels instead of one per group.
        chunk_size: tokens whose scores are one square.
        executor: "auto" is the chunked form; "reference" and "naive" are the loop over tokens.
        seed: of the first weights.

    Raises:
        ValueError: sizes that do not fit each other; the message names the key.

    Shapes: in_proj [D, 2 expand D + 2 G N + H], conv_weight [expand D + 2 G N, K], conv_bias [expand D + 2 G N],
    dt_bias, a_log and d_skip [H], norm_weight [expand D], out_proj [expand D, D].

    Source: as `naive.py`. There is no bound on time steps after their start, as in the published defaults.
    """

    parameter_roles: ClassVar[dict[str, Role]] = {
        "in_proj": "matrix",
        "conv_weight": "conv",
        "conv_bias": "bias",
        "dt_bias": "decay",
        "a_log": "decay",
        "d_skip": "gain",
        "norm_weight": "gain",
        "out_proj": "matrix",
    }

    def __init__(
        self,
        width: int,
        *,
        d_state: int = 128,
        d_conv: int = 4,
        expand: int = 2,
        headdim: int = 64,
        ngroups: int = 1,
        conv_bias: bool = True,
        dt_min: float = 1e-3,
        dt_max: float = 0.1,
        dt_init_floor: float = 1e-4,
        a_init_min: float = 1.0,
        a_init_max: float = 16.0,
        norm_eps: float = 1e-5,
        norm_before_gate: bool = False,
        norm_full_width: bool = False,
        chunk_size: int = CHUNK,
        executor: str = "auto",
        seed: int = 0,
    ) -> None:
        super().__init__()
        positive_counts(d_state=d_state, d_conv=d_conv, expand=expand, headdim=headdim, ngroups=ngroups)
        positive_counts(chunk_size=chunk_size)
        positive_numbers(dt_min=dt_min, dt_max=dt_max, dt_init_floor=dt_init_floor, norm_eps=norm_eps)
        positive_numbers(a_init_min=a_init_min, a_init_max=a_init_max)
        require(dt_min <= dt_max, f"dt_max: must be at least dt_min, {dt_min}, got {dt_max}")
        require(a_init_min <= a_init_max, f"a_init_max: must be at least a_init_min, got {a_init_max}")
        inner = expand * width
        require(
            inner % headdim == 0,
            f"headdim: the inner width {inner} ({expand} x {width}) is not divisible by {headdim}",
        )
        heads = inner // headdim
        require(heads % ngroups == 0, f"ngroups: {heads} heads are not divisible by {ngroups}")
        if executor not in EXECUTORS:
            raise ValueError(f"unknown executor {executor!r}: choose one of {', '.join(EXECUTORS)}")
        self.read_heads, self.width = 1, width
        self.chunk, self.executor = chunk_size, executor
        self.geometry = Geometry(
            heads=heads,
            headdim=headdim,
            groups=ngroups,
            d_state=d_state,
            d_conv=d_conv,
            norm_groups=1 if norm_full_width else ngroups,
            norm_eps=norm_eps,
            norm_before_gate=norm_before_gate,
        )

        projected, channels = sum(self.geometry.projected), self.geometry.channels
        # z | x | B | C | dt: matrices of their own, side by side
        self.parameter_parts = {"in_proj": (inner, *self.geometry.convolved, heads)}
        self.in_proj = self._layer("in_proj", width, projected, fan_in=width, seed=seed)
        self.conv_weight = self._layer("conv_weight", channels, d_conv, fan_in=d_conv, seed=seed)
        self.conv_bias = self._layer("conv_bias", channels, fan_in=d_conv, seed=seed) if conv_bias else None
        steps = log_uniform(heads, dt_min, dt_max, seed=seed, name="dt_bias").clamp_min(dt_init_floor)
        self.dt_bias = self._own("dt_bias", inverse_softplus(steps).float())
        rates = uniform(heads, a_init_min, a_init_max, seed=seed, name="a_log")  # A, not its logarithm
        self.a_log = self._own("a_log", rates.log().float())
        self.d_skip = self._own("d_skip", torch.ones(heads))
        self.norm_weight = self._own("norm_weight", torch.ones(inner))
        self.out_proj = self._layer("out_proj", inner, width, fan_in=inner, seed=seed)

    def _layer(self, name: str, *shape: int, fan_in: int, seed: int) -> nn.Parameter:
        return self._own(name, layer_uniform(*shape, fan_in=fan_in, seed=seed, name=name))

    def _own(self, name: str, value: Tensor) -> nn.Parameter:
        parts = self.parameter_parts.get(name, ())
        return declare(nn.Parameter(value), self.parameter_roles[name], parts=parts)

    def choice(self, length: int) -> FormChoice:
        if self.executor != "auto":
            return FormChoice("sequential", length, "asked for by model.sequence_kernel.executor")
        tile = min(length, max(SEGMENT // 2 // self.chunk, 1) * self.chunk)
        return FormChoice(
            "chunked",
            tile,
            f"chunks of {self.chunk} tokens, {tile} tokens at a time, which hand the state on",
        )

    def initial_state(
        self, rows: int, *, neurons: int | None = None, device: torch.device | None = None
    ) -> MemoryState:
        """Zeros: ssm [B, H, P, N], conv [B, channels, K - 1] (the last raw inputs of the convolution, oldest first)."""
        sizes = self.geometry
        return {
            "ssm": torch.zeros(rows, sizes.heads, sizes.headdim, sizes.d_state, device=device),
            "conv": torch.zeros(rows, sizes.channels, sizes.d_conv - 1, device=device),
        }

    def _read(
        self,
        neurons: Tensor,
        stream: Tensor,
        state: MemoryState | None,
        position: Tensor,
        carry: bool,
    ) -> tuple[Tensor, MemoryState | None]:
        # everything between the projections in float32 or better, whatever they run in
        wide = sums_dtype(stream)
        projected = stream.to(self.in_proj.dtype) @ self.in_proj
        with torch.autocast(stream.device.type, enabled=False):
            if state is not None:
                state = {name: part.to(wide) for name, part in state.items()}
            mixed, final = self._mix(projected, state, wide, carry)
        return (mixed.to(self.out_proj.dtype) @ self.out_proj).to(wide)[:, None], final

    def _mix(
        self, projected: Tensor, state: MemoryState | None, wide: torch.dtype, carry: bool
    ) -> tuple[Tensor, MemoryState | None]:
        weights = Weights(
            self.conv_weight.to(wide),
            None if self.conv_bias is None else self.conv_bias.to(wide),
            self.dt_bias.to(wide),
            self.a_log.to(wide),
            self.d_skip.to(wide),
            self.norm_weight.to(wide),
        )
        if self.executor == "auto":
            return chunked.mix(projected, weights, self.geometry, state, chunk=self.chunk, carry=carry)
        if state is None:
            empty = self.initial_state(projected.shape[0], device=projected.device)
            state = {name: part.to(wide) for name, part in empty.items()}
        mixed, final = naive.mix(projected.to(wide), weights, self.geometry, state)
        return mixed, final if carry else None

    def extra_repr(self) -> str:
        sizes = self.geometry
        return (
            f"{self.width}, heads={sizes.heads}, headdim={sizes.headdim}, d_state={sizes.d_state}, "
            f"ngroups={sizes.groups}, d_conv={sizes.d_conv}"
        )
