"""State space duality by chunks, in the four classical steps, with an analytic backward pass.

Inside a chunk of Q tokens with the state h_0 before it, A_t = a_1 + ... + a_t and L_ts = exp(A_t - A_s) for s <= t,
else 0:

    1. within       Y_t = sum_s L_ts (C_t . B_s) X_s
    2. chunk state  S = sum_s exp(A_Q - A_s) X_s B_s^T
    3. pass on      h_Q = exp(A_Q) h_0 + S                   the only loop: over chunks
    4. from before  Y_t += exp(A_t) h_0 C_t

Backward, with g_t = dL/dY_t, Gamma = dL/dh_Q, P_ts = L_ts (C_t . B_s), M_ts = L_ts (g_t . X_s):

    dh_0 = exp(A_Q) Gamma + sum_t exp(A_t) g_t C_t^T         the same loop, backwards
    dX_s = sum_t P_ts g_t + exp(A_Q - A_s) Gamma B_s
    dC_t = sum_s M_ts B_s + u_t,      u_t = exp(A_t) h_0^T g_t
    dB_s = sum_t M_ts C_t + w_s,      w_s = exp(A_Q - A_s) Gamma^T X_s
    da_u = sum_{s<u<=t} M_ts (C_t . B_s) + sum_{t>=u} C_t . u_t + sum_{s<u} B_s . w_s + exp(A_Q) <Gamma, h_0>

da_u sums what decays across u and nothing else. The shorter way, over the gradients of A_t, subtracts large sums:
where decays are strong, rounding would be all that is left. The backward pass keeps the inputs and the state before
each chunk; scores are computed again.

Sums of logarithms are float64: after a strong decay, differences of float32 sums would be all rounding. Their
differences are clamped to <= 0 before exp. All chunks of a segment of tokens are one batch of products; segments hand
the state on, so that working memory does not grow with T.

Source: Dao and Gu 2024, "Transformers are SSMs" (arXiv 2405.21060), section 6.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from ...numerics.decays import decayed
from ...numerics.sums import for_masked_product, running_sum
from ..base import sums_dtype

CHUNK = 64
SEGMENT = 1024  # tokens whose chunks are one batch: enough to fill the products, not to leave the cache
FORGOTTEN = -1000.0  # exp of this is 0 in float64; stronger decays would only cost the others their digits


class _Decays:
    """The decays of a batch of chunks, from log_decay [B, H, c, Q]; all in [0, 1]."""

    def __init__(self, log_decay: Tensor) -> None:
        exact = torch.float32 if log_decay.device.type == "mps" else torch.float64  # mps has no float64
        total, dtype = running_sum(log_decay.clamp_min(FORGOTTEN), dtype=exact), log_decay.dtype
        last = total[..., -1:]
        self.from_start = total.to(dtype).exp()[..., None]  # [B, H, c, Q, 1]
        self.to_end = (last - total).clamp_max_(0).to(dtype).exp()[..., None]  # [B, H, c, Q, 1]
        self.whole = last.to(dtype).exp()[..., None]  # [B, H, c, 1, 1]
        between = (total[..., :, None] - total[..., None, :]).clamp_max_(0).to(dtype)
        # [B, H, c, Q, Q]; 1 above the diagonal: what it is multiplied with is masked, since 0 times inf is no mask
        self.between = between.exp_()


def _product(left: Tensor, right: Tensor, add_to: Tensor | None = None) -> Tensor:
    """left @ right over all leading axes; added in place to `add_to`, which is contiguous, where it is given."""
    lead, left, right = left.shape[:-2], left.flatten(0, -3), right.flatten(0, -3)
    if add_to is None:
        return torch.bmm(left, right).unflatten(0, lead)
    add_to.view(-1, *add_to.shape[-2:]).baddbmm_(left, right)
    return add_to


def _heads_of(grouped: Tensor, by_head: Tensor) -> Tensor:
    """grouped [B, G, ...] times by_head [B, H, ...]: every head with its group's share. [B, H, ...]"""
    split = by_head.unflatten(1, (grouped.shape[1], -1))
    return (grouped[:, :, None] * split).flatten(1, 2)


