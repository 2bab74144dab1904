"""The models that are measured, each plain and ours with the same weights, and one training step of either."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from wyrmling.config.schema.model import Model as ModelConfig
from wyrmling.model import Model
from wyrmling.model.fused import Fused
from wyrmling.model.fused.kernels import KernelKind
from wyrmling.numerics.dropout import Dropout

from .plain_bdh import PlainBDH, as_ours

VOCABULARY = 256


@dataclass(frozen=True)
class Size:
    """A model and the batch it is trained on."""

    name: str
    n_layer: int
    n_embd: int
    n_head: int
    multiplier: int
    rows: int
    length: int

    @property
    def neurons(self) -> int:
        """Per head."""
        return self.multiplier * self.n_embd // self.n_head

    @property
    def label(self) -> str:
        return f"{self.name}, T={self.length}, B={self.rows}"

    def to_json(self) -> dict[str, Any]:
        """The arguments of this class, for a child process."""
        return asdict(self)


def small(length: int, rows: int) -> Size:
    """4 layers, D=128, H=4, N=1024 per head."""
    return Size("small", 4, 128, 4, 32, rows, length)


def default(length: int, rows: int) -> Size:
    """6 layers, D=256, H=4, N=8192 per head: the published sizes."""
    return Size("default", 6, 256, 4, 128, rows, length)


SHORT = [small(256, 8), small(512, 4), small(2048, 1), default(512, 2)]
LONG = [small(8192, 1)]  # a plain step takes the better part of a minute, and 8 GB
LEGEND = "small: 4 layers, D=128, H=4, N=1024 per head; default: 6 layers, D=256, H=4, N=8192 per head."


def pair(size: Size, *, dropout: float = 0.0) -> tuple[PlainBDH, Model]:
    """A plain model and ours with the same weights."""
    torch.manual_seed(0)
    shape: dict[str, Any] = {"n_layer": size.n_layer, "n_embd": size.n_embd, "n_head": size.n_head}
    shape["dropout"] = dropout
    plain = PlainBDH(**shape, multiplier=size.multiplier, vocab_size=VOCABULARY)
    ours = Model(ModelConfig(**shape, mlp_internal_dim_multiplier=size.multiplier), VOCABULARY)
    ours.load_state_dict(as_ours(plain))
    return plain, ours


def batch(size: Size) -> tuple[Tensor, Tensor]:
    """Tokens and targets, int64 [B, T]."""
    generator = torch.Generator().manual_seed(1)
    both = torch.randint(0, VOCABULARY, (2, size.rows, size.length), generator=generator)
    return both[0], both[1]


def plain_step(model: PlainBDH, tokens: Tensor, targets: Tensor, low: bool) -> None:
    """Forward and backward of the plain model; `low` is bfloat16 autocast. Dropout is the model's own."""
    model.zero_grad(set_to_none=True)
    with torch.autocast("cpu", torch.bfloat16, enabled=low):
        _, loss = model(tokens, targets)
    assert loss is not None
    loss.backward()


def our_step(
    model: Model,
    tokens: Tensor,
    targets: Tensor,
    low: bool,
    *,
    kernels: KernelKind = "eager",
    dropout: float = 0.0,
) -> None:
    """Forward and backward of our model, with these elementwise kernels."""
    assert isinstance(model.layer_step, Fused)
    model.layer_step.kernels = kernels
    key = Dropout(dropout, 1, 1, tuple(range(len(tokens)))) if dropout else None
    model.zero_grad(set_to_none=True)
    with torch.autocast("cpu", torch.bfloat16, enabled=low):
        hidden, _ = model(tokens, dropout=key, carry=False)
        loss = model.loss_sum(hidden, targets) / targets.numel()
    loss.backward()


def kinds_of_kernels() -> tuple[list[KernelKind], list[str]]:
    """The kinds of elementwise kernels that run here, the fastest one last, and a line for each that does not."""
    probe = Size("probe", 1, 16, 1, 4, 1, 8)
    _, model = pair(probe)
    tokens, targets = batch(probe)
    kinds: list[KernelKind] = ["eager"]
    try:
        our_step(model, tokens, targets, True, kernels="compiled")
    except Exception as error:  # whatever a missing or broken compiler raises
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        return kinds, [f"compiled kernels: left out, they do not run here ({first[:120]})"]
    return [*kinds, "compiled"], []
