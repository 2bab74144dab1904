"""Sums over pairs of tokens with a decay per neuron, by halving: no power is ever negative.

A chunk is cut in half, the halves in half, and so on. Two tokens s < t meet at one level: where s lies in the earlier
half of a block and t in the later one. With the middle of that block as reference,

    lam^(t-1-s) = lam^(t-middle) lam^(middle-1-s)             both exponents at least 0

so that the pairs of a level are one product of scaled queries with scaled keys, exact for lam near 0 and near 1. A
level with halves of c tokens scales half of the queries and half of the keys, each by a table of c powers.

Shapes: [..., P, N], P tokens (a power of two), N neurons. The halves of a level are views [..., P / 2c, c, N].
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

# Halves of so many tokens or more are multiplied in the given low precision. Smaller products gain nothing from it.
LOW_FROM = 16


def spans(size: int) -> Iterator[int]:
    """The lengths of halves, shortest first: 1, 2, 4, ... below `size` (a power of two)."""
    span = 1
    while span < size:
        yield span
        span *= 2


def padded(length: int) -> int:
    """The least power of two that is at least `length`."""
    return 1 << (length - 1).bit_length()


def earlier(x: Tensor, span: int) -> Tensor:
    """The earlier halves of all blocks of 2 `span` tokens: [..., P, N] -> [..., P / 2c, c, N], a view."""
    return x.unflatten(-2, (-1, 2, span)).select(-3, 0)


def later(x: Tensor, span: int) -> Tensor:
    """The later halves, as `earlier`."""
    return x.unflatten(-2, (-1, 2, span)).select(-3, 1)


class Powers:
    """lam^e for e = 0 .. size, and e lam^e, its derivative by log lam.

    Args:
        log_decay: [H, N], at most 0.
        size: the largest exponent.
    """

    def __init__(self, log_decay: Tensor, size: int) -> None:
        exponents = torch.arange(size + 1, dtype=log_decay.dtype, device=log_decay.device)[:, None]
        powers = torch.exp(log_decay[:, None] * exponents)
        self._rising = torch.stack([powers, exponents * powers])  # [2, H, size + 1, N]
        self._falling = self._rising.flip(2)
        self.size = size

    def after(self, length: int) -> Tensor:
        """lam^0 .. lam^(length-1): what a state has lost at each of `length` tokens. [2, H, 1, length, N]."""
        return self._rising[:, :, None, :length]

    def before(self, length: int) -> Tensor:
        """lam^(length-1) .. lam^0: what is left of each of `length` tokens after the last. [2, H, 1, length, N]."""
        return self._falling[:, :, None, self.size + 1 - length :]

    def until(self, length: int) -> Tensor:
        """lam^length .. lam^1: as `before`, one token later. [2, H, 1, length, N]."""
        return self._falling[:, :, None, self.size - length : self.size]

    def at(self, exponent: int) -> Tensor:
        """lam^exponent, [2, H, 1, N]."""
        return self._rising[:, :, None, exponent]


def decayed_sums(x: Tensor, first: Tensor, powers: Powers) -> Tensor:
    """y_0 = first, y_t = lam y_{t-1} + x_{t-1}: [H, B, P, N] from x [H, B, P, N] and first [H, B, N]."""
    y = torch.zeros_like(x)
    y[:, :, 0] = first
    lam = powers.at(1)[0].unsqueeze(-2)[..., None, :]
    for span in spans(x.shape[2]):
        # what the earlier half leaves to the later one: its last sum, decayed, and its last token
        last = slice(span - 1, span)
        left = torch.addcmul(earlier(x, span)[..., last, :], earlier(y, span)[..., last, :], lam)
        later(y, span).addcmul_(left, powers.after(span)[0].unsqueeze(2))
    return y


def decayed_sums_from_the_end(y: Tensor, powers: Powers) -> Tensor:
    """y_t += lam y_{t+1}, from the last token to the first, in place: the gradient of `decayed_sums`. [H, B, P, N]."""
    for span in spans(y.shape[2]):
        earlier(y, span).addcmul_(later(y, span)[..., :1, :], powers.until(span)[0].unsqueeze(2))
    return y


def _square(scores: Tensor, span: int) -> Tensor:
    """Where the pairs of a level lie in scores [..., P, P]: a view [..., P / 2c, c, c], later by earlier tokens."""
    blocks = scores.unflatten(-1, (-1, 2, span)).unflatten(-4, (-1, 2, span))  # [..., nb, 2, c, nb, 2, c]
    return blocks.select(-2, 0).select(-4, 1).diagonal(dim1=-4, dim2=-2).movedim(-1, -3)


def _scaled(
    queries: Tensor, keys: Tensor, span: int, powers: Powers, low: torch.dtype
) -> tuple[Tensor, Tensor]:
    """The operands of a level's product, batches of [c, N]."""
    q, k = later(queries, span), earlier(keys, span)
    if span > 1:
        q, k = q * powers.after(span)[0].unsqueeze(2), k * powers.before(span)[0].unsqueeze(2)
    if span >= LOW_FROM:
        q, k = q.to(low), k.to(low)
    return q.flatten(0, -3), k.flatten(0, -3)


def pair_scores(queries: Tensor, keys: Tensor, powers: Powers, low: torch.dtype) -> Tensor:
    """sum_n lam^(t-1-s) queries_t keys_s for s < t, and 0 elsewhere.

    queries, keys [H, B, P, N]; products of large halves run in `low`. Returns [H, B, P, P] in `low`.
    """
    size = queries.shape[2]
    scores = queries.new_zeros(*queries.shape[:2], size, size, dtype=low)
    for span in spans(size):
        q, k = _scaled(queries, keys, span, powers, low)
        square = _square(scores, span)
        square.copy_(torch.bmm(q, k.mT).view(square.shape))
    return scores


def add_pair_gradients(
    g_scores: Tensor,
    queries: Tensor,
    keys: Tensor,
    powers: Powers,
    low: torch.dtype,
    to_queries: Tensor,
    to_keys: Tensor,
) -> None:
    """The gradients of `pair_scores`, added in place.

    Args:
        g_scores: [H, B, P, P] in `low`; only s < t is read.
        to_queries, to_keys: [1 or 2, H, B, P, N]. The first entry is the gradient; the second one the same with every
            term times its exponent, so that queries * to_queries[1] + keys * to_keys[1] sums to that of log lam.
    """
    parts = to_queries.shape[0]
    for span in spans(queries.shape[2]):
        q, k = _scaled(queries, keys, span, powers, low)
        square = _square(g_scores, span)
        g = square.to(q.dtype).reshape(-1, span, span)
        shape = (*square.shape[:-1], queries.shape[-1])
        g_q = torch.bmm(g, k).view(shape).to(queries.dtype)
        g_k = torch.bmm(g.mT, q).view(shape).to(keys.dtype)
        if span == 1:  # neighbours: no decay lies between them
            later(to_queries[0], span).add_(g_q)
            earlier(to_keys[0], span).add_(g_k)
        else:
            later(to_queries, span).addcmul_(g_q, powers.after(span)[:parts].unsqueeze(3))
            earlier(to_keys, span).addcmul_(g_k, powers.before(span)[:parts].unsqueeze(3))
