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


def decayed_sums(x: Tensor, first: Tensor, powers: Tensor | Powers) -> Tensor:
    """y_0 = first, y_t = lam y_{t-1} + x_{t-1}, for x [H, B, P, N] and first [H, B, N]: the sums before each token."""
    assert isinstance(powers, Powers)
    y = torch.zeros_like(x)
    y[:, :, 0] = first
    lam = powers.at(1)[0][:, :, None, None]
    for span in spans(x.shape[2]):
        # what the earlier half leaves to the later one: its own last sum, decayed, and its last token
        last = slice(span - 1, span)
        left = torch.addcmul(earlier(x, span)[..., last, :], earlier(y, span)[..., last, :], lam)
        later(y, span).addcmul_(left, powers.after(span)[0][:, :, None])
    return y
