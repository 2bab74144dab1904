"""State space duality as a loop over tokens: the truth of every test.

Per head, with a_t <= 0 the logarithm of a scalar decay, X_t in R^P the value, B_t and C_t in R^N key and query, and h
the state [P, N]:

    h_t = exp(a_t) h_{t-1} + X_t B_t^T          decay, then write
    y_t = h_t C_t                               read after the write: a token sees itself

Source: Dao and Gu 2024, "Transformers are SSMs" (arXiv 2405.21060), the recurrent form.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...numerics.decays import decayed


def ssd(
    log_decay: Tensor, values: Tensor, keys: Tensor, queries: Tensor, state: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Read and write token after token.

    Args:
        log_decay: [B, H, T], never positive.
        values: [B, H, T, P].
        keys, queries: [B, G, T, N], G a divisor of H; head h uses group h // (H / G).
        state: [B, H, P, N], or None for the empty one.
    Returns: reads [B, H, T, P], final state [B, H, P, N].
    """
    rows, heads, length, width = values.shape
    groups = keys.shape[1]
    keys = keys.repeat_interleave(heads // groups, dim=1)
    queries = queries.repeat_interleave(heads // groups, dim=1)
    if state is None:
        state = values.new_zeros(rows, heads, width, keys.shape[-1])
    reads = []
    for t in range(length):
        written = values[:, :, t, :, None] * keys[:, :, t, None, :]
        state = decayed(state, log_decay[:, :, t, None, None]) + written
        reads.append(torch.einsum("bhpn,bhn->bhp", state, queries[:, :, t]))
    return torch.stack(reads, dim=2), state
