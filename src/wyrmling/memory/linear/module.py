"""Linear attention as a memory: positions, the choice of a form, the state."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from ...numerics.positions import (
    PhaseTable,
    default_slopes,
    polar,
    polar_frequencies,
    rotary_frequencies,
    rotate,
)
from ..base import Memory, MemoryState, sums_dtype
from ..choose import DEFAULT_CHUNK, FormChoice, choose_form
from . import chunked, dense, naive

Positions = Literal["rope", "alibi", "pope"]
Executor = Literal["auto", "fused", "composed", "reference", "naive", "dense", "chunked"]


class LinearAttention(Memory):
    """Linear attention over firing neurons: key = query = the encoded neurons, value = the dense stream.

    Args:
        heads, neurons, width: H, N (neurons per head of the widest layer), D.
        positions: "rope" (default; as published), "alibi" (decay per head), "pope".
        theta: base of the frequencies of rope and pope.
        slopes: ALiBi slopes, one positive number per head; default 2^(-h/H).
        executor: "dense" and "chunked" force a form, others choose by counting; "naive" is the loop over tokens, for
            tests.

    Frequencies (float64: one per rotary pair under rope, one per neuron under pope) and slopes (float64, [H]) are
    saved with the weights and never recomputed from N, so that a model can grow.
    """

    def __init__(
        self,
        heads: int,
        neurons: int,
        width: int,
        *,
        positions: Positions = "rope",
        theta: float = 65536.0,
        slopes: list[float] | None = None,
        executor: Executor = "auto",
        chunk: int = DEFAULT_CHUNK,
    ) -> None:
        super().__init__()
        if positions == "rope" and neurons % 2:
            raise ValueError(f"rope rotates pairs of neurons: neurons per head must be even, got {neurons}")
        self.heads = self.read_heads = heads
        self.neurons, self.width = neurons, width
        self.positions, self.executor, self.chunk = positions, executor, chunk
        self.frequencies: Tensor | None
        self.slopes: Tensor | None
        frequencies = None
        if positions == "rope":
            frequencies = rotary_frequencies(neurons, theta)
        elif positions == "pope":
            frequencies = polar_frequencies(neurons, theta)
        chosen = default_slopes(heads) if slopes is None else torch.tensor(slopes, dtype=torch.float64)
        self.register_buffer("frequencies", frequencies)
        self.register_buffer("slopes", chosen if positions == "alibi" else None)
        self._phases: tuple[Tensor, int, PhaseTable] | None = None

    def _apply(self, fn, recurse: bool = True):  # type: ignore[no-untyped-def]
        # A cast of the model must not round the frequencies, and phases are computed on the CPU: both stay there.
        kept = {name: self._buffers[name] for name in ("frequencies", "slopes")}
        super()._apply(fn, recurse)
        for name, tensor in kept.items():
            if tensor is not None and tensor.device.type != "meta":
                self._buffers[name] = tensor
        return self

    def phase_table(self) -> PhaseTable:
        """The table of the present frequencies; made anew when they were written to (loading, growing)."""
        frequencies = self.frequencies
        assert frequencies is not None
        version = 0 if frequencies.is_inference() else frequencies._version
        if self._phases is None or self._phases[0] is not frequencies or self._phases[1] != version:
            self._phases = (frequencies, version, PhaseTable(frequencies))
        return self._phases[2]

    def __getstate__(self) -> dict[str, Any]:
        # tables are made again where they are needed: copies and pickles do without
        return {**self.__dict__, "_phases": None}

    @property
    def key_width(self) -> int:
        """Width K of a key: N, or 2 N under pope."""
        return 2 * self.neurons if self.positions == "pope" else self.neurons

    def choice(self, length: int) -> FormChoice:
        """The form that a call with `length` tokens takes, and why."""
        return choose_form(length, self.key_width, self.width, chunk=self.chunk, forced=self.executor)

    def initial_state(
        self, rows: int, *, neurons: int | None = None, device: torch.device | None = None
    ) -> MemoryState:
        keys = (neurons or self.neurons) * (2 if self.positions == "pope" else 1)
        return {"rho": torch.zeros(rows, self.heads, keys, self.width, device=device)}

    def forget(self, state: MemoryState, neurons: Tensor) -> MemoryState:
        """Empties the keys of these neurons (bool [H, N]).

        Under rope both keys of a pair hold both of its neurons, turned into each other: both are emptied.
        """
        rho = state["rho"]
        if self.positions == "rope":
            neurons = neurons.unflatten(-1, (-1, 2)).any(-1).repeat_interleave(2, dim=-1)
        elif self.positions == "pope":
            neurons = neurons.repeat_interleave(2, dim=-1)
        keys = neurons[:, : rho.shape[2], None].to(rho.device)
        return {"rho": rho.masked_fill(keys, 0)}

    def encode(self, neurons: Tensor, position: Tensor) -> Tensor:
        """Keys (= queries) of neurons [B, H, T, N] whose first token stands at `position`: [B, H, T, K]."""
        if self.positions == "alibi":
            return neurons
        dtype = sums_dtype(neurons)
        rotor = self.phase_table()(position, neurons.shape[2], dtype, neurons.device)
        width = neurons.shape[3] // 2 if self.positions == "rope" else neurons.shape[3]
        # a narrow layer uses the first neurons, and so the first frequencies
        return (rotate if self.positions == "rope" else polar)(neurons, rotor[..., :width])

    @property
    def log_decay(self) -> Tensor | None:
        """-slope per head, float64 [H] on the CPU, under alibi, else None."""
        return None if self.slopes is None else -self.slopes

    def _read(
        self,
        neurons: Tensor,
        stream: Tensor,
        state: MemoryState | None,
        position: Tensor,
        carry: bool,
    ) -> tuple[Tensor, MemoryState | None]:
        queries = self.encode(neurons, position)
        length = queries.shape[2]
        # sums and states in float32 or better, whatever the products run in
        wide = sums_dtype(stream)
        values = stream.to(wide)
        rho = None if state is None else state["rho"].to(wide)
        log_decay = self.log_decay
        final: Tensor | None
        with torch.autocast(queries.device.type, enabled=False):
            if self.executor == "naive" or length == 1:
                rho = self._empty(queries, wide) if rho is None else rho
                step = naive.linear_attention if self.executor == "naive" else chunked.single_token
                read, final = step(queries.to(wide), values, rho, log_decay)
            else:
                choice = self.choice(length)
                if choice.form == "dense":
                    read, final = dense.linear_attention(queries, values, rho, log_decay, carry=carry)
                else:
                    read, final = chunked.linear_attention(
                        queries, values, rho, log_decay, chunk=choice.tile, carry=carry
                    )
        return read, {"rho": final} if carry and final is not None else None

    def _empty(self, queries: Tensor, dtype: torch.dtype) -> Tensor:
        rows, heads, _, keys = queries.shape
        return queries.new_zeros(rows, heads, keys, self.width, dtype=dtype)
