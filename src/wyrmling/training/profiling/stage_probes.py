"""Parts of a training step, each timed on its own: what the embedding, one layer, all layers and the head cost.

A probe reads the first chunk of a micro-batch from an empty state, as the model would, and leaves nothing behind:
gradients are taken, not stored, nothing is drawn, no state and no weight changes. Where a loss is needed that the
part does not have, it is the mean of tanh(x)^2, whose gradient is never zero throughout.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ...model import Model
from ...model.heads.standard import cross_entropy_sum
from ...watch.device_memory import DeviceMemory
from ..machine import Machine

PROBES = (
    "embed_probe",
    "first_layer_forward_probe",
    "first_layer_probe",
    "logits_loss_probe",
    "hidden_logits_loss_probe",
    "hidden_model_forward_probe",
    "hidden_model_probe",
)


class StageProbes:
    """Times the parts of a model.

    Args:
        clock: nanoseconds.
    """

    def __init__(self, model: Model, machine: Machine, clock: Callable[[], int]) -> None:
        self._model, self._machine, self._clock = model, machine, clock
        self._memory = DeviceMemory(machine.device)
        self._weights = [weight for weight in model.parameters() if weight.requires_grad]

    def run(self, tokens: Tensor, targets: Tensor) -> dict[str, int]:
        """Nanoseconds of every probe over one chunk, int64 [B, T]."""
        model, device = self._model, self._machine.device
        tokens, targets = tokens.to(device), targets.to(device)
        with torch.enable_grad(), self._machine.autocast():
            embedded = model.norm(model.embedding(tokens)).detach()
            hidden = model(tokens, carry=False)[0].detach()
            logits = model.logits(hidden).detach()
            calls: dict[str, Callable[[], object]] = {
                "embed_probe": lambda: self._differentiate(
                    _any_loss(model.norm(model.embedding(tokens))), self._weights
                ),
                "first_layer_forward_probe": lambda: self._first_layer(embedded),
                "first_layer_probe": lambda: self._through_first_layer(embedded),
                "logits_loss_probe": lambda: self._through_loss(logits, targets),
                "hidden_logits_loss_probe": lambda: self._through_head(hidden, targets),
                "hidden_model_forward_probe": lambda: model(tokens, carry=False),
                "hidden_model_probe": lambda: self._differentiate(
                    _any_loss(model(tokens, carry=False)[0]), self._weights
                ),
            }
            return {name: self._timed(calls[name]) for name in PROBES}

    def _timed(self, call: Callable[[], object]) -> int:
        self._memory.wait()
        begun = self._clock()
        kept = call()
        self._memory.wait()
        taken = self._clock() - begun
        del kept
        return taken

    def _differentiate(self, loss: Tensor, inputs: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
        with torch.autocast(self._machine.device.type, enabled=False):  # as a backward pass in training
            return torch.autograd.grad(loss, inputs, allow_unused=True)

    def _first_layer(self, embedded: Tensor) -> Tensor:
        rows, length, _ = embedded.shape
        weights = self._model.layer_weights(rows * length)[0]
        position = torch.zeros(rows, dtype=torch.int64)
        hidden, _, _ = self._model.layer_step(
            weights, embedded, None, position=position, layer=0, carry=False
        )
        return hidden

    def _through_first_layer(self, embedded: Tensor) -> object:
        leaf = embedded.detach().requires_grad_()
        return self._differentiate(_any_loss(self._first_layer(leaf)), [leaf, *self._weights])

    def _through_loss(self, logits: Tensor, targets: Tensor) -> float:
        leaf = logits.detach().requires_grad_()
        gradient = self._differentiate(cross_entropy_sum(leaf, targets), [leaf])[0]
        assert gradient is not None
        return float(gradient.sum())

    def _through_head(self, hidden: Tensor, targets: Tensor) -> float:
        leaf = hidden.detach().requires_grad_()
        gradient = self._differentiate(self._model.loss_sum(leaf, targets), [leaf, *self._weights])[0]
        assert gradient is not None
        return float(gradient.sum())


def _any_loss(values: Tensor) -> Tensor:
    return torch.tanh(values.float()).square().mean()
