"""The loss that moves a policy towards what did better than its group.

With log-probabilities l of whole continuations under the policy as it is, l0 under the policy that drew them, and
advantages A, all [B, G], the ratio is p = exp(l - l0) and

    loss = -weight mean(min(p A, clip(p, 1 - c, 1 + c) A))

which is flat where p has moved by more than c to where A pulls it (PPO, Schulman and others 2017, with one ratio per
sequence). With c = 0 there is no limit and no l0: loss = -weight mean(l A).
"""

from __future__ import annotations

import torch
from torch import Tensor

LARGEST_LOG_RATIO = 20.0


def policy_loss(
    new: Tensor, old: Tensor, advantages: Tensor, *, clip_range: float = 0.2, weight: float = 1.0
) -> Tensor:
    """The loss of a batch of groups, a scalar; its gradient flows through `new` alone.

    Args:
        new, old: log-probabilities of the continuations, [B, G], nats. What is not finite is not mended: it shows in
            the loss and in the norm of the gradients.
        advantages: [B, G].
        clip_range: c; 0 is no limit.
        weight: 0 is no loss.
    Raises:
        ValueError: shapes that differ; a negative range or weight.
    """
    if not new.shape == old.shape == advantages.shape:
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in (new, old, advantages))
        raise ValueError(f"log-probabilities and advantages must have one shape, got {shapes}")
    if clip_range < 0 or weight < 0:
        raise ValueError(f"clip_range and weight must be at least 0, got {clip_range:g} and {weight:g}")
    gains = advantages.detach().to(new.dtype)
    if clip_range == 0:
        return -weight * (new * gains).mean()
    ratio = (new - old.detach()).clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO).exp()
    limited = ratio.clamp(1 - clip_range, 1 + clip_range)
    return -weight * torch.minimum(ratio * gains, limited * gains).mean()
