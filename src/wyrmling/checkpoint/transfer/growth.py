"""More neurons and more heads that compute what fewer did.

A neuron n of a head takes part in three products: the memory reads a sum over neurons of q_n rho_n, where q_n is x_n
(turned by its angle) and rho_n a sum of earlier q_n v; the gate gives x_n y_n; the decoder adds x_n y_n dec_n. Where
n becomes c copies k = 1 .. c, these hold it exactly:

    encoder_k   = encoder_n / c^p              x_k = x_n / c^p        (relu is homogeneous, at threshold 0)
    encoder_v_k = encoder_v_n                  y_k = y_n
    decoder_k   = decoder_n / c^(1-p) + e_k    sum_k x_k y_k dec_k = x_n y_n dec_n,   where sum_k e_k = 0
    rho_k       = rho_n / c^p                  sum_k q_k rho_k = c^(1-2p) q_n rho_n

with p = 1/2 where the memory reads neurons (linear attention) and p = 0, at any threshold, where it does not (mamba2,
mamba3). The frequency of a rotary pair goes to both copies of both of its neurons, so pairs split as wholes. The e_k
cancel as long as the copies fire alike, and let their gradients differ, so that they part company.

Copies stand beside each other and the order of pairs stays: a narrow layer, which takes the first neurons of every
head, still finds all copies of its own. New heads have fresh encoders and a decoder of zeros.

rwkv8 divides by sums of neurons plus a constant, and pope takes softplus(x), never 0: neither is homogeneous, and no
such rule exists. Their heads can grow.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ...config.fanout import layer_totals
from ...config.schema.model import Model as ModelConfig
from ...errors import CheckpointError
from ...model import State
from ...model.init import thresholds
from ...numerics.first_draws import generator

PARTING = 0.1
"""Size of the e_k, as a share of the decoder's root mean square."""


