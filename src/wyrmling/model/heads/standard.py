"""The standard language head: one logit per token of the vocabulary."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from ...numerics.targets import IGNORED


def cross_entropy_sum(logits: Tensor, targets: Tensor) -> Tensor:
    """Sum over tokens of -log softmax(logits)[target], in nats, ignored targets left out.

    Args:
        logits: [..., V], any float dtype; the softmax runs in float32 or better.
        targets: int64 [...], `IGNORED` where there is no target.
    Returns: a scalar. Divide by the number of targets of the whole optimizer step (law 5), never here.
    """
    flat = logits.reshape(-1, logits.shape[-1])
    if flat.element_size() < 4:
        flat = flat.float()
    return F.cross_entropy(flat, targets.reshape(-1), ignore_index=IGNORED, reduction="sum")


def token_losses(logits: Tensor, targets: Tensor) -> Tensor:
    """The loss of every token, [...] as `targets`; 0 where the target is ignored."""
    flat = logits.reshape(-1, logits.shape[-1])
    if flat.element_size() < 4:
        flat = flat.float()
    losses = F.cross_entropy(flat, targets.reshape(-1), ignore_index=IGNORED, reduction="none")
    return losses.view_as(targets)
