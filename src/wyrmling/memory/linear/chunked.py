"""Linear attention by chunks: dense blocks that hand the state on. Work and memory are linear in T.

Each chunk reads the state that the chunks before it left (one product), attends within itself (a small square) and
adds its own keys and values (one product). Gradients flow through the states.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...numerics.decays import decayed
from . import dense

CHUNK = 128


def linear_attention(
    queries: Tensor,
    values: Tensor,
    state: Tensor | None,
    log_decay: Tensor | None,
    *,
    chunk: int = CHUNK,
    carry: bool = True,
) -> tuple[Tensor, Tensor | None]:
    """As `dense.linear_attention`; `chunk` tokens at a time, the last chunk shorter where T is not a multiple."""
    # split, not slices: its backward pass is one concatenation instead of a zero-filled sum per chunk
    pieces = list(zip(queries.split(chunk, dim=2), values.split(chunk, dim=1), strict=True))
    reads = []
    for index, (q, v) in enumerate(pieces):
        read, state = dense.linear_attention(q, v, state, log_decay, carry=carry or index + 1 < len(pieces))
        reads.append(read)
    return torch.cat(reads, dim=2), state


def single_token(
    queries: Tensor, values: Tensor, state: Tensor, log_decay: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The recurrence for one token: two passes over the state and no scores. Shapes as above with T = 1."""
    q, v = queries.to(state.dtype), values[:, None].to(state.dtype)
    # states are heads first in memory: products in that order need no copy of them
    read = torch.matmul(q.transpose(0, 1), state.transpose(0, 1)).transpose(0, 1)
    state = torch.addcmul(state, q.mT, v)
    if log_decay is not None:
        state = decayed(state, log_decay[:, None, None])
    return read, state