def _sum_of_heads(by_head: Tensor, groups: int) -> Tensor:
    """[B, H, ...] -> [B, G, ...], the sum over the heads of each group."""
    return by_head if groups == by_head.shape[1] else by_head.unflatten(1, (groups, -1)).sum(2)


def _pass_on(
    writes: Tensor, whole: Tensor, first: Tensor | None, *, backwards: bool = False
) -> tuple[Tensor, Tensor]:
    """h <- whole h + write, chunk after chunk (`backwards`: from the last to the first).

    writes [B, H, c, P, N], whole [B, H, c, 1, 1], first [B, H, P, N] or None (zeros).
    Returns: what each chunk begins with [B, H, c, P, N]; what the last one leaves [B, H, P, N].
    """
    begins = torch.empty_like(writes)
    current = torch.zeros_like(writes[:, :, 0]) if first is None else first
    chunks = range(writes.shape[2])
    for i in reversed(chunks) if backwards else chunks:
        begins[:, :, i] = current
        current = torch.addcmul(writes[:, :, i], whole[:, :, i], current)
    return begins, current


class _Segment(torch.autograd.Function):
    """Whole chunks with the analytic backward pass of the module's text. All tensors in one dtype."""

    @staticmethod
    def forward(
        ctx: Any, log_decay: Tensor, x: Tensor, b: Tensor, c: Tensor, state: Tensor | None, carry: bool
    ) -> tuple[Tensor, Tensor | None]:
        """log_decay [B, H, c, Q], x [B, H, c, Q, P], b and c [B, G, c, Q, N], state [B, H, P, N] or None.

        Returns: reads [B, H, c, Q, P]; final state [B, H, P, N], or None without `carry`.
        """
        decays = _Decays(log_decay)
        finite, seen = for_masked_product(x, -2, own=True)
        reads = _product(_heads_of(_product(c, b.mT), decays.between).tril_(), finite)
        if seen is not None:
            reads += seen
        before = final = None
        if state is not None or carry or x.shape[2] > 1:
            writes = _product(x.mT, _heads_of(b, decays.to_end))
            before, final = _pass_on(writes, decays.whole, state)
            _product(_heads_of(c, decays.from_start), before.mT, add_to=reads)
        ctx.save_for_backward(log_decay, x, b, c, before)
        ctx.from_state = state is not None
        ctx.set_materialize_grads(False)  # a final state that nobody used costs nothing
        return reads, final if carry else None

    @staticmethod
    @once_differentiable  # scores are made again from constants: a second derivative must fail, not be wrong
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        log_decay, x, b, c, before = ctx.saved_tensors
        g, g_final = gradients
        unread = g is None  # a state alone depends on no query
        g = torch.zeros_like(x) if g is None else g.contiguous()
        with torch.autocast(x.device.type, enabled=False):
            groups = b.shape[1]
            decays = _Decays(log_decay)
            raw = _product(c, b.mT)
            g_scores = _product(g, x.mT).mul_(decays.between).tril_()  # M
            across = _across(_heads_of(raw, g_scores))
            shared = _sum_of_heads(g_scores, groups)
            g_c, g_b = _product(shared, b), _product(shared.mT, c)
            g_x = _product(_heads_of(raw, decays.between).tril_().mT, g)
            g_state = None
            if before is not None:
                writes = _product(g.mT, _heads_of(c, decays.from_start))
                gamma, g_state = _pass_on(writes, decays.whole, g_final, backwards=True)
                u = _product(g, before).mul_(decays.from_start)
                w = _product(x, gamma).mul_(decays.to_end)
                _product(_heads_of(b, decays.to_end), gamma.mT, add_to=g_x)
                g_c += _sum_of_heads(u, groups)
                g_b += _sum_of_heads(w, groups)
                across += _sum_from(_heads_of(c, u).sum(-1)) + _sum_before(_heads_of(b, w).sum(-1))
                across += (gamma * before).sum((-2, -1))[..., None] * decays.whole[..., 0]
        return across, g_x, g_b, None if unread else g_c, g_state if ctx.from_state else None, None


