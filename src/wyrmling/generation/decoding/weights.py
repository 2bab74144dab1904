"""A model's weights in the layout that decoding wants: copies, so that neither side sees the other change."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ...memory import LinearAttention
from ...model.dragon import Model
from ...numerics.norms import Norm
from ...numerics.positions import PhaseTable
from .products import Blocks

PHASE_RUN = 16  # tokens whose rotors are made at a time


@dataclass(frozen=True)
class Weights:
    """Everything a layer needs, read only.

    Attributes:
        encoder, gate, decoder: [H, N, D], rows of neurons, in the dtype that products run in.
        embedding: [V, D], already normalised; head: [D, V]. In the model's precision, as everything below.
    """

    encoder: Tensor
    gate: Tensor
    decoder: Tensor
    embedding: Tensor
    head: Tensor
    norm: Norm
    x_threshold: float
    y_threshold: float

    @cached_property
    def encoder_blocks(self) -> Blocks:
        """The encoder as a single row wants it; made when it is first asked for."""
        return Blocks.of(self.encoder)

    @cached_property
    def gate_blocks(self) -> Blocks:
        """The gate's matrix in the same way."""
        return Blocks.of(self.gate)

    @staticmethod
    def of(model: Model, dtype: torch.dtype) -> Weights:
        """Copies of a model's weights, `dtype` for the three matrices. Call it without a graph."""
        g = model.geometry
        wide = model.encoder.dtype
        norm = copy.deepcopy(model.norm).requires_grad_(False).eval()

        def rows(weight: Tensor) -> Tensor:
            return weight.detach().to(dtype).mT.contiguous()

        return Weights(
            encoder=rows(model.encoder),
            gate=rows(model.encoder_v),
            decoder=model.decoder.detach().view(g.heads, g.neurons, g.width).to(dtype, copy=True),
            embedding=norm(model.embedding.weight.detach()).to(wide),
            head=model.head_weight().detach().to(wide, copy=True),
            norm=norm,
            x_threshold=model.layer_step.x_threshold,
            y_threshold=model.layer_step.y_threshold,
        )

    @property
    def dtype(self) -> torch.dtype:
        """What is computed in between the products: float32 or float64."""
        return self.embedding.dtype


class Phases:
    """The rotors of the next position, made for `PHASE_RUN` positions at a time."""

    def __init__(self, memory: LinearAttention, dtype: torch.dtype) -> None:
        self._table = None if memory.frequencies is None else PhaseTable(memory.frequencies.clone())
        self._dtype = dtype
        self._run: Tensor | None = None
        self._used = 0

    def forget(self) -> None:
        """The next call asks for other rows or positions than those that would follow."""
        self._run = None

    def next(self, position: Tensor) -> Tensor | None:
        """For int64 positions [R]: complex [P] or [R, P]; None without phases. The calls follow each other."""
        if self._table is None:
            return None
        if self._run is None or self._used == PHASE_RUN:
            run = self._table(position, PHASE_RUN, self._dtype, torch.device("cpu"))
            self._run, self._used = run if run.dim() == 2 else run[:, 0].transpose(0, 1), 0
        rotor = self._run[self._used]
        self._used += 1
        return rotor
