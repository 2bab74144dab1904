"""Linear attention as a loop over tokens: the truth of every test.

Per head, with q_t the encoded neurons (which are key and query alike), v_t the stream, S the state [K, D], and d the
head's decay (1 except under ALiBi):

    a_t = S_t^T q_t                      read before write: a token never sees itself
    S_{t+1} = d (S_t + q_t v_t^T)        write, then decay

Source: the published BDH code (tril(-1) scores, K = Q, no softmax, no scale), in its recurrent form.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...numerics.decays import decayed


def linear_attention(
    queries: Tensor, values: Tensor, state: Tensor, log_decay: Tensor | None
) -> tuple[Tensor, Tensor]:
    """queries [B, H, T, K], values [B, T, D], state [B, H, K, D], log_decay float64 [H] (log d) or None.

    Returns: reads [B, H, T, D], final state [B, H, K, D].
    """
    reads = []
    for t in range(queries.shape[2]):
        q, v = queries[:, :, t], values[:, t]
        reads.append(torch.einsum("bhk,bhkd->bhd", q, state))
        state = state + torch.einsum("bhk,bd->bhkd", q, v)
        if log_decay is not None:
            state = decayed(state, log_decay[:, None, None])
    return torch.stack(reads, dim=2), state
