"""The sizes of a model, derived once from its configuration, and what they cost in memory."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..config.schema.model import GeometricFanout, LateLayerFanout
from ..config.schema.model import Model as ModelConfig


def fanout(config: ModelConfig) -> tuple[int, ...]:
    """Neurons of all heads together, per layer (the described system's latent fan-out schedules).

    `late_layer`: the base width, then all neurons in the last layers. `geometric`: from the least to all neurons by
    a constant factor, snapped to the nearer multiple of lcm(D, H), the first and last layer exact.
    """
    layers, widest, schedule = config.n_layer, config.total_neurons, config.latent_fanout_schedule
    if schedule is None:
        return (widest,) * layers
    if isinstance(schedule, LateLayerFanout):
        first_wide = layers - schedule.last_layers
        return tuple(widest if i >= first_wide else schedule.base_latent_total for i in range(layers))
    assert isinstance(schedule, GeometricFanout)
    quantum = math.lcm(config.n_embd, config.n_head)
    return tuple(_geometric(i, layers, schedule.min_latent_total, widest, quantum) for i in range(layers))


def _geometric(layer: int, layers: int, least: int, widest: int, quantum: int) -> int:
    if layers <= 1 or layer == layers - 1:
        return widest
    if layer == 0:
        return least
    raw = min(max(round(least * (widest / least) ** (layer / (layers - 1))), least), widest)
    lower = max(raw // quantum * quantum, least)
    upper = min(lower + quantum, widest)
    return lower if raw - lower <= upper - raw else upper


@dataclass(frozen=True)
class Geometry:
    """L, D, H, the widest N, each layer's N, and V."""

    layers: int
    width: int
    heads: int
    neurons: int
    layer_neurons: tuple[int, ...]
    vocab_size: int
    key_factor: int = 1

    @staticmethod
    def of(config: ModelConfig, vocab_size: int) -> Geometry:
        """From a validated configuration (its rules guarantee that everything divides)."""
        heads = config.n_head
        return Geometry(
            layers=config.n_layer,
            width=config.n_embd,
            heads=heads,
            neurons=config.neurons_per_head,
            layer_neurons=tuple(total // heads for total in fanout(config)),
            vocab_size=vocab_size,
            key_factor=2 if config.rotary_embedding == "pope" else 1,
        )

    def state_bytes(self, rows: int = 1, element_size: int = 4) -> int:
        """Bytes of the state of `rows` rows under linear attention: sum of H K D per layer, plus the position."""
        keys = sum(self.layer_neurons) * self.key_factor
        return rows * (self.heads * keys * self.width * element_size + 8)

    def activation_bytes(self, rows: int, length: int, *, recompute: bool, tile: int, element_size: int = 4) -> int:
        """Bytes that a training step keeps for its backward pass, an estimate from the tensors that are kept.

        Without recompute every layer keeps x, the encoded keys, y and x * y, and its scores; with recompute one tile
        of one layer has these alive at a time, with as much again for their gradients, and a layer keeps its stream
        and the states between tiles.
        """
        tile = min(tile, length)
        tiles = -(-length // tile)

        def neurons_of(tokens: int, n: int) -> int:
            scores = self.heads * rows * tokens * (min(tile, tokens) + 1) // 2
            return (rows * tokens * self.heads * n * (3 + self.key_factor) + scores) * element_size

        stream = rows * length * self.width * element_size
        states = sum(
            (tiles - 1) * rows * self.heads * n * self.key_factor * self.width * element_size for n in self.layer_neurons
        )
        logits = rows * length * self.vocab_size * element_size
        if recompute:
            return self.layers * stream + states + 2 * neurons_of(tile, self.neurons) + 2 * logits
        kept = sum(neurons_of(length, n) for n in self.layer_neurons)
        return kept + self.layers * (6 + 2 * self.heads) * stream + states + 2 * logits
