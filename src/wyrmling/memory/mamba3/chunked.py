"""Mamba-3 by chunks: one pass of the recurrence that the Mamba memories share, over tokens shifted by one.

With g_t = dt_t l_t, the weight of a token in its own write, and n_t = dt_t (1 - l_t), the weight it gives to the token
before it, the state as token t finds it, what t itself adds to its predecessor included, obeys

    h_0 = S_0 + n_1 v_0 k_0^T                                (S_0, v_0, k_0: the state of the call before)
    h_t = exp(a_t) h_{t-1} + (g_t + n_{t+1}) v_t k_t^T

which is the shared recurrence of tokens 0 .. T-1 with scaled keys, and

    y_t = exp(a_t) h_{t-1} q_t + (D + g_t q_t . k_t) v_t
    S_T = exp(a_T) h_{T-1} + g_T v_T k_T^T

So the queries are shifted against the keys: token t reads h_{t-1}, and adds itself with its own weight g_t alone. The
form usually given reads h_t and subtracts n_{t+1} (q_t . k_t) v_t again. It is the same number, but not in floating
point: a long step at t + 1 would leave its rounding error in the read of t. Here no later token can touch a read, and
the term that a chunk's border could count twice does not exist.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ...numerics.decays import decayed
from ..base import MemoryState
from ..ssd.chunked import ssd
from .angles import accumulate, enter, leave, rotate_pairs, rotors
from .naive import Tokens

CHUNK = 64
SEGMENT = 512  # tokens whose angles share a sum of gradients; each hands its state on


def _shifted(first: Tensor | None, later: Tensor) -> Tensor:
    """Tokens 0 .. T-1 of `later` = tokens 1 .. T: `first` [B, H, X], or zeros, before all but the last [B, H, T, X]."""
    if first is None:
        return F.pad(later[:, :, :-1], (0, 0, 1, 0))
    return torch.cat([first[:, :, None], later[:, :, :-1]], dim=2)


def mamba3(
    tokens: Tokens, skip: Tensor, state: MemoryState | None, *, chunk: int = CHUNK, carry: bool = True
) -> tuple[Tensor, MemoryState | None]:
    """As `naive.mamba3`; state None is the empty one, and without `carry` the final state is None."""
    size = max(SEGMENT // chunk, 1) * chunk
    # split, not slices: its backward pass is one concatenation instead of a zero-filled sum per segment
    pieces = list(zip(*(part.split(size, 1 if part is tokens.spin else 2) for part in tokens), strict=True))
    reads, dtype = [], tokens.step.dtype
    for index, piece in enumerate(pieces):
        read, state = _segment(Tokens(*piece), skip, state, chunk, carry or index + 1 < len(pieces))
        reads.append(read)
    if state is not None:
        state["angle"] = state["angle"].to(dtype)  # float64 from segment to segment
    return reads[0] if len(reads) == 1 else torch.cat(reads, dim=2), state


def _segment(
    tokens: Tokens, skip: Tensor, state: MemoryState | None, chunk: int, carry: bool
) -> tuple[Tensor, MemoryState | None]:
    """`mamba3` of some chunks; the angles' gradients end at its borders (see `angles`)."""
    log_decay, step, blend, spin, values, keys, queries = tokens
    start = {} if state is None else enter(state)
    first = start.get("angle")
    own, ahead = step * blend, step * (1 - blend)
    decay = torch.exp(log_decay)
    angle = accumulate(None if first is None else first.detach(), step, spin)
    rotor = rotors(angle.to(step.dtype))
    # the rotation cancels in the product of a token's own key and query
    itself = skip[:, None] + own * (queries * keys).sum(-1)
    keys, queries = rotate_pairs(keys, rotor), rotate_pairs(queries, rotor)

    weight = ahead + F.pad(own[..., :-1], (1, 0))
    reads, found = ssd(
        F.pad(log_decay[..., :-1], (1, 0)),
        _shifted(start.get("value"), values),
        weight[..., None] * _shifted(start.get("key"), keys),
        decay[..., None] * queries,
        start.get("ssm"),
        chunk=chunk,
        carry=carry,
    )
    reads = torch.addcmul(reads, itself[..., None], values)
    if not carry or found is None:
        return reads, None
    # copies: a view would keep the whole stretch alive as long as the state
    angle, key, value = (x[:, :, -1].clone() for x in (angle, keys, values))
    memory = decay[..., -1, None, None] * found
    memory = memory + (own[..., -1, None] * value)[..., None] * key[..., None, :]
    return reads, leave({"ssm": memory, "angle": angle, "key": key, "value": value}, first)


def single_token(tokens: Tokens, skip: Tensor, state: MemoryState) -> tuple[Tensor, MemoryState]:
    """The recurrence for one token: a write of rank two and a read. Shapes as above with T = 1."""
    log_decay, step, blend, spin, values, keys, queries = tokens
    log_decay = log_decay[..., None]  # [B, H, 1, 1], as every number of a token below
    step, blend = step[..., None], blend[..., None]
    start = enter(state)
    angle = accumulate(start["angle"].detach(), tokens.step, spin)
    rotor = rotors(angle.to(step.dtype))
    keys, queries = rotate_pairs(keys, rotor), rotate_pairs(queries, rotor)
    before = torch.exp(log_decay) * step * (1 - blend) * start["key"][:, :, None]
    written = torch.cat([before, step * blend * keys], dim=2)  # [B, H, 2, N]
    ends = torch.cat([state["value"][:, :, None], values], dim=2)  # [B, H, 2, P]
    memory = decayed(start["ssm"], log_decay) + ends.mT @ written
    read = queries @ memory.mT + skip[:, None, None] * values
    final = {"ssm": memory, "angle": angle[:, :, 0], "key": keys[:, :, 0], "value": ends[:, :, 1]}
    final = leave(final, start["angle"])
    return read, {**final, "angle": final["angle"].to(step.dtype)}