def _sum_from(x: Tensor) -> Tensor:
    """sum_{t>=u} x_t for every u of the last axis."""
    return running_sum(x.flip(-1)).flip(-1)


def _sum_before(x: Tensor) -> Tensor:
    """sum_{s<u} x_s for every u of the last axis."""
    return functional.pad(running_sum(x)[..., :-1], (1, 0))


def _across(weights: Tensor) -> Tensor:
    """sum_{s<u<=t} weights_ts of [..., Q, Q] for every u: [..., Q]."""
    return functional.pad(running_sum(weights).tril_(-1).sum(-2)[..., :-1], (1, 0))


def _segment(
    log_decay: Tensor,
    values: Tensor,
    keys: Tensor,
    queries: Tensor,
    state: Tensor | None,
    chunk: int,
    carry: bool,
) -> tuple[Tensor, Tensor | None]:
    """`ssd` of one segment: chunks of equal length, the last one padded with tokens that write and decay nothing."""
    length = values.shape[2]
    chunks = -(-length // chunk)
    chunk = -(-length // chunks)  # equal shares: less to pad
    missing = chunks * chunk - length
    if missing:
        log_decay = functional.pad(log_decay, (0, missing))
        values, keys, queries = (functional.pad(t, (0, 0, 0, missing)) for t in (values, keys, queries))
    parts = [t.unflatten(2, (chunks, chunk)).contiguous() for t in (log_decay, values, keys, queries)]
    reads, final = _Segment.apply(*parts, state, carry)
    return reads.flatten(2, 3)[:, :, :length], final


def ssd(
    log_decay: Tensor,
    values: Tensor,
    keys: Tensor,
    queries: Tensor,
    state: Tensor | None,
    *,
    chunk: int = CHUNK,
    carry: bool = True,
) -> tuple[Tensor, Tensor | None]:
    """Read and write T >= 1 tokens, `chunk` at a time.

    Args:
        log_decay: [B, H, T], never positive.
        values: [B, H, T, P].
        keys, queries: [B, G, T, N], G a divisor of H; head h uses group h // (H / G).
        state: [B, H, P, N], or None for the empty one.
        carry: False says that nobody will read the final state, which then need not be computed.
    Returns: reads [B, H, T, P], final state [B, H, P, N] or None. float64 where the values are, else float32.
    """
    wide = sums_dtype(values)
    log_decay, values, keys, queries = (t.to(wide) for t in (log_decay, values, keys, queries))
    state = None if state is None else state.to(wide)
    with torch.autocast(values.device.type, enabled=False):
        if values.shape[2] == 1:
            return single_token(log_decay, values, keys, queries, state)
        # split, not slices: its backward pass is one concatenation instead of a zero-filled sum per segment
        size = max(SEGMENT // chunk, 1) * chunk
        parts = list(zip(*(t.split(size, dim=2) for t in (log_decay, values, keys, queries)), strict=True))
        reads = []
        for index, (a, x, b, c) in enumerate(parts):
            read, state = _segment(a, x, b, c, state, chunk, carry or index + 1 < len(parts))
            reads.append(read)
        return reads[0] if len(reads) == 1 else torch.cat(reads, dim=2), state


def single_token(
    log_decay: Tensor, values: Tensor, keys: Tensor, queries: Tensor, state: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The recurrence for one token, without chunks. Shapes as in `ssd` with T = 1."""
    rows, heads, _, width = values.shape
    groups, keys_width = keys.shape[1], keys.shape[-1]
    if state is None:
        state = values.new_zeros(rows, heads, width, keys_width)
    # the heads of a group are stacked along P, so that one key and one query serve them all
    written = values.reshape(rows, groups, -1, 1) * keys
    state = decayed(state, log_decay[..., None]) + written.view_as(state)
    read = torch.matmul(state.reshape(rows, groups, -1, keys_width), queries.mT)
    return read.view(rows, heads, 1, width), state
