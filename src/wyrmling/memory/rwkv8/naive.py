"""The decayed normalised recurrence as a loop over tokens: the truth of every test.

Per head, with q_t >= 0 the neurons that fire, v_t the stream, lam the decay of every neuron, rho [N, D] and z [N] the
state:

    w_t = q_t / (sum_n q_t[n] + eps)
    a_t = sum_n w_t[n] rho_t[n] / (z_t[n] + eps)              read before write: a token never sees itself
    rho_{t+1} = lam rho_t + q_t v_t^T                         decay, then write: the newest token is whole
    z_{t+1}   = lam z_t + q_t

So rho[n] / z[n] is a decayed mean of what the stream was when neuron n fired, and a token reads the mean of the means
of the neurons that fire now. An empty state reads 0, and so does a token at which nothing fires.

Source: the "decayed normalised recurrence" that the described system runs under the name of RWKV-8. It is neither
RWKV-7 nor ROSA.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...numerics.decays import decayed

EPS = 1e-6  # of both divisions


def decayed_recurrence(
    neurons: Tensor, values: Tensor, log_decay: Tensor, rho: Tensor, norm: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """neurons [B, H, T, N], values [B, T, D], log_decay [H, N] (lam = exp of it), rho [B, H, N, D], norm [B, H, N].

    Returns: reads [B, H, T, D], final rho, final norm.
    """
    reads = []
    for t in range(neurons.shape[2]):
        q, v = neurons[:, :, t], values[:, t]
        weights = q / (q.sum(-1, keepdim=True) + EPS)
        reads.append(torch.einsum("bhn,bhnd->bhd", weights / (norm + EPS), rho))
        rho = decayed(rho, log_decay[:, :, None]) + torch.einsum("bhn,bd->bhnd", q, v)
        norm = decayed(norm, log_decay) + q
    return torch.stack(reads, dim=2), rho, norm
