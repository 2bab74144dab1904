"""The decayed normalised recurrence by chunks. Work is linear in T, memory that of the stream and some states.

With D_t = sum_n q_t + eps, u_t = q_t / (z_t + eps) as queries and q_s as keys, the recurrence is attention with a decay
per neuron:

    D_t a_t = lam^t u_t . rho_0 + sum_{s<t} P_ts v_s        P_ts = sum_n lam^(t-1-s) u_t q_s
    rho_T = lam^T rho_0 + sum_s lam^(T-1-s) q_s v_s^T

Inside a chunk P and the sums z are made by halving (see `halving`); between chunks the state carries the rest. lam does
not depend on time: one table of its powers serves all chunks.

Backward, chunks last to first, with g_t = dL/da_t / D_t, Gamma and h the gradients of the chunk's final rho and z:

    dP_ts = g_t . v_s                                       dv_s = sum_h (P^T g)_s + lam^(T-1-s) q_s . Gamma
    du_t = (dP lam^(t-1-s) q)_t + lam^t rho_0 g_t           x_t = du_t / (z_t + eps)
    dq_s = (dP^T lam^(t-1-s) u)_s + lam^(T-1-s) Gamma v_s   dz_t = lam dz_{t+1} - x_t u_t,  dz_T = h
    dq_t += x_t + dz_{t+1} - g_t . a_t
    drho_0 = lam^T Gamma + sum_t lam^t u_t g_t^T

With the ages t of the tokens in a chunk of L tokens, the gradient of log lam is

    eps sum_t t x_t u_t - sum_s (s + 1) q_s (dq_s + dz_{s+1}) + L (Gamma . rho_T + h z_T)       dq_s as above

since u_t du_t + z_t dz_t = eps x_t u_t, dz_t here without what comes from later ones; `halving.Level` says how the
rounding of low products is kept out of the difference. What rounding is left is relative to what flows, not to the
gradient: where lam is next to 0 (raw decays below -20 or so), so is its gradient, and rounding is all that is found.

Products with a state, and those of larger halves, run in the neurons' type (bfloat16 under autocast), all else in
float32 or better.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ...numerics.decays import decayed
from .backward import Backward
from .forward import Chunks, Cut, Kept, forward_pass
from .naive import EPS
from .workspace import Workspace


class Recurrence(torch.autograd.Function):
    """The whole pass, with the analytic backward pass of the module's text. Heads first."""

    @staticmethod
    def forward(
        ctx: Any,
        neurons: Tensor,
        values: Tensor,
        log_decay: Tensor,
        rho: Tensor | None,
        norm: Tensor | None,
        chunk: int,
        keep: bool,
        carry: bool,
        workspace: Workspace,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """neurons [H, B, T, N], values [B, T, D], log_decay [H, N], rho [H, B, N, D], norm [H, B, N] (None: empty)."""
        cut = Cut(neurons.shape, chunk, neurons.device)
        reads = values.new_empty(*neurons.shape[:3], values.shape[2], dtype=log_decay.dtype)
        kept: list[Kept] = []
        rhos: list[Tensor | None] = []
        norms: list[Tensor | None] = []
        for place, powers in cut.places(log_decay, workspace):
            chunks = Chunks(neurons, values, place, powers, cut, workspace)
            first, sums = (None if x is None else x[place] for x in (rho, norm))
            one, last, final = forward_pass(chunks, first, sums, reads[place], keep=keep, carry=carry)
            kept.append(one)
            rhos.append(last)
            norms.append(final)
        saved = [x for one in kept for x in (*one.scores, *one.sums, *one.states)]
        ctx.save_for_backward(neurons, values, log_decay, reads, *saved)
        ctx.chunk, ctx.workspace = chunk, workspace
        ctx.set_materialize_grads(False)  # a final state that nobody used costs nothing
        return reads, whole(cut, rhos), whole(cut, norms)

    @staticmethod
    @once_differentiable  # the scores are saved as constants: a second derivative must fail, not be wrong
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        neurons, values, log_decay, reads, *saved = ctx.saved_tensors
        cut = Cut(neurons.shape, ctx.chunk, neurons.device)
        count, each = len(cut.tokens), len(saved) // (len(cut.heads) * len(cut.rows))
        _, _, want_decay, want_rho, want_norm, *_ = ctx.needs_input_grad
        g_neurons = torch.empty_like(neurons)
        g_values = torch.zeros_like(values, dtype=log_decay.dtype)
        g_decay = torch.zeros_like(log_decay) if want_decay else None
        g_rhos, g_norms = [], []
        with torch.autocast(neurons.device.type, enabled=False):  # whatever is in force where it is called
            for place, powers in cut.places(log_decay, ctx.workspace):
                chunks = Chunks(neurons, values, place, powers, cut, ctx.workspace, gradients=True)
                some, saved = saved[:each], saved[each:]
                kept = Kept(some[:count], some[count : 2 * count + 1], some[2 * count + 1 :])
                given = [None if x is None else x[place] for x in gradients]
                decays = None if g_decay is None else g_decay[place[0], None]
                backward = Backward(chunks, reads[place], given, g_neurons[place], g_values[place[1]], decays)
                backward.run(kept, want_rho=want_rho)
                g_rhos.append(backward.g_rho if want_rho else None)
                g_norms.append(backward.g_norm if want_norm else None)
        found = g_neurons, g_values.to(values.dtype), g_decay, whole(cut, g_rhos), whole(cut, g_norms)
        return *found, None, None, None, None


def whole(cut: Cut, parts: Sequence[Tensor | None]) -> Tensor | None:
    """Tensors [H, B, ...] of the places of a cut, as one; None where there are none."""
    found = [part for part in parts if part is not None]
    if len(found) < 2:
        return found[0] if found else None
    columns = len(cut.rows)
    lines = [torch.cat(found[i : i + columns], dim=1) for i in range(0, len(found), columns)]
    return torch.cat(lines)


def decayed_recurrence(
    neurons: Tensor,
    values: Tensor,
    log_decay: Tensor,
    rho: Tensor | None,
    norm: Tensor | None,
    *,
    chunk: int,
    carry: bool = True,
    workspace: Workspace | None = None,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """neurons [B, H, T, N], values [B, T, D], log_decay [H, N] <= 0, rho [B, H, N, D], norm [B, H, N] or None (empty).

    `chunk` tokens at a time, the last chunk shorter where T is not a multiple. Sums and states have the type of
    log_decay (float32 or float64), products with a state that of the neurons.

    Returns: reads [B, H, T, D], final rho and norm, or None without `carry`.
    """
    wide = log_decay.dtype
    first = None if rho is None else rho.transpose(0, 1).to(wide)
    sums = None if norm is None else norm.transpose(0, 1).to(wide)
    inputs = neurons.transpose(0, 1), values, log_decay, first, sums
    keep = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in inputs)
    reads, final, last = Recurrence.apply(*inputs, chunk, keep, carry, workspace or Workspace())
    if not carry:
        return reads.transpose(0, 1), None, None
    return reads.transpose(0, 1), final.transpose(0, 1), last.transpose(0, 1)


def single_token(
    neurons: Tensor, values: Tensor, log_decay: Tensor, rho: Tensor, norm: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The recurrence for one token, without chunks. Shapes as in `naive` with T = 1."""
    q = neurons.to(rho.dtype)
    queries = q / (q.sum(-1, keepdim=True) + EPS) / (norm[:, :, None] + EPS)
    # states are heads first in memory: products in that order need no copy of them
    reads = torch.matmul(queries.transpose(0, 1), rho.transpose(0, 1)).transpose(0, 1)
    rho = decayed(rho, log_decay[:, :, None]).addcmul_(q.mT, values[:, None].to(rho.dtype))
    return reads, rho, decayed(norm, log_decay) + q[:, :, 0]
