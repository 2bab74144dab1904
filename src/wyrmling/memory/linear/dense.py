"""Linear attention of one block of tokens through its scores, never building the upper half.

With local indices t, s in the block, a carried state S_0, and d the head's decay (1 except under ALiBi):

    P_ts = d^(t-s) q_t . q_s   for s < t                  strictly lower, by rows of 128
    a_t  = sum_s P_ts v_s + d^t S_0^T q_t
    S_T  = d^T S_0 + sum_s d^(T-s) q_s v_s^T

Backward, with g_t = dL/da_t and Gamma = dL/dS_T (q = k makes the two score gradients one symmetric product):

    G_ts = d^(t-s) g_t . v_s   for s < t
    dq_t = ((G + G^T) q)_t + d^t S_0 g_t + d^(T-t) Gamma v_t
    dv_s = sum_h (P^T g)_s + d^(T-s) Gamma^T q_s
    dS_0 = d^T Gamma + sum_t d^t q_t g_t^T

Products run in the queries' dtype (bfloat16 under autocast), sums and states in float32 or better.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ...numerics.decays import decayed, powers
from ...numerics.sums import for_masked_product

ROWS = 128  # rows of scores per product: tall enough for the matrix units, short enough to waste little


def _table(log_decay: Tensor | None, length: int, dtype: torch.dtype, device: torch.device) -> Tensor | None:
    """d^0 .. d^length, [H, length + 1], for log d [H] on the CPU; None where nothing decays."""
    if log_decay is None:
        return None
    return powers(log_decay[:, None], torch.arange(length + 1), dtype, device)


def _since_start(x: Tensor, table: Tensor | None) -> Tensor:
    """d^t x_t, x [H, B, T, X]."""
    return x if table is None else x * table[:, None, :-1, None].to(x.dtype)


def _to_end(x: Tensor, table: Tensor | None) -> Tensor:
    """d^(T-t) x_t, x [H, B, T, X]."""
    return x if table is None else x * table[:, None, 1:, None].flip(2).to(x.dtype)


def _over(state: Tensor, log_decay: Tensor | None, length: int) -> Tensor:
    """d^T S, the state [H, B, K, D] without what `length` tokens take."""
    return state if log_decay is None else decayed(state, (log_decay * length)[:, None, None, None])


def _lower_products(left: Tensor, right: Tensor, table: Tensor | None) -> list[Tensor]:
    """Strictly lower part of left right^T by blocks of rows, times d^(t-s).

    left [H, B, T, K], right the same or [B, T, K] (shared by heads). Returns blocks [H B, r, e], e the block's end.
    """
    heads, rows, length, _ = left.shape
    right = right.expand(heads, *right.shape[-3:])
    left, right = left.reshape(heads * rows, length, -1), right.reshape(heads * rows, length, -1).mT
    blocks = []
    for begin in range(0, length, ROWS):
        end = min(length, begin + ROWS)
        block = torch.bmm(left[:, begin:end], right[:, :, :end])
        if table is not None:
            tokens = torch.arange(end, device=left.device)
            distance = (tokens[begin:, None] - tokens).clamp_min(0)  # [r, e]
            block = (block.unflatten(0, (heads, rows)) * table[:, None, distance].to(block.dtype)).flatten(
                0, 1
            )
        blocks.append(block.tril_(begin - 1))
    return blocks


class DenseBlock(torch.autograd.Function):
    """One block, with the analytic backward pass of the module's text. Heads first: contiguous operands, no copies."""

    @staticmethod
    def forward(
        ctx: Any, queries: Tensor, values: Tensor, state: Tensor | None, log_decay: Tensor | None, carry: bool
    ) -> tuple[Tensor, Tensor | None]:
        """queries [H, B, T, K], values [B, T, D], state [H, B, K, D] or None -> reads [H, B, T, D], state or None."""
        heads, rows, length, _ = queries.shape
        wide = values.dtype if state is None else state.dtype
        v = values.to(queries.dtype)
        q = queries.reshape(heads * rows, length, -1)
        table = _table(log_decay, length, wide, queries.device)
        scores = _lower_products(queries, queries, table)
        v_heads = v.expand(heads, *v.shape).reshape(heads * rows, length, -1)
        readable, seen = for_masked_product(v, 1, own=False)
        if seen is not None:
            readable = readable.expand(heads, *v.shape).reshape_as(v_heads)
        else:
            readable = v_heads
        reads = torch.cat([torch.bmm(p, readable[:, : p.shape[2]]) for p in scores], dim=1).to(wide)
        reads = reads.unflatten(0, (heads, rows))
        if seen is not None:
            reads = reads + seen
        if state is not None:
            carried = torch.bmm(q, state.flatten(0, 1).to(q.dtype)).unflatten(0, (heads, rows)).to(wide)
            reads = reads + _since_start(carried, table)
        final = None
        if carry:
            weighted = _to_end(queries, table).reshape_as(q)
            final = torch.bmm(weighted.mT, v_heads).unflatten(0, (heads, rows)).to(wide)
            if state is not None:
                final = final + _over(state, log_decay, length)
        ctx.save_for_backward(queries, values, state, log_decay, *scores)
        ctx.set_materialize_grads(False)  # a final state that nobody used costs nothing
        return reads, final

    @staticmethod
    @once_differentiable  # the scores are saved as constants: a second derivative must fail, not be wrong
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors  # once: what a checkpoint computes again can be taken out a single time
        with torch.autocast(saved[0].device.type, enabled=False):  # whatever is in force there
            return DenseBlock._gradients(saved, ctx.needs_input_grad[2], *gradients)

    @staticmethod
    def _gradients(
        saved: tuple[Tensor, ...], to_state: bool, *gradients: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        """`to_state`: whether somebody asks for the gradient of the state; a detached one saves the product."""
        queries, values, state, log_decay, *scores = saved
        g_reads, g_final = gradients
        heads, rows, length, _ = queries.shape
        wide = values.dtype if state is None else state.dtype
        q = queries.reshape(heads * rows, length, -1)
        v = values.to(q.dtype)
        v_heads = v.expand(heads, *v.shape).reshape(heads * rows, length, -1)
        table = _table(log_decay, length, wide, q.device)
        g_q: Tensor | None = None
        g_v = torch.zeros_like(v_heads, dtype=wide)
        g_state: Tensor | None = None

        if g_reads is not None:
            g = g_reads.to(q.dtype).reshape(heads * rows, length, -1)
            gram = q.new_zeros(heads * rows, length, length)
            for block in _lower_products(g.unflatten(0, (heads, rows)), v, table):
                end = block.shape[2]
                gram[:, end - block.shape[1] : end, :end] = block
            g_q = torch.bmm(gram + gram.mT, q)
            begin = 0
            for block in scores:
                end = block.shape[2]
                g_v[:, :end] += torch.bmm(block.mT, g[:, begin:end]).to(wide)
                begin = end
            if state is not None:
                g_read_state = _since_start(g.unflatten(0, (heads, rows)), table).reshape_as(g)
                g_q = g_q + torch.bmm(g_read_state, state.flatten(0, 1).to(q.dtype).mT)
                if to_state:
                    g_state = torch.bmm(q.mT, g_read_state).unflatten(0, (heads, rows)).to(wide)
        if g_final is not None:
            gamma = g_final.to(q.dtype).flatten(0, 1)
            weighted_v = _to_end(v_heads.unflatten(0, (heads, rows)), table).reshape_as(v_heads)
            through_state = torch.bmm(weighted_v, gamma.mT)
            g_q = through_state if g_q is None else g_q + through_state
            weighted_q = _to_end(queries, table).reshape_as(q)
            g_v = g_v + torch.bmm(weighted_q, gamma).to(wide)
            if state is not None and to_state:
                kept = _over(g_final, log_decay, length)
                g_state = kept if g_state is None else g_state + kept
        g_values = g_v.unflatten(0, (heads, rows)).sum(0).to(values.dtype)
        return None if g_q is None else g_q.view_as(queries), g_values, g_state, None, None


def linear_attention(
    queries: Tensor, values: Tensor, state: Tensor | None, log_decay: Tensor | None, *, carry: bool = True
) -> tuple[Tensor, Tensor | None]:
    """queries [B, H, T, K], values [B, T, D], state [B, H, K, D] or None (empty), log_decay (log d) float64 [H] on the
    CPU or None.

    Returns: reads [B, H, T, D]; final state [B, H, K, D], or None without `carry`. No gradient reaches `log_decay`.
    """
    heads_first = None if state is None else state.transpose(0, 1).contiguous()
    reads, final = DenseBlock.apply(queries.transpose(0, 1), values, heads_first, log_decay, carry)
    return reads.transpose(0, 1), None if final is None else final.transpose(0, 1)
