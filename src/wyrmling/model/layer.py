"""One BDH layer: the contract that executors fulfil, and the executor that composes it from parts.

    x = relu(h E - theta_x)              [B, H, T, N]   which neurons fire
    a = norm(memory(x, h))               [B, H, T, D]   what the past says about them
    y = relu(a E_v - theta_y)            [B, H, T, N]   the gate
    h = norm(h + norm((x * y) Dec))      [B, T, D]

An executor is called as

    layer_step(weights, hidden, state, *, position, layer, reset, dropout, observe, carry)
        -> (hidden, state, observed)

with the weights of this layer as its own `prepare` made them, once per forward pass. It returns all gradients through
autograd, never writes `.grad`, never caches a weight (hooks of replicas, sharding and gradcheck must keep working), and
knows nothing of files or screens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ..memory.base import Memory, MemoryState, reset_rows
from ..numerics.dropout import Dropout
from ..numerics.norms import Norm


class LayerWeights(NamedTuple):
    """The shared weights as one layer sees them (a narrow layer sees the first neurons of every head)."""

    encoder: Tensor  # [H, D, N]
    encoder_v: Tensor  # [H, D, N]
    decoder: Tensor  # [H, N, D]


class Observed(NamedTuple):
    """Sums over rows and tokens, per head and neuron, of one layer call. float32 [H, N]; no gradient."""

    x_firing: Tensor  # how often x > 0
    y_firing: Tensor  # how often the gate y > 0
    activity: Tensor  # sum of x * y (never negative), before dropout
    tokens: int

    def plus(self, other: Observed) -> Observed:
        """The sums over both calls."""
        return Observed(
            self.x_firing + other.x_firing,
            self.y_firing + other.y_firing,
            self.activity + other.activity,
            self.tokens + other.tokens,
        )


class LayerStep(Protocol):
    """The layer contract; see the module's text."""

    def __call__(
        self,
        weights: LayerWeights,
        hidden: Tensor,
        state: MemoryState | None,
        *,
        position: Tensor,
        layer: int,
        reset: Tensor | None = None,
        dropout: Dropout | None = None,
        observe: bool = False,
        carry: bool = True,
    ) -> tuple[Tensor, MemoryState | None, Observed | None]: ...


def products_dtype(weight: Tensor) -> torch.dtype:
    """What products with a weight run in: the weight's own type, or that of autocast."""
    device = weight.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype


def begin(
    state: MemoryState | None, position: Tensor, reset: Tensor | None
) -> tuple[MemoryState | None, Tensor]:
    """State and position as a call starts from them, with the marked rows emptied."""
    if reset is None:
        return state, position
    return None if state is None else reset_rows(state, reset), torch.where(reset.cpu(), 0, position)


