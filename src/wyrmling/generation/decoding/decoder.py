"""One token per row and call, on the CPU, touching only what fires.

A layer, as in the model but for one token (heads first, R rows):

    x = relu(h E - theta_x)                 every neuron: h is dense                       [H, R, N]
    a = norm(past(key(x)))                  rows of the state whose key is not zero        [H, R, D]
    y = relu(a E_v - theta_y)               only where x fires                             [n]
    h = norm(h + norm((x * y) Dec))         only rows of neurons where both fire           [R, D]

Where most fires, or many rows share one reading of the weights, dense products are cheaper and are taken: `products`
decides by counting.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from ...memory import LinearAttention
from ...model.dragon import Model
from ...model.state import State
from ...numerics.positions import polar, rotate
from . import products
from .memory import FOLD, LayerMemory
from .weights import Phases, Weights

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def can_decode(model: torch.nn.Module) -> bool:
    """Whether a `Decoder` stands for this model: linear memory, on the CPU, in float32 or float64.

    A model that is told to be the reference is left to be it.
    """
    return (
        isinstance(model, Model)
        and isinstance(model.memory, LinearAttention)
        and model.memory.executor not in ("reference", "naive")
        and model.device.type == "cpu"
        and model.encoder.dtype in (torch.float32, torch.float64)
    )


class Decoder:
    """Rows that read one token per call: `model(tokens[:, None], state)`, sooner.

    The weights are copied once; the model, and states that are handed in, are never written to. Hidden vectors,
    scores and states that come out are inference tensors, and nobody else's.

    Args:
        model: one that `can_decode`.
        weights: "float32" keeps the model's precision; "bfloat16" rounds the three matrices, and what is multiplied
            with them, and reads half the bytes.
        state: "float32" (the model's precision) or "bfloat16", what the memory is kept in. Rounded states drift; see
            `drift`.
    Raises:
        ValueError: a model that cannot be decoded this way, or a dtype that does not exist here.
    """

    def __init__(self, model: Model, *, weights: str = "float32", state: str = "float32") -> None:
        memory = model.memory
        if not can_decode(model) or not isinstance(memory, LinearAttention):
            raise ValueError("decoding needs a model with linear memory on the CPU, in float32 or float64")
        if weights not in DTYPES or state not in DTYPES:
            raise ValueError(f"weights and state are {' or '.join(DTYPES)}, got {weights!r} and {state!r}")
        wide = model.encoder.dtype
        with torch.inference_mode():
            self._weights = Weights.of(model, wide if weights == "float32" else DTYPES[weights])
        self._state_dtype = wide if state == "float32" else DTYPES[state]
        self._geometry = model.geometry
        self._positions = memory.positions
        self._log_decay = memory.log_decay
        self._phases = Phases(memory, wide)
        self._layers: list[LayerMemory] = []
        self._position = torch.zeros(0, dtype=torch.int64)
        self._places: dict[int, Tensor | None] = {}

    @property
    def rows(self) -> int:
        """Rows that are being decoded."""
        return len(self._position)

    @property
    def position(self) -> Tensor:
        """Tokens that each row has read: int64 [R], a copy."""
        return self._position.clone()

    @property
    def holds_state(self) -> bool:
        """Whether some layer has taken tokens into a state; before that, everything is kept as it came."""
        return any(memory.has_state for memory in self._layers)

    @torch.inference_mode()
    def start(self, rows: int) -> None:
        """Begin with `rows` rows that have seen nothing; what was held before is forgotten."""
        self._begin([None] * self._geometry.layers, torch.zeros(rows, dtype=torch.int64))

    @torch.inference_mode()
    def load(self, state: State, *, copy: bool = True) -> None:
        """Begin with the rows of a state; what was held before is forgotten.

        Args:
            copy: False gives the state's tensors away: they are written to.
        """
        given = [layer["rho"].transpose(0, 1) for layer in state.layers]
        if not bool(state.position.any()) and not any(bool(rho.any()) for rho in given):
            return self.start(state.rows)
        if copy:
            given = [rho.clone(memory_format=torch.contiguous_format) for rho in given]
        self._begin(given, state.position.clone())

    @torch.inference_mode()
    def step(self, tokens: Tensor, *, reads: list[Tensor] | None = None) -> Tensor:
        """Read one token per row.

        Args:
            tokens: int64 [R].
            reads: a list that receives what every layer has read from its past, [H, R, D].
        Returns: hidden [R, D].
        Raises:
            ValueError: another number of tokens than rows.
        """
        if tokens.shape != (self.rows,):
            raise ValueError(f"{self.rows} rows are decoded, got tokens of shape {tuple(tokens.shape)}")
        hidden = self._weights.embedding[tokens]
        rotor = self._phases.next(self._position)
        for memory, neurons in zip(self._layers, self._geometry.layer_neurons, strict=True):
            hidden = self._layer(memory, neurons, hidden, rotor, reads)
        self._position = self._position + 1
        return hidden

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """Scores of the next token: hidden [R, D] -> [R, V]."""
        return hidden @ self._weights.head

    @torch.inference_mode()
    def state(self, rows: Iterable[int] | None = None) -> State:
        """The state of some rows, or of all, as a value of its own; decoding goes on undisturbed."""
        index = None if rows is None else torch.tensor(list(rows), dtype=torch.int64)
        layers = tuple({"rho": memory.state(index).transpose(0, 1)} for memory in self._layers)
        return State(layers, self.position if index is None else self._position[index])

    @torch.inference_mode()
    def select(self, rows: Iterable[int]) -> None:
        """Keep these rows, in this order (repetition allowed); the others leave."""
        index = torch.tensor(list(rows), dtype=torch.int64)
        for memory in self._layers:
            memory.select(index)
        self._position = self._position[index]
        self._arrange()

    def _begin(self, states: Sequence[Tensor | None], position: Tensor) -> None:
        self._layers = []  # before new ones are made: two generations of states need not fit
        g, factor = self._geometry, 2 if self._positions == "pope" else 1
        for index, (given, neurons) in enumerate(zip(states, g.layer_neurons, strict=True)):
            memory = LayerMemory(
                given,
                (g.heads, len(position), neurons * factor, g.width),
                self._weights.dtype,
                self._state_dtype,
                self._log_decay,
                first_fold=max(1, FOLD * (index + 1) // g.layers),
                dense_keys=self._positions == "pope",
            )
            self._layers.append(memory)
        self._position = position
        self._arrange()

    def _arrange(self) -> None:
        """What depends on the number of rows: for every entry of [H, R, n] its neuron's row in the weights."""
        self._phases.forget()
        g = self._geometry
        self._places = {}
        for neurons in set(g.layer_neurons):
            of_head = torch.arange(g.heads)[:, None, None] * g.neurons
            every = (of_head + torch.arange(neurons)).expand(g.heads, self.rows, neurons)
            # one row, all neurons: an entry's place is its row
            plain = self.rows == 1 and neurons == g.neurons
            self._places[neurons] = None if plain else every.reshape(-1)

    def _layer(
        self,
        memory: LayerMemory,
        neurons: int,
        hidden: Tensor,
        rotor: Tensor | None,
        reads: list[Tensor] | None,
    ) -> Tensor:
        w = self._weights
        stream = hidden.to(w.encoder.dtype).expand(w.encoder.shape[0], -1, -1)
        if self.rows == 1:
            x = w.encoder_blocks.project(stream, neurons).to(w.dtype)
        else:
            x = products.project(stream, w.encoder[:, :neurons]).to(w.dtype)
        x = (x.sub_(w.x_threshold) if w.x_threshold else x).relu_()
        self._write_key(memory.slot(), x, rotor)
        read = memory.read()
        memory.take(hidden)
        if reads is not None:
            reads.append(read)
        delta = self._fan_in(x, w.norm(read))
        return w.norm(hidden + w.norm(delta))

    def _write_key(self, slot: Tensor, x: Tensor, rotor: Tensor | None) -> None:
        if rotor is None:
            slot.copy_(x)
        elif self._positions == "rope":
            slot.copy_(rotate(x, rotor[..., : x.shape[-1] // 2]))
        else:
            slot.copy_(polar(x, rotor[..., : x.shape[-1]]))

    def _fan_in(self, x: Tensor, a: Tensor) -> Tensor:
        """(x * relu(a E_v - theta_y)) Dec, summed over heads. x [H, R, n], a [H, R, D] -> [R, D]."""
        w = self._weights
        heads, rows, neurons = x.shape
        found = products.firing(x, heads * rows)
        y = products.project_firing(a, w.gate, found, self._in_weights(found.entries, neurons))
        if y is None:
            gated = self._gate(self._project_gate(a.to(w.gate.dtype), neurons).to(w.dtype)).mul_(x)
            found = products.firing(gated, heads * rows)
            if len(found.entries) > products.SUMMED_SHARE * w.decoder[..., 0].numel():
                dense = torch.bmm(gated.to(w.decoder.dtype), w.decoder[:, :neurons])
                return dense.sum(0, dtype=w.dtype)
            index, weights = found.entries, gated.view(-1).index_select(0, found.entries)
        else:
            weights = self._gate(y.to(w.dtype)).mul_(x.view(-1).index_select(0, found.entries))
            kept = products.firing(weights, 1).entries
            index, weights = found.entries.index_select(0, kept), weights.index_select(0, kept)
            found = products.Firing(index, torch.searchsorted(kept, found.starts))
        table = w.decoder.view(-1, w.decoder.shape[-1])
        sums = products.sum_rows(table, self._in_weights(index, neurons), found.starts, weights)
        return sums.view(heads, rows, -1).sum(0, dtype=w.dtype)

    def _project_gate(self, a: Tensor, neurons: int) -> Tensor:
        """a [H, R, D] times all of E_v: [H, R, n]."""
        w = self._weights
        # a large table in full precision is held once, as rows: those that fire are the cheaper way there
        if self.rows == 1 and not (products.is_large(w.gate) and w.gate.dtype != torch.bfloat16):
            return w.gate_blocks.project(a, neurons)
        return products.project(a, w.gate[:, :neurons])

    def _gate(self, y: Tensor) -> Tensor:
        threshold = self._weights.y_threshold
        return (y.sub_(threshold) if threshold else y).relu_()

    def _in_weights(self, index: Tensor, neurons: int) -> Tensor:
        places = self._places[neurons]
        return index if places is None else places.index_select(0, index)
