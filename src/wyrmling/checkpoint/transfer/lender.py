"""Who lends weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from ...config.schema.model import Model as ModelConfig
from ...text.tokenizers import Tokenizer


@dataclass(frozen=True)
class Lender:
    """A checkpoint whose weights start another run.

    Attributes:
        name: of the run, for messages.
        config: the `[model]` table that the weights were trained with, overrides applied.
        tokenizer: what their ids mean.
        tensors: the model's tensors by name, on the CPU.
        path, step: of the checkpoint.
    """

    name: str
    config: ModelConfig
    tokenizer: Tokenizer
    tensors: Mapping[str, Tensor]
    path: Path
    step: int
