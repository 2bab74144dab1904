"""The Dragon Hatchling (BDH): one layer's weights, applied L times, with a recurrent memory per layer.

    h_0 = norm(embedding[tokens])
    h_{l+1}, state_l = layer(h_l, state_l)      l = 0 .. L-1, the same weights every time
    logits = h_L lm_head

Source: the published BDH code (Pathway, "The Dragon Hatchling", 2025) and its recurrent reading: `model(tokens, state)
-> (hidden, state)` gives the same values for a whole sequence, for chunks of any sizes and token by token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from ..config.schema.model import Model as ModelConfig
from ..memory import LinearAttention
from ..numerics.dropout import Dropout
from ..numerics.norms import Norm
from ..numerics.roles import Role, declare
from ..numerics.settings import own_settings
from . import init
from .fused import Fused
from .geometry import Geometry
from .heads.standard import cross_entropy_sum, token_losses
from .layer import Composed, Observed
from .memories import build_memory
from .state import State


class Model(nn.Module):
    """A BDH language model.

    Args:
        config: the `[model]` table, validated.
        vocab_size: V of the tokenizer; `config.vocab_size` wins where it is set (it may be larger).
        seed: decides the first weights.
        recompute: keep neurons for the backward pass (False) or compute them again (True).

    Parameters: `embedding.weight` [V, D], `encoder` and `encoder_v` [H, D, N], `decoder` [H N, D], `lm_head` [D, V]
    (absent when tied to the embedding), those of `norm` and `memory`. Weights are shared by all layers.
    """

    @own_settings()  # weights are float32 on the CPU, whatever the program's default is
    def __init__(
        self, config: ModelConfig, vocab_size: int, *, seed: int = 1337, recompute: bool = False
    ) -> None:
        super().__init__()
        self.config = config
        self.geometry = g = Geometry.of(config, config.vocab_size or vocab_size)
        start = config.initialization
        self.embedding = nn.Embedding(
            g.vocab_size, g.width, _weight=init.initial_embedding(start, g.vocab_size, g.width, seed)
        )
        declare(cast(nn.Parameter, self.embedding.weight), "embedding")
        sizes = (g.heads, g.width, g.neurons, g.layers)
        self.encoder = declare(nn.Parameter(init.initial_encoder(start, "encoder", *sizes, seed)), "matrix")
        self.encoder_v = declare(
            nn.Parameter(init.initial_encoder(start, "encoder_v", *sizes, seed)), "matrix"
        )
        self.decoder = declare(
            nn.Parameter(init.initial_decoder(start, g.heads, g.neurons, g.width, g.layers, seed)),
            "matrix",
            heads=g.heads,
        )
        self.lm_head: nn.Parameter | None = None
        if not config.tie_embeddings:
            self.lm_head = declare(
                nn.Parameter(init.initial_head(start, g.width, g.vocab_size, seed)), "head"
            )
        norm = config.normalization
        self.norm = Norm(
            g.width, norm.kind, eps=norm.eps, affine=norm.affine, alpha=norm.alpha_init, shift=norm.shift_init
        )
        self.memory = build_memory(config, neurons=g.neurons, seed=seed)
        x_threshold, y_threshold = init.thresholds(start, config.relu_threshold, g.width, g.neurons, g.layers)
        settings: dict[str, Any] = {
            "x_threshold": x_threshold,
            "y_threshold": y_threshold,
            "recompute": recompute,
        }
        self.layer_step: Fused | Composed = (
            Fused(self.memory, self.norm, **settings)
            if isinstance(self.memory, LinearAttention)
            else Composed(self.memory, self.norm, **settings)
        )

    def __setstate__(self, state: dict[str, Any]) -> None:
        """After `copy.deepcopy` or unpickling: new parameters know nothing of their roles."""
        super().__setstate__(state)
        named: dict[str, Role] = {"embedding.weight": "embedding", "lm_head": "head"}
        named |= {f"memory.{name}": role for name, role in self.memory.parameter_roles.items()}
        named |= {"norm.gain": "gain", "norm.alpha": "gain", "norm.bias": "bias", "norm.shift": "bias"}
        parts = {f"memory.{name}": sizes for name, sizes in self.memory.parameter_parts.items()}
        for name, parameter in self.named_parameters():
            heads = self.geometry.heads if name == "decoder" else 1
            declare(parameter, named.get(name, "matrix"), parts=parts.get(name, ()), heads=heads)

    @property
    def device(self) -> torch.device:
        """Where the weights live."""
        return self.encoder.device

    def parameter_count(self) -> int:
        """Trainable numbers, a tied one counted once."""
        return sum(p.numel() for p in self.parameters())

    def initial_state(self, rows: int) -> State:
        """The state of `rows` rows that have seen nothing."""
        layers = tuple(
            self.memory.initial_state(rows, neurons=n, device=self.device)
            for n in self.geometry.layer_neurons
        )
        return State(layers, torch.zeros(rows, dtype=torch.int64))

    def layer_weights(self, tokens: int | None = None) -> Sequence[Any]:
        """The weights of every layer, of the executor's own kind, for a pass over `tokens` tokens (None: many)."""
        g = self.geometry
        decoder = self.decoder.view(g.heads, g.neurons, g.width)
        return self.layer_step.prepare(self.encoder, self.encoder_v, decoder, g.layer_neurons, tokens)

    def forward(
        self,
        tokens: Tensor,
        state: State | None = None,
        *,
        reset: Tensor | None = None,
        dropout: Dropout | None = None,
        observe: list[Observed] | None = None,
        carry: bool = True,
    ) -> tuple[Tensor, State | None]:
        """Read tokens, from a state to a state.

        Args:
            tokens: int64 [B, T]; with B or T = 0 the state stays as it is.
            state: what the rows have seen before; None is nothing. Never changed.
            reset: bool [B], rows that start anew with this call.
            dropout: the key of this step's masks; None (evaluation, generation) drops nothing.
            observe: a list that receives one `Observed` per layer.
            carry: False says that the final state will not be read, and saves computing it (None is returned).
        Returns: hidden [B, T, D], state.
        Raises:
            ValueError: the state has another number of rows than the tokens (a state is never broadcast).
        """
        rows, length = tokens.shape
        if state is not None and state.rows != rows:
            raise ValueError(
                f"the state has {state.rows} rows, the tokens have {rows}: select or concatenate rows"
            )
        if state is not None and reset is not None:
            state = state.reset(reset)
        position = torch.zeros(rows, dtype=torch.int64) if state is None else state.position
        hidden = self.norm(self.embedding(tokens))
        if rows == 0 or length == 0:
            return hidden, (state or self.initial_state(rows)) if carry else None
        layers = []
        for index, weights in enumerate(self.layer_weights(rows * length)):
            hidden, layer_state, observed = self.layer_step(
                weights,
                hidden,
                None if state is None else state.layers[index],
                position=position,
                layer=index,
                dropout=dropout,
                observe=observe is not None,
                carry=carry,
            )
            layers.append(layer_state)
            if observe is not None and observed is not None:
                observe.append(observed)
        if not carry:
            return hidden, None
        return hidden, State(tuple(layer for layer in layers if layer is not None), position + length)

    def head_weight(self) -> Tensor:
        """[D, V]: the head, or the embedding seen from the other side when they are tied."""
        return self.embedding.weight.t() if self.lm_head is None else self.lm_head

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores of the next token: hidden [..., D] -> [..., V], in the head's dtype."""
        weight = self.head_weight()
        return hidden.to(weight.dtype) @ weight

    def loss_sum(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """Sum of the token losses in nats (a scalar); see `cross_entropy_sum`."""
        return cross_entropy_sum(self.logits(hidden), targets)

    def token_losses(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """The loss of every token, int64 targets [B, T] -> [B, T], nats."""
        return token_losses(self.logits(hidden), targets)
