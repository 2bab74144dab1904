"""The sizes of a model, derived once from its configuration, and what they cost in memory."""

from __future__ import annotations

from dataclasses import dataclass

from ..config.fanout import layer_totals
from ..config.schema.model import Model as ModelConfig
from ..config.state_layout import state_numbers


@dataclass(frozen=True)
class Geometry:
    """L, D, H, the widest N, each layer's N, V, and how many numbers a row's state holds over all layers."""

    layers: int
    width: int
    heads: int
    neurons: int
    layer_neurons: tuple[int, ...]
    vocab_size: int
    state_numbers: int
    key_factor: int = 1

    @staticmethod
    def of(config: ModelConfig, vocab_size: int) -> Geometry:
        """From a validated configuration (its rules guarantee that everything divides)."""
        heads = config.n_head
        layer_neurons = tuple(total // heads for total in layer_totals(config))
        linear = config.sequence_kernel.memory_system == "linear_attention"
        return Geometry(
            layers=config.n_layer,
            width=config.n_embd,
            heads=heads,
            neurons=config.neurons_per_head,
            layer_neurons=layer_neurons,
            vocab_size=vocab_size,
            state_numbers=sum(state_numbers(config, neurons) for neurons in layer_neurons),
            key_factor=2 if linear and config.rotary_embedding == "pope" else 1,
        )

    def state_bytes(self, rows: int = 1, element_size: int = 4) -> int:
        """Bytes of the state of `rows` rows: the tensors of every layer, plus the position."""
        return rows * (self.state_numbers * element_size + 8)

    def activation_bytes(
        self,
        rows: int,
        length: int,
        *,
        recompute: bool,
        tile: int,
        element_size: int = 4,
        dropout: bool = False,
    ) -> int:
        """Bytes that a training step keeps for its backward pass, an estimate from the tensors that are kept.

        Without recompute every layer keeps x, the encoded keys, y and x * y (pope: the magnitudes too, dropout: a
        byte per neuron), and its scores; with recompute one tile of one layer has these alive at a time, with as much
        again for their gradients, and a layer keeps its stream and the states between tiles. Neurons have the
        products' `element_size`; stream, states and the softmax have at least four bytes.
        """
        tile = min(tile, length)
        tiles = -(-length // tile)
        wide = max(element_size, 4)
        per_neuron = (3 + self.key_factor) * element_size + dropout + (wide if self.key_factor == 2 else 0)

        def neurons_of(tokens: int, n: int) -> int:
            scores = self.heads * rows * tokens * (min(tile, tokens) + 1) // 2
            return rows * tokens * self.heads * n * per_neuron + scores * element_size

        stream = rows * length * self.width * wide
        states = (tiles - 1) * rows * self.state_numbers * wide
        logits = rows * length * self.vocab_size * wide
        if recompute:
            return self.layers * stream + states + 2 * neurons_of(tile, self.neurons) + logits
        kept = sum(neurons_of(length, n) for n in self.layer_neurons)
        return kept + self.layers * (6 + 2 * self.heads) * stream + states + logits
