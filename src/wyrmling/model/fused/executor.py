"""The fused executor of the layer: linear memory, norm, gate and decoder in one autograd function, on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ...memory.base import MemoryState
from ...memory.linear.module import LinearAttention
from ...numerics.dropout import Dropout
from ...numerics.norms import Norm
from ..layer import Composed, LayerWeights, Observed, begin, products_dtype
from .call import LayerCall, Workspace
from .encodings import Phase, encoding
from .function import run_layer
from .kernels import KernelKind, kernels
from .phases import Phases
from .planning import FusedPlan, plan, refusal
from .shared import SharedWeights, join_pairs

# Below this many tokens, and without gradients, preparing the weights costs more than it saves.
WORTHWHILE_TOKENS = 128
DTYPES = (torch.float32, torch.bfloat16, torch.float64)


class FusedWeights(NamedTuple):
    """What `Fused.prepare` hands to a layer: the shared weights, and how many neurons per head this layer has."""

    shared: SharedWeights
    neurons: int
    workspace: Workspace


class Fused:
    """The layer contract, several times faster on a CPU than `Composed`, and with a memory-lean backward pass.

    Args:
        memory: linear attention (positions, frequencies, the asked-for executor).
        norm: the one normalisation of the model.
        x_threshold, y_threshold: what a neuron must exceed to fire.
        recompute: keep only the stream and some states; compute neurons again in the backward pass.

    Attributes:
        kernels: "eager" or "compiled", see `kernels`.
        always_composed: a run's choice that every call goes to `composed`, in the form that the memory takes.
        chunk, keep_every: numbers that somebody asks for; None lets `plan` choose.

    What it does not do goes to `composed`: other devices, single tokens and short reads without gradients (which would
    not pay for preparing the weights), and what `model.sequence_kernel.executor` asks for by name.
    """

    def __init__(
        self,
        memory: LinearAttention,
        norm: Norm,
        *,
        x_threshold: float = 0.0,
        y_threshold: float = 0.0,
        recompute: bool = False,
    ) -> None:
        self.composed = Composed(
            memory, norm, x_threshold=x_threshold, y_threshold=y_threshold, recompute=recompute
        )
        self.memory, self.norm = memory, norm
        self.x_threshold, self.y_threshold = x_threshold, y_threshold
        self.kernels: KernelKind = "eager"
        self.always_composed = False
        self.chunk: int | None = None
        self.keep_every: int | None = None
        self._phases = Phases()

    @property
    def recompute(self) -> bool:
        """Whether neurons are computed again in the backward pass."""
        return self.composed.recompute

    @recompute.setter
    def recompute(self, value: bool) -> None:
        self.composed.recompute = value

    def refusal(self, device: torch.device, dtype: torch.dtype) -> str | None:
        """Why `composed` runs instead, or None."""
        if self.always_composed:
            return "chosen for the run"
        if dtype not in DTYPES:
            return f"the fused layer has no {str(dtype).removeprefix('torch.')} products"
        return refusal(self.memory.executor, device.type)

    def plan(self, rows: int, length: int, dtype: torch.dtype, neurons: int | None = None) -> FusedPlan:
        """How a call of rows x length tokens is cut."""
        keys = (neurons or self.memory.neurons) * self._key_factor
        return plan(
            rows,
            length,
            keys,
            self.memory.width,
            heads=self.memory.heads,
            element_size=dtype.itemsize,
            decays=self.memory.slopes is not None,
            forced=self.memory.executor,
            chunk=self.chunk,
            keep_every=self.keep_every,
        )

    @property
    def _key_factor(self) -> int:
        return self.memory.key_width // self.memory.neurons

    def prepare(
        self,
        encoder: Tensor,
        encoder_v: Tensor,
        decoder: Tensor,
        layer_neurons: Sequence[int],
        tokens: int | None = None,
    ) -> Sequence[FusedWeights | LayerWeights]:
        """The weights as each layer takes them: prepared once, shared by all layers of one forward pass.

        Args:
            encoder, encoder_v [H, D, N], decoder [H, N, D]: the parameters.
            tokens: how many tokens the pass will read in all; None is many.
        """
        compute = products_dtype(encoder)
        short = tokens is not None and tokens < WORTHWHILE_TOKENS and not torch.is_grad_enabled()
        if (
            self.refusal(encoder.device, compute)
            or (short and self.memory.executor != "fused")
            or tokens == 1
        ):
            return self.composed.prepare(encoder, encoder_v, decoder, layer_neurons)
        shared = SharedWeights(encoder, encoder_v, decoder, compute, split=self.memory.positions == "rope")
        workspace = Workspace()
        return [FusedWeights(shared, neurons, workspace) for neurons in layer_neurons]

    def __call__(
        self,
        weights: FusedWeights | LayerWeights,
        hidden: Tensor,
        state: MemoryState | None,
        *,
        position: Tensor,
        layer: int,
        reset: Tensor | None = None,
        dropout: Dropout | None = None,
        observe: bool = False,
        carry: bool = True,
    ) -> tuple[Tensor, MemoryState | None, Observed | None]:
        if isinstance(weights, LayerWeights):
            return self.composed(
                weights, hidden, state, position=position, layer=layer, reset=reset, dropout=dropout,
                observe=observe, carry=carry,
            )  # fmt: skip
        state, position = begin(state, position, reset)
        call = self._call(weights, hidden, position, layer, dropout, observe=observe, carry=carry)
        delta, rho = run_layer(call, hidden, None if state is None else state["rho"])
        delta = delta.to(hidden.dtype)
        if dropout is not None and dropout.threshold:
            delta = delta * dropout.scale  # where it is D wide instead of H N
        hidden = self.norm(hidden + self.norm(delta))
        observed = None
        if call.sums is not None:
            split = weights.shared.split
            sums = [join_pairs(total, -1) if split else total for total in call.sums]
            observed = Observed(sums[0], sums[1], sums[2], hidden.shape[0] * hidden.shape[1])
        return hidden, None if rho is None else {"rho": rho}, observed

    def _call(
        self,
        weights: FusedWeights,
        hidden: Tensor,
        position: Tensor,
        layer: int,
        dropout: Dropout | None,
        *,
        observe: bool,
        carry: bool,
    ) -> LayerCall:
        shared, neurons, workspace = weights
        rows, length, _ = hidden.shape
        chosen = kernels(self.kernels)
        sums = None
        if observe:
            sums = [torch.zeros(shared.heads, neurons) for _ in range(3)]
        return LayerCall(
            shared=shared,
            neurons=neurons,
            key_factor=self._key_factor,
            plan=self.plan(rows, length, shared.compute, neurons),
            kernels=chosen,
            encoding=encoding(self.memory.positions, chosen),
            norm=self.norm,
            x_threshold=self.x_threshold,
            y_threshold=self.y_threshold,
            position=position,
            layer=layer,
            dropout=dropout,
            carry=carry,
            keep=not self.recompute,
            workspace=workspace,
            log_decay=self.memory.log_decay,
            phases=self._phase_source(neurons, shared.compute),
            sums=sums,
        )

    def _phase_source(self, neurons: int, dtype: torch.dtype):  # type: ignore[no-untyped-def]
        if self.memory.positions == "alibi":
            return None
        table = self.memory.phase_table()
        entries = neurons // 2 if self.memory.positions == "rope" else neurons

        def phases(start: Tensor, length: int) -> Phase:
            return self._phases(table, start, length, entries, dtype)

        return phases
