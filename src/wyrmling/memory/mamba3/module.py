"""Mamba-3 as a memory: projections of the stream, the recurrence, a gate, the state.

The dense stream alone is read; neurons only gate what comes of the read, in the layer. One read serves all heads of
the layer.
"""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...numerics.roles import Role, declare
from ..base import Memory, MemoryState, sums_dtype
from ..choose import FormChoice
from ..ssd.weights import (
    inverse_softplus,
    layer_uniform,
    log_uniform,
    positive_counts,
    positive_numbers,
    require,
)
from . import chunked, naive
from .naive import Tokens

EXECUTORS = ("auto", "reference", "naive")
TILE = 512  # tokens that a layer hands over at a time: several chunks, and the neurons of a tile still fit a cache


class Mamba3(Memory):
    """Mamba-3 with one input and one output per head (SISO).

        z | x | B | C | dd_dt | dd_A | trap | angle = stream in_proj
        dt = softplus(dd_dt + dt_bias),  A = min(-softplus(dd_A), -a_floor),  lambda = sigmoid(trap)
        k = rms_norm(B) + b_bias,  q = rms_norm(C) + c_bias,  v = x;  the recurrence of `naive.py`
        read = (y * silu(z)) out_proj

    Args:
        width: D of the stream.
        d_state: N, width of a key.
        expand: inner width in units of D.
        headdim: P, channels of a head; H = expand D / P heads.
        ngroups: G groups of heads that share keys and queries (before bias and rotation).
        dt_min, dt_max, dt_init_floor: range of the first time steps, and what none of them goes below.
        norm_eps: added to the mean squares of the norms.
        rope_fraction: share of a key that is rotated, 0.5 or 1.0: R whole pairs.
        a_floor: no decay rate -A is below this.
        heavy_tail: A = -(1 + u) for u >= 0 and -1 / (1 - u) below, instead of -softplus(u).
        is_outproj_norm: normalise each head of y (root mean square, learned gain) before the gate.
        chunk_size: tokens whose scores are one square.
        executor: "auto" is the chunked form; "reference" and "naive" are the loop over tokens.
        seed: of the first weights.

    Raises:
        ValueError: sizes that do not fit each other; the message names the key.

    Shapes: in_proj [D, 2 expand D + 2 G N + 3 H + R], b_bias and c_bias [H, N], b_norm_weight and c_norm_weight [N],
    dt_bias and d_skip [H], out_proj [expand D, D], norm_weight [expand D].

    Source: as `naive.py`; the block is that of the public code.
    """

    parameter_roles: ClassVar[dict[str, Role]] = {
        "in_proj": "matrix",
        "dt_bias": "decay",
        "b_bias": "bias",
        "c_bias": "bias",
        "b_norm_weight": "gain",
        "c_norm_weight": "gain",
        "d_skip": "gain",
        "norm_weight": "gain",
        "out_proj": "matrix",
    }

    def __init__(
        self,
        width: int,
        *,
        d_state: int = 128,
        expand: int = 2,
        headdim: int = 64,
        ngroups: int = 1,
        dt_min: float = 1e-3,
        dt_max: float = 0.1,
        dt_init_floor: float = 1e-4,
        norm_eps: float = 1e-5,
        rope_fraction: float = 0.5,
        a_floor: float = 1e-4,
        heavy_tail: bool = False,
        is_outproj_norm: bool = False,
        chunk_size: int = chunked.CHUNK,
        executor: str = "auto",
        seed: int = 0,
    ) -> None:
        super().__init__()
        positive_counts(
            d_state=d_state, expand=expand, headdim=headdim, ngroups=ngroups, chunk_size=chunk_size
        )
        positive_numbers(dt_min=dt_min, dt_max=dt_max, dt_init_floor=dt_init_floor)
        positive_numbers(norm_eps=norm_eps, a_floor=a_floor)
        require(dt_min <= dt_max, f"dt_max: must be at least dt_min, {dt_min}, got {dt_max}")
        require(rope_fraction in (0.5, 1.0), f"rope_fraction: must be 0.5 or 1.0, got {rope_fraction}")
        self.width, self.inner, self.d_state, self.headdim = width, expand * width, d_state, headdim
        require(
            self.inner % headdim == 0,
            f"headdim: the inner width {self.inner} ({expand} x {width}) is not divisible by {headdim}",
        )
        self.heads, self.ngroups = self.inner // headdim, ngroups
        require(self.heads % ngroups == 0, f"ngroups: {self.heads} heads are not divisible by {ngroups}")
        self.rope_angles = int(d_state * rope_fraction) // 2
        require(self.rope_angles > 0, f"d_state: no pair of {d_state} x {rope_fraction} numbers to rotate")
        if executor not in EXECUTORS:
            raise ValueError(f"unknown executor {executor!r}: choose one of {', '.join(EXECUTORS)}")
        self.read_heads = 1
        self.norm_eps, self.a_floor, self.heavy_tail = norm_eps, a_floor, heavy_tail
        self.chunk, self.executor = chunk_size, executor

        keys, heads = ngroups * d_state, self.heads
        parts = (self.inner, self.inner, keys, keys, heads, heads, heads, self.rope_angles)
        #: Sizes of the projections that lie side by side in a parameter, by its name.
        self.parameter_parts = {"in_proj": parts}
        self.in_proj = self._own(
            "in_proj", layer_uniform(width, sum(parts), fan_in=width, seed=seed, name="in_proj")
        )
        steps = log_uniform(heads, dt_min, dt_max, seed=seed, name="dt_bias").clamp_min(dt_init_floor)
        self.dt_bias = self._own("dt_bias", inverse_softplus(steps).float())
        self.b_bias = self._own("b_bias", torch.ones(heads, d_state))
        self.c_bias = self._own("c_bias", torch.ones(heads, d_state))
        self.b_norm_weight = self._own("b_norm_weight", torch.ones(d_state))
        self.c_norm_weight = self._own("c_norm_weight", torch.ones(d_state))
        self.d_skip = self._own("d_skip", torch.ones(heads))
        self.norm_weight: nn.Parameter | None = None
        if is_outproj_norm:
            self.norm_weight = self._own("norm_weight", torch.ones(self.inner))
        self.out_proj = self._own(
            "out_proj", layer_uniform(self.inner, width, fan_in=self.inner, seed=seed, name="out_proj")
        )

    def _own(self, name: str, value: Tensor) -> nn.Parameter:
        role, parts = self.parameter_roles[name], self.parameter_parts.get(name, ())
        return declare(nn.Parameter(value), role, parts=parts)

    def choice(self, length: int) -> FormChoice:
        tile = min(length, -(-TILE // self.chunk) * self.chunk)
        if self.executor != "auto":
            return FormChoice("sequential", tile, "asked for by model.sequence_kernel.executor")
        return FormChoice(
            "chunked",
            tile,
            f"chunks of {self.chunk} tokens, {tile} tokens at a time, which hand the state on",
        )

    def initial_state(
        self, rows: int, *, neurons: int | None = None, device: torch.device | None = None
    ) -> MemoryState:
        """Zeros: ssm [B, H, P, N], angle [B, H, R] (radians), key [B, H, N] (rotated), value [B, H, P]."""
        shapes = {
            "ssm": (self.headdim, self.d_state),
            "angle": (self.rope_angles,),
            "key": (self.d_state,),
            "value": (self.headdim,),
        }
        return {name: torch.zeros(rows, self.heads, *shape, device=device) for name, shape in shapes.items()}

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
            gate, *rest = projected.split(self.parameter_parts["in_proj"], dim=-1)
            tokens = self._tokens([part.to(wide) for part in rest])
            if state is not None:
                state = {name: part.to(wide) for name, part in state.items()}
            reads, final = self._recurrence(tokens, state, carry)
            gated = self._gated(reads, gate.to(wide))
        return (gated.to(self.out_proj.dtype) @ self.out_proj).to(wide)[:, None], final

    def _tokens(self, parts: list[Tensor]) -> Tokens:
        """What the projections x | B | C | dd_dt | dd_A | trap | angle, each [B, T, ...], mean to the recurrence."""
        x, b, c, dt, rate, trap, angle = parts
        step = F.softplus(dt + self.dt_bias.to(dt.dtype)).mT
        return Tokens(
            log_decay=step * self._rate(rate).mT,
            step=step,
            blend=torch.sigmoid(trap).mT,
            spin=torch.tanh(angle),
            values=x.unflatten(-1, (self.heads, self.headdim)).transpose(1, 2),
            keys=self._by_head(b, self.b_norm_weight, self.b_bias),
            queries=self._by_head(c, self.c_norm_weight, self.c_bias),
        )

    def _rate(self, raw: Tensor) -> Tensor:
        """A, at most -a_floor."""
        if self.heavy_tail:
            speed = F.relu(raw) + 1 / (1 - raw.clamp_max(0))
        else:
            speed = F.softplus(raw)
        return (-speed).clamp_max(-self.a_floor)

    def _by_head(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """[B, T, G N] normalised per group, seen by the group's heads, each with its bias: [B, H, T, N]."""
        groups = x.unflatten(-1, (self.ngroups, self.d_state))
        groups = F.rms_norm(groups, (self.d_state,), weight.to(x.dtype), self.norm_eps)
        biases = bias.to(x.dtype).unflatten(0, (self.ngroups, -1))
        return (groups[..., None, :] + biases).flatten(2, 3).transpose(1, 2)

    def _recurrence(
        self, tokens: Tokens, state: MemoryState | None, carry: bool
    ) -> tuple[Tensor, MemoryState | None]:
        skip = self.d_skip.to(tokens.step.dtype)
        rows, _, length = tokens.step.shape
        if self.executor == "auto" and length > 1:
            return chunked.mamba3(tokens, skip, state, chunk=self.chunk, carry=carry)
        if state is None:
            empty = self.initial_state(rows, device=skip.device)
            state = {name: part.to(skip.dtype) for name, part in empty.items()}
        form = chunked.single_token if self.executor == "auto" else naive.mamba3
        reads, final = form(tokens, skip, state)
        return reads, final if carry else None

    def _gated(self, y: Tensor, gate: Tensor) -> Tensor:
        """y [B, H, T, P], gate [B, T, H P] -> [B, T, H P]."""
        y = y.transpose(1, 2)
        if self.norm_weight is not None:
            y = F.rms_norm(y, (self.headdim,), eps=self.norm_eps)
            y = y * self.norm_weight.to(y.dtype).unflatten(0, (self.heads, self.headdim))
        return y.flatten(2) * F.silu(gate)

    def extra_repr(self) -> str:
        return (
            f"{self.width}, heads={self.heads}, headdim={self.headdim}, d_state={self.d_state}, "
            f"ngroups={self.ngroups}, rope_angles={self.rope_angles}"
        )