class Composed:
    """Any memory, every option, in eager PyTorch: tiles of time that hand the memory's state on.

    Args:
        memory: reads the past.
        norm: the one normalisation of the model.
        x_threshold, y_threshold: what a neuron must exceed to fire.
        recompute: keep only the stream and the states between tiles; compute neurons again in the backward pass.

    Attributes:
        tile_tokens: tokens per tile that somebody asks for; None leaves it to the memory.

    Storage is heads first ([H, B, T, N]): every product is a batch of plain matrix products without copied operands.
    """

    def __init__(
        self,
        memory: Memory,
        norm: Norm,
        *,
        x_threshold: float = 0.0,
        y_threshold: float = 0.0,
        recompute: bool = False,
    ) -> None:
        self.memory, self.norm = memory, norm
        self.x_threshold, self.y_threshold = x_threshold, y_threshold
        self.recompute = recompute
        self.tile_tokens: int | None = None

    def prepare(
        self,
        encoder: Tensor,
        encoder_v: Tensor,
        decoder: Tensor,
        layer_neurons: Sequence[int],
        tokens: int | None = None,
    ) -> Sequence[LayerWeights]:
        """The weights as each layer takes them. Cast once per forward pass under autocast; gradients flow through.

        Args:
            encoder, encoder_v [H, D, N], decoder [H, N, D]: the parameters.
            layer_neurons: neurons per head of each layer; a narrow layer takes the first ones of every head.
            tokens: how many tokens the pass will read; makes no difference here.
        """
        dtype = products_dtype(encoder)
        shared = LayerWeights(encoder.to(dtype), encoder_v.to(dtype), decoder.to(dtype))
        narrow = {
            n: LayerWeights(shared.encoder[..., :n], shared.encoder_v[..., :n], shared.decoder[:, :n])
            for n in set(layer_neurons) - {encoder.shape[-1]}
        }
        return [narrow.get(n, shared) for n in layer_neurons]

    def tile(self, length: int) -> int:
        """Tokens per tile for a call of `length` tokens: what was asked for, or the memory's own choice of form."""
        return min(length, self.tile_tokens) if self.tile_tokens else self.memory.choice(length).tile

    def __call__(
        self,
        weights: LayerWeights,
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
        state, position = begin(state, position, reset)
        outputs, observed = [], None
        tiles = hidden.split(self.tile(hidden.shape[1]), dim=1)
        recompute = self.recompute and torch.is_grad_enabled()
        for index, part in enumerate(tiles):
            arguments = (
                weights,
                part,
                state,
                position,
                layer,
                dropout,
                observe,
                carry or index + 1 < len(tiles),
            )
            if recompute:
                # masks are keyed, so no generator has to be rewound
                result = checkpoint(self._tile, *arguments, use_reentrant=False, preserve_rng_state=False)
            else:
                result = self._tile(*arguments)
            output, state, seen = result
            outputs.append(output)
            position = position + part.shape[1]
            observed = seen if observed is None or seen is None else observed.plus(seen)
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1), state, observed

    def _tile(
        self,
        weights: LayerWeights,
        hidden: Tensor,
        state: MemoryState | None,
        position: Tensor,
        layer: int,
        dropout: Dropout | None,
        observe: bool,
        carry: bool,
    ) -> tuple[Tensor, MemoryState | None, Observed | None]:
        rows, length, width = hidden.shape
        heads, _, neurons = weights.encoder.shape
        compute = weights.encoder.dtype

        stream = hidden.to(compute).reshape(1, rows * length, width).expand(heads, -1, -1)
        x = _fire(torch.bmm(stream, weights.encoder), self.x_threshold)  # [H, B T, N]
        firing = x.view(heads, rows, length, neurons).transpose(0, 1)  # [B, H, T, N], heads first in memory
        read, state = self.memory(firing, hidden, state, position=position, carry=carry)

        a = (
            self.norm(read.transpose(0, 1))
            .to(compute)
            .reshape(-1, rows * length, width)
            .expand(heads, -1, -1)
        )
        y = _fire(torch.bmm(a, weights.encoder_v), self.y_threshold)
        gated = x * y
        observed = _observe(x, y, gated) if observe else None
        scale = 1.0
        if dropout is not None and dropout.threshold:
            mask = dropout.mask(layer, position, length, heads, neurons)
            # as bytes: a product with bools is converted in full first, and takes four times as long
            gated = gated * mask.view(torch.uint8).view(heads, rows * length, neurons).to(gated.device)
            scale = dropout.scale
        delta = torch.bmm(gated, weights.decoder).sum(0, dtype=hidden.dtype).view(rows, length, width)
        # the scale of dropout, applied where it is D wide instead of H N
        return self.norm(hidden + self.norm(delta * scale if scale != 1.0 else delta)), state, observed


def _fire(pre_activation: Tensor, threshold: float) -> Tensor:
    """relu(z - threshold), in the place of z: nobody else holds it."""
    if threshold:
        pre_activation = pre_activation.sub_(threshold)
    return pre_activation.relu_()


@torch.no_grad()
def _observe(x: Tensor, y: Tensor, gated: Tensor) -> Observed:
    return Observed(
        (x > 0).sum(1, dtype=torch.float32),
        (y > 0).sum(1, dtype=torch.float32),
        gated.sum(1, dtype=torch.float32),
        x.shape[1],
    )
