"""The shared weights as the fused layers of one forward pass use them, and one place for their gradients.

The weights are cast to the products' type and put into the fused neuron order once per forward pass, not once per
layer; and the gradients of all layers are summed in place, in float32, not by adding L full-size tensors.

`GradientGate` ties this to autograd: it is a function of the three weights whose output, an empty token, every layer
takes as an input. So its backward pass runs after those of all layers, and returns the sums as ordinary gradients of
the weights: hooks, replicas and `torch.autograd.grad` see nothing unusual.

Under rope the fused order of neurons holds the first members of all pairs, then the second ones: a rotation then works
on contiguous halves. Narrow layers take the first neurons of every head, in the same order of their own.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class Matrices(NamedTuple):
    """Weights or their gradients, in the fused order of neurons."""

    encoder: Tensor  # [H, D, N]
    encoder_v: Tensor  # [H, D, N]
    decoder: Tensor  # [H, N, D]


def split_pairs(x: Tensor, dim: int) -> Tensor:
    """From neighbours (0, 1, 2, 3, ...) to halves (0, 2, ..., 1, 3, ...) along an axis; a copy."""
    dim %= x.dim()
    return x.unflatten(dim, (-1, 2)).transpose(dim, dim + 1).flatten(dim, dim + 1)


def join_pairs(x: Tensor, dim: int) -> Tensor:
    """The inverse of `split_pairs`; a copy."""
    dim %= x.dim()
    return x.unflatten(dim, (2, -1)).transpose(dim, dim + 1).flatten(dim, dim + 1)


class GradientSums:
    """Where one backward pass sums the gradients of the weights of all layers.

    Args:
        neurons: N of the widest layer.
        dtype: of the sums.
        split: whether the fused order is that of `split_pairs`.
    """

    def __init__(self, neurons: int, dtype: torch.dtype, *, split: bool) -> None:
        self._neurons, self._dtype, self._split = neurons, dtype, split
        self._sums: dict[int, Matrices] = {}
        self._backward_pass: int | None = None
        self._gated = (
            False  # whether anything depends on what a layer hands on, and so on encoder_v and decoder
        )

    def of(self, neurons: int, weights: Matrices, *, gated: bool) -> Matrices:
        """The sums of layers with this many neurons per head, shaped as their weights.

        Args:
            gated: False where only the layer's state matters, which its gate and decoder have no part in.
        """
        current = torch._C._current_graph_task_id()
        if current != self._backward_pass:  # left by a pass that did not ask for the weights' gradients
            self._sums, self._backward_pass, self._gated = {}, current, False
        self._gated = self._gated or gated
        if neurons not in self._sums:
            self._sums[neurons] = Matrices(*(torch.zeros_like(w, dtype=self._dtype) for w in weights))
        return self._sums[neurons]

    def take(self) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """The sums over all layers in the natural order of neurons, which are then forgotten.

        None is no gradient, as autograd has it: a loss on the first layer's state alone does not depend on its gate.
        """
        current = torch._C._current_graph_task_id()
        sums, self._sums = self._sums, {}
        if self._backward_pass != current or not sums:
            return None, None, None
        widest = sorted(sums, reverse=True)
        encoder = self._total([sums[n].encoder for n in widest], -1)
        if not self._gated:
            return encoder, None, None
        return (
            encoder,
            self._total([sums[n].encoder_v for n in widest], -1),
            self._total([sums[n].decoder for n in widest], 1),
        )

    def _total(self, parts: list[Tensor], dim: int) -> Tensor:
        """The sum of gradients of the first neurons, widest first, along the axis of neurons."""
        total, *narrow = [join_pairs(part, dim) if self._split else part for part in parts]
        if total.shape[dim] < self._neurons:  # no layer of this pass has all neurons
            shape = list(total.shape)
            shape[dim] = self._neurons
            total, narrow = total.new_zeros(shape), [total, *narrow]
        for part in narrow:
            total.narrow(dim, 0, part.shape[dim]).add_(part)
        return total


class SharedWeights:
    """What one forward pass knows of the weights.

    Args:
        encoder, encoder_v [H, D, N], decoder [H, N, D]: the parameters, natural order of neurons.
        compute: type of the products.
        split: whether the fused order is that of `split_pairs` (rope) or the natural one.

    Attributes:
        token: what layers pass to autograd in place of the weights; None where no gradient is wanted.
        sums: type of sums and states.
    """

    def __init__(
        self, encoder: Tensor, encoder_v: Tensor, decoder: Tensor, compute: torch.dtype, *, split: bool
    ) -> None:
        # detached tensors share the version counters of their parameters
        self._natural = Matrices(encoder.detach(), encoder_v.detach(), decoder.detach())
        self._versions = self._present_versions()
        self.compute, self.split = compute, split
        self.sums = torch.float64 if compute == torch.float64 else torch.float32
        self._prepared: dict[int, Matrices] = {}
        # the token's place in the graph holds these sums, not the weights: a cycle would outlive the step
        self._gradients = GradientSums(encoder.shape[-1], self.sums, split=split)
        self.token: Tensor | None = None
        if torch.is_grad_enabled() and any(w.requires_grad for w in (encoder, encoder_v, decoder)):
            self.token = GradientGate.apply(self._gradients, encoder, encoder_v, decoder)

    @property
    def heads(self) -> int:
        """H."""
        return self._natural.encoder.shape[0]

    @property
    def width(self) -> int:
        """D."""
        return self._natural.encoder.shape[1]

    def matrices(self, neurons: int) -> Matrices:
        """The weights of layers with this many neurons per head."""
        if neurons not in self._prepared:
            encoder, encoder_v, decoder = self._natural
            self._prepared[neurons] = Matrices(
                self._prepare(encoder[..., :neurons], -1),
                self._prepare(encoder_v[..., :neurons], -1),
                self._prepare(decoder[:, :neurons], 1),
            )
        return self._prepared[neurons]

    def _present_versions(self) -> list[int]:
        return [0 if w.is_inference() else w._version for w in self._natural]

    def check(self) -> None:
        """Before a backward pass: the products below are made with the weights of the forward pass, or not at all.

        Raises:
            RuntimeError: a weight was written to since `prepare`, as autograd says of tensors that it saved.
        """
        if self._versions != self._present_versions():
            raise RuntimeError(
                "a weight was modified by an inplace operation between the forward and the backward pass of a fused "
                "layer: go backward first, or forward again"
            )

    def _prepare(self, weight: Tensor, dim: int) -> Tensor:
        # contiguous rounding first: it halves what the strided copy has to read
        cast = weight.to(self.compute)
        return (split_pairs(cast, dim) if self.split else cast).contiguous()

    def gradients(self, neurons: int, *, gated: bool) -> Matrices:
        """Where the present backward pass sums the gradients of layers with this many neurons per head."""
        return self._gradients.of(neurons, self.matrices(neurons), gated=gated)


class GradientGate(torch.autograd.Function):
    """See the module's text."""

    @staticmethod
    def forward(ctx: Any, sums: GradientSums, encoder: Tensor, encoder_v: Tensor, decoder: Tensor) -> Tensor:
        ctx.sums = sums
        return encoder.new_zeros(())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *_: Tensor) -> tuple[Tensor | None, ...]:
        return None, *ctx.sums.take()
