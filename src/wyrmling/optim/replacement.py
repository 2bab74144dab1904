"""Putting new neurons in the place of old ones: weights, moments, and what a carried state remembers of them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..model import Model, State
from ..model.init import initial_encoder
from ..numerics.keyed import hash_int

View = Callable[[Tensor], Tensor]
"""A tensor of a parameter's shape as [H, N, ...], in the same memory."""


def neuron_views(model: Model) -> list[tuple[str, torch.nn.Parameter, View]]:
    """The parameters that belong to single neurons: name, parameter, and a view of it neuron by neuron.

    They are `encoder`, `encoder_v`, `decoder`, and what the memory keeps one number per neuron of.
    """
    own = dict(model.memory.named_parameters())
    return [
        ("encoder", model.encoder, _by_column),
        ("encoder_v", model.encoder_v, _by_column),
        ("decoder", model.decoder, _by_row(model)),
        *((f"memory.{name}", own[name], _as_it_is) for name in model.memory.first_neuron_weights()),
    ]


@torch.no_grad()
def replace_neurons(
    model: Model, optimizer: torch.optim.Optimizer, chosen: Tensor, *, seed: int, step: int | None
) -> None:
    """Give neurons new weights in, no weights out, and moments of zero; all other numbers stay as they are.

    Args:
        chosen: bool [H, N].
        step: draw the weights in anew for this optimizer step; None is the weights that the model began with.

    The memory's numbers of a neuron begin again as in a new model. Moments are whatever the optimizer keeps in the
    shape of a parameter; its counters of steps stay.
    """
    new = _first_weights(model, seed if step is None else hash_int("continual backprop", seed, step))
    for (_, parameter, view), weights in zip(neuron_views(model), new, strict=True):
        where = chosen.to(parameter.device)
        target = view(parameter)
        target[where] = 0 if weights is None else view(weights).to(parameter)[where]
        for slot in optimizer.state.get(parameter, {}).values():
            if isinstance(slot, Tensor) and slot.shape == parameter.shape:
                view(slot)[where] = 0


def forget_neurons(model: Model, state: State, chosen: Tensor) -> State:
    """A state without what these neurons (bool [H, N]) have written into it."""
    return State(tuple(model.memory.forget(layer, chosen) for layer in state.layers), state.position)


def _first_weights(model: Model, seed: int) -> list[Tensor | None]:
    """What a new model of this seed has, in the order of `neuron_views`; None for zeros."""
    g, start = model.geometry, model.config.initialization
    encoder, encoder_v = (
        initial_encoder(start, name, g.heads, g.width, g.neurons, g.layers, seed)
        for name in ("encoder", "encoder_v")
    )
    return [encoder, encoder_v, None, *model.memory.first_neuron_weights().values()]


def _by_column(tensor: Tensor) -> Tensor:
    return tensor.transpose(1, 2)


def _by_row(model: Model) -> View:
    heads = model.geometry.heads
    return lambda tensor: tensor.unflatten(0, (heads, -1))


def _as_it_is(tensor: Tensor) -> Tensor:
    return tensor