@dataclass(frozen=True)
class Growth:
    """Which neuron every neuron of the larger model comes from.

    Attributes:
        heads, neurons: (before, after), neurons per head of the widest layer.
        parents: int64 [neurons after], the neuron it is a copy of; copies of pairs stand in the pairs' order.
        copies: int64 [neurons after], how many copies of that neuron there are.
        power: p of the module's text.
    """

    heads: tuple[int, int]
    neurons: tuple[int, int]
    parents: Tensor
    copies: Tensor
    power: float

    @staticmethod
    def between(old: ModelConfig, new: ModelConfig, name: str) -> Growth:
        """How a model of `old` becomes one of `new`; `name` is the run of the old one, for messages.

        Raises:
            CheckpointError: it would shrink, or no exact rule exists.
        """
        heads, neurons = (old.n_head, new.n_head), (old.neurons_per_head, new.neurons_per_head)
        if heads[1] < heads[0] or neurons[1] < neurons[0]:
            least = (
                f": set model.latent_total to {heads[1] * neurons[0]} or more" if heads[1] >= heads[0] else ""
            )
            raise CheckpointError(
                f"{name} has {heads[0]} heads of {neurons[0]} neurons, this configuration asks for {heads[1]} of "
                f"{neurons[1]}: both can be added, neither taken away{least}"
            )
        if neurons[0] == neurons[1]:
            if heads[0] != heads[1]:
                _segments(old, new, name)
            everyone = torch.arange(neurons[0])
            return Growth(heads, neurons, everyone, torch.ones_like(everyone), 0.5)
        power, together = _rule(old, new, name)
        parents = _parents(_segments(old, new, name), together)
        return Growth(heads, neurons, parents, torch.bincount(parents)[parents], power)

    @property
    def splits(self) -> bool:
        """Whether there are more neurons per head."""
        return self.neurons[0] != self.neurons[1]

    @property
    def adds_heads(self) -> bool:
        """Whether there are more heads."""
        return self.heads[0] != self.heads[1]

    def text(self) -> str:
        """What grows, for a person."""
        parts = []
        if self.splits:
            split = int((torch.bincount(self.parents) > 1).sum())
            parts.append(
                f"{self.neurons[0]} -> {self.neurons[1]} neurons per head ({split} of {self.neurons[0]} split)"
            )
        if self.adds_heads:
            parts.append(f"{self.heads[0]} -> {self.heads[1]} heads")
        return ", ".join(parts)

    def tensors(
        self, tensors: Mapping[str, Tensor], fresh: Mapping[str, Tensor], seed: int
    ) -> dict[str, Tensor]:
        """The tensors of a model that change as it grows, in float64 (frequencies and slopes as they are).

        Args:
            tensors: of the smaller model, by name.
            fresh: first weights of the larger one.
            seed: of what lets copies part company.
        """
        if not (self.splits or self.adds_heads):
            return {}
        grown: dict[str, Tensor] = {}
        narrower = self.copies.to(torch.float64) ** -self.power
        for name in ("encoder", "encoder_v"):
            split = tensors[name].double()[..., self.parents]
            grown[name] = self._with_heads(split * narrower if name == "encoder" else split, fresh[name])
        grown["decoder"] = self._decoder(tensors["decoder"].double(), seed)
        if self.splits and "memory.frequencies" in tensors:
            grown["memory.frequencies"] = tensors["memory.frequencies"][self.parents[::2] // 2]
        if self.adds_heads:
            for name in ("memory.slopes", "memory.time_decay"):
                if name in tensors and name in fresh:
                    grown[name] = self._with_heads(tensors[name].double(), fresh[name])
        return grown

    def _with_heads(self, tensor: Tensor, fresh: Tensor) -> Tensor:
        """The new heads' fresh weights behind the old ones, along the first axis."""
        return torch.cat([tensor, fresh[self.heads[0] :].to(tensor)])

    def _decoder(self, decoder: Tensor, seed: int) -> Tensor:
        """[H N, D] to [H' N', D]: rows shared out among copies, zeros for new heads."""
        width, share = decoder.shape[1], self.copies.to(torch.float64) ** (self.power - 1)
        rows = decoder.view(self.heads[0], self.neurons[0], width)[:, self.parents] * share[:, None]
        size = PARTING * float(rows.square().mean().sqrt())
        noise = torch.randn(rows.shape, dtype=torch.float64, generator=generator(seed, "decoder", "growth"))
        sums = torch.zeros(self.heads[0], self.neurons[0], width, dtype=torch.float64)
        sums.index_add_(1, self.parents, noise)
        apart = noise - sums[:, self.parents] / self.copies[:, None]  # 0 for a neuron that has no copies
        new = rows.new_zeros(self.heads[1] - self.heads[0], *rows.shape[1:])
        return torch.cat([rows + size * apart, new]).reshape(-1, width)


def grow_state(state: State, growth: Growth) -> State:
    """A state that the smaller model left, as the larger one goes on with it: the same logits follow.

    Rows of neurons are shared out among their copies, new heads have seen nothing; the Mamba memories keep neither.
    """
    return State(tuple(_grown_layer(layer, growth) for layer in state.layers), state.position)


def _grown_layer(layer: Mapping[str, Tensor], growth: Growth) -> dict[str, Tensor]:
    if "rho" not in layer:
        return dict(layer)
    grown = {}
    for name, part in layer.items():
        if growth.splits:
            parents = growth.parents.to(part.device)
            parents = parents[parents < part.shape[2]]  # of a narrow layer, the first neurons
            copies = growth.copies[: len(parents)].to(part)
            part = part[:, :, parents] * (copies**-growth.power)[:, None]
        rows, _, *rest = part.shape
        new = part.new_zeros(rows, growth.heads[1] - growth.heads[0], *rest)
        grown[name] = torch.cat([part, new], dim=1)
    return grown


def _rule(old: ModelConfig, new: ModelConfig, name: str) -> tuple[float, int]:
    """The power p and how many neurons split together.

    Raises:
        CheckpointError: none is exact.
    """
    memory, positions = new.sequence_kernel.memory_system, new.rotary_embedding
    linear = memory == "linear_attention"
    ask = f"{name} has {old.neurons_per_head} neurons per head and {new.neurons_per_head} are asked for: "
    if memory == "rwkv8":
        raise CheckpointError(
            f"{ask}neurons of rwkv8 cannot be split exactly; add heads (model.n_head) instead"
        )
    if linear and positions == "pope":
        raise CheckpointError(
            f'{ask}neurons cannot be split exactly under model.rotary_embedding = "pope"; add heads (model.n_head) '
            "instead"
        )
    before, after = (
        thresholds(one.initialization, one.relu_threshold, one.n_embd, one.neurons_per_head, one.n_layer)
        for one in (old, new)
    )
    if before != after:
        raise CheckpointError(
            f"{ask}its neurons fire above {_pair(before)}, those of this configuration above {_pair(after)} (x, y); "
            "set model.initialization.firing_targets to explicit_thresholds with the old ones"
        )
    if linear and after[0]:
        raise CheckpointError(
            f"{ask}neurons split exactly only where x fires above 0 (here {after[0]:g}: model.relu_threshold, "
            "model.initialization.firing_targets); add heads (model.n_head) instead"
        )
    return (0.5, 2 if positions == "rope" else 1) if linear else (0.0, 1)


def _pair(values: tuple[float, float]) -> str:
    return f"{values[0]:g} and {values[1]:g}"


def _segments(old: ModelConfig, new: ModelConfig, name: str) -> list[tuple[int, int]]:
    """Neurons (before, after) of each band between one layer width and the next wider one.

    Raises:
        CheckpointError: the layers' widths do not correspond.
    """
    widths = [[total // one.n_head for total in layer_totals(one)] for one in (old, new)]
    levels = [sorted({*layer, one.neurons_per_head}) for layer, one in zip(widths, (old, new), strict=True)]
    ranks = [[level.index(n) for n in layer] for layer, level in zip(widths, levels, strict=True)]
    bands = [[b - a for a, b in zip([0, *level], level, strict=False)] for level in levels]
    alike = len(levels[0]) == len(levels[1]) and (len(ranks[0]) != len(ranks[1]) or ranks[0] == ranks[1])
    if not alike or any(after < before for before, after in zip(*bands, strict=True)):
        raise CheckpointError(
            f"{name} has layers of {_listed(widths[0])} neurons per head, this configuration of {_listed(widths[1])}: "
            "a model grows exactly only where narrow layers stay narrow and none of them loses neurons; change "
            "model.latent_fanout_schedule"
        )
    return list(zip(*bands, strict=True))


def _listed(widths: list[int]) -> str:
    return ", ".join(map(str, widths))


def _parents(segments: list[tuple[int, int]], together: int) -> Tensor:
    """The parent of every neuron: within a band, those that split lie evenly between those that do not."""
    parents: list[int] = []
    begin = 0
    for before, after in segments:
        groups, wanted = before // together, after // together
        for group in range(groups):
            copies = (group + 1) * wanted // groups - group * wanted // groups
            first = begin + group * together
            parents += list(range(first, first + together)) * copies
        begin += before
    return torch.tensor(parents)
