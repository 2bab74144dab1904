"""The decayed normalised recurrence as a memory: its decays, its chunks, its state."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...numerics.roles import Role, declare
from ..base import Memory, MemoryState, sums_dtype
from ..choose import FormChoice
from . import chunked, naive
from .chunking import FIRST, SCRATCH_BYTES, runtime_chunk
from .forward import at_once
from .halving import padded
from .workspace import Workspace

EXECUTORS = ("auto", "reference", "naive")
TILE = 512  # tokens that a layer hands over at a time: several chunks, and the neurons of a tile still fit a cache


class Rwkv8(Memory):
    """The decayed normalised recurrence over firing neurons: key = query = neurons, value = the dense stream.

    Positions play no part: what is older weighs less, by a decay of its own for every neuron,

        lam[h, n] = sigmoid(time_decay[h, n])

    Args:
        heads, neurons, width: H, N (neurons per head of the widest layer), D.
        executor: "auto" is the chunked form; "reference" and "naive" are the loop over tokens.

    Attributes:
        chunk_override: tokens per chunk; None follows the rule of `chunking`.
        scratch_bytes: the limit of that rule.

    Shapes: time_decay [H, N]. A narrow layer uses the first columns.

    Source: as `naive.py`, with the first decays of the described system.
    """

    parameter_roles: ClassVar[dict[str, Role]] = {"time_decay": "decay"}

    def __init__(self, heads: int, neurons: int, width: int, *, executor: str = "auto") -> None:
        super().__init__()
        if executor not in EXECUTORS:
            raise ValueError(f"unknown executor {executor!r}: choose one of {', '.join(EXECUTORS)}")
        self.heads = self.read_heads = heads
        self.neurons, self.width, self.executor = neurons, width, executor
        self.chunk_override: int | None = None
        self.scratch_bytes = SCRATCH_BYTES
        self._workspace = Workspace()
        self.time_decay = declare(
            nn.Parameter(initial_time_decay(heads, neurons)), self.parameter_roles["time_decay"]
        )

    def runtime_chunk(self, rows: int, length: int, neurons: int | None = None) -> int:
        """Tokens per chunk of a call with rows x length tokens; only heads and rows that are taken at a time count.

        Raises:
            ValueError: `chunk_override` is not positive.
        """
        neurons = neurons or self.neurons
        heads, rows = at_once(self.heads, rows, neurons * padded(min(FIRST, length)), self.time_decay.device)
        return runtime_chunk(
            rows,
            heads,
            length,
            neurons,
            self.width,
            override=self.chunk_override,
            scratch_bytes=self.scratch_bytes,
        )

    def choice(self, length: int) -> FormChoice:
        """Chunks that hand the state on, always: with a decay per neuron no dense form is cheaper."""
        tile = min(length, TILE)
        if self.executor != "auto":
            reason = f"asked for by model.sequence_kernel.executor, {tile} tokens at a time"
            return FormChoice("sequential", tile, reason)
        chunk = self.chunk_override or FIRST
        return FormChoice("chunked", tile, f"chunks of {min(chunk, tile)} tokens, {tile} tokens at a time")

    def initial_state(
        self, rows: int, *, neurons: int | None = None, device: torch.device | None = None
    ) -> MemoryState:
        shape = (rows, self.heads, neurons or self.neurons)
        return {
            "rho": torch.zeros(*shape, self.width, device=device),
            "norm": torch.zeros(shape, device=device),
        }

    def first_neuron_weights(self) -> dict[str, Tensor]:
        return {"time_decay": initial_time_decay(self.heads, self.neurons)}

    def forget(self, state: MemoryState, neurons: Tensor) -> MemoryState:
        """Empties the keys of these neurons (bool [H, N])."""
        keys = neurons[:, : state["norm"].shape[2]].to(state["norm"].device)
        return {
            "rho": state["rho"].masked_fill(keys[..., None], 0),
            "norm": state["norm"].masked_fill(keys, 0),
        }

    def _read(
        self,
        neurons: Tensor,
        stream: Tensor,
        state: MemoryState | None,
        position: Tensor,
        carry: bool,
    ) -> tuple[Tensor, MemoryState | None]:
        rows, _, length, width = neurons.shape
        # sums and states in float32 or better, whatever the products run in
        wide = sums_dtype(stream)
        rho, norm = (None, None) if state is None else (state["rho"].to(wide), state["norm"].to(wide))
        final_rho: Tensor | None
        final_norm: Tensor | None
        with torch.autocast(neurons.device.type, enabled=False):
            log_decay = F.logsigmoid(self.time_decay[:, :width].to(wide))
            if self.executor == "auto" and length > 1:
                chunk = self.runtime_chunk(rows, length, width)
                read, final_rho, final_norm = chunked.decayed_recurrence(
                    neurons, stream, log_decay, rho, norm, chunk=chunk, carry=carry, workspace=self._workspace
                )
            else:
                if rho is None or norm is None:
                    rho = neurons.new_zeros(rows, self.heads, width, self.width, dtype=wide)
                    norm = neurons.new_zeros(rows, self.heads, width, dtype=wide)
                step = chunked.single_token if self.executor == "auto" else naive.decayed_recurrence
                read, final_rho, final_norm = step(neurons.to(wide), stream.to(wide), log_decay, rho, norm)
        if not carry or final_rho is None or final_norm is None:
            return read, None
        return read, {"rho": final_rho, "norm": final_norm}


def initial_time_decay(heads: int, neurons: int) -> Tensor:
    """The first decays before the sigmoid: neurons from slow (0.995) to fast, later heads faster. float32 [H, N].

    lam = clamp(0.995 - 0.22 n / (N - 1) - 0.03 h / (H - 1), 0.55, 0.995), N that of the widest layer.
    """
    neuron = torch.arange(neurons, dtype=torch.float64) / max(1, neurons - 1)
    head = torch.arange(heads, dtype=torch.float64) / max(1, heads - 1)
    decay = (0.995 - 0.22 * neuron - 0.03 * head[:, None]).clamp(0.55, 0.995)
    return torch.logit(decay).float()
