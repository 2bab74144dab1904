"""Sums over pairs of tokens with a decay per neuron, by halving: no power is ever negative.

A chunk is cut in half, the halves in half, and so on. Two tokens s < t meet at one level: where s lies in the earlier
half of a block and t in the later one. With the middle of that block as reference,

    lam^(t-1-s) = lam^(t-middle) lam^(middle-1-s)             both exponents at least 0

so that the pairs of a level are one product of scaled queries with scaled keys, exact for lam near 0 and near 1. From
halves of c tokens to halves of 2 c, the queries that were in later halves and the keys that were in earlier ones lose
another lam^c, in place; all others stay as they are. After the last level the queries are scaled as the state before
the chunk wants them, and the keys as the state after it does.

Shapes: H heads, B rows, P tokens (a power of two), N neurons. The halves of a level are views [H, B, P / 2c, c, N].
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

# Halves of so many tokens or more are multiplied in the given low precision. Smaller products gain nothing from it.
LOW_FROM = 32


Buffers = Callable[[str, tuple[int, ...], torch.dtype], Tensor]


def padded(length: int) -> int:
    """The least power of two that is at least `length`."""
    return 1 << (length - 1).bit_length()


def earlier(x: Tensor, span: int) -> Tensor:
    """The earlier halves of all blocks of 2 `span` tokens: [..., P, N] -> [..., P / 2c, c, N], a view."""
    return x.unflatten(-2, (-1, 2, span)).select(-3, 0)


def later(x: Tensor, span: int) -> Tensor:
    """The later halves, as `earlier`."""
    return x.unflatten(-2, (-1, 2, span)).select(-3, 1)


def halves(pair: Tensor, span: int, *, meeting: bool = True) -> Tensor:
    """The halves of a contiguous pair [2, H, B, P, N] that meet at a level: later ones of pair[0], earlier of pair[1].

    Or the other ones. One view [2, H, B, P / 2c, c, N]: both members of a pair take one pass.
    """
    _, heads, rows, size, width = pair.shape
    half, row = span * width, size * width
    member = heads * rows * row
    shape = (2, heads, rows, size // (2 * span), span, width)
    steps = (member - half if meeting else member + half, rows * row, row, 2 * half, width, 1)
    return pair.as_strided(shape, steps, pair.storage_offset() + (half if meeting else 0))


def square(scores: Tensor, span: int) -> Tensor:
    """Where the pairs of a level lie in contiguous scores [G, P, P]: a view [G, P / 2c, c, c], later by earlier."""
    groups, size, _ = scores.shape
    steps = (size * size, 2 * span * (size + 1), size, 1)
    return scores.as_strided(
        (groups, size // (2 * span), span, span), steps, scores.storage_offset() + span * size
    )


class Powers:
    """Tables of lam^e for e = 0 .. size.

    Args:
        tables: where they lie, [2, H, 1, size + 1, N]: `rising`, and `falling` in reverse order.

    Attributes:
        exponents: 0 .. size.
        one: lam itself, [H, 1, N].
    """

    def __init__(self, tables: Tensor) -> None:
        self.tables, self.size = tables, tables.shape[3] - 1
        self.rising, self.falling = tables
        self.exponents = torch.arange(self.size + 1, dtype=tables.dtype, device=tables.device)
        self.one = self.rising[:, :, 1]

    def set(self, log_decay: Tensor) -> None:
        """Take other decays, log lam [H, N], at most 0. In float64, rounded once: powers of a rounded lam drift."""
        exact = torch.float32 if log_decay.device.type == "mps" else torch.float64  # mps has no float64
        rising = torch.empty_like(self.rising, dtype=exact)
        rising[:, :, 0] = 1
        rising[:, :, 1] = log_decay.to(exact).exp()[:, None]
        have = 1
        while have < self.size:  # lam^have times what is there
            more = min(have, self.size - have)
            torch.mul(
                rising[:, :, 1 : more + 1],
                rising[:, :, have : have + 1],
                out=rising[:, :, have + 1 : have + more + 1],
            )
            have += more
        self.rising.copy_(rising)
        self.falling.copy_(self.rising.flip(2))

    def after(self, length: int) -> Tensor:
        """lam^0 .. lam^(length-1): what a state has lost at each of `length` tokens. [H, 1, length, N]."""
        return self.rising[:, :, :length]

    def before(self, length: int) -> Tensor:
        """lam^(length-1) .. lam^0: what is left of each of `length` tokens after the last. [H, 1, length, N]."""
        return self.falling[:, :, self.size + 1 - length :]

    def until(self, length: int) -> Tensor:
        """lam^length .. lam^1: as `before`, one token later. [H, 1, length, N]."""
        return self.falling[:, :, self.size - length : self.size]

    def at(self, exponent: int) -> Tensor:
        """lam^exponent, [H, 1, N]."""
        return self.rising[:, :, exponent]

    def meeting(self, span: int) -> Tensor:
        """`after(span)` and `before(span)` as one view [2, H, 1, 1, span, N]."""
        _, heads, _, rows, width = self.tables.shape
        table = rows * width
        steps = (heads * table + (rows - span) * width, table, table, table, width, 1)
        return self.tables.as_strided((2, heads, 1, 1, span, width), steps, self.tables.storage_offset())


class Block:
    """P tokens as keys and queries, and the products of their pairs, in buffers that serve chunk after chunk.

    Args:
        shape: (H, B, P, N), P a power of two.
        powers: up to P at least.
        low: type of the large products.
        buffer: (name, shape, dtype) -> where to work.
        gradients: whether gradients will be asked for.

    Attributes, [H, B, P, N] in the type of `powers` where nothing else is said:
        queries, keys: `pair[0]` and `pair[1]`, to be filled by the user, zeros for tokens that are none.
        sums: see `decayed_sums`.
        scores: see `find_scores`, [H B, P, P] in the low type.
        to_queries, to_keys: the gradients, `to_pair[0]` and `to_pair[1]`; only with `gradients`, as are
        g_scores: that of the scores, to be filled by the user; only s < t is read.
        plain: for a copy of the keys, by the user.
        spare: free between calls.
        ages: 0 .. P-1 for every row, and 1 .. P, [H, 1, B P].
    """

    def __init__(
        self,
        shape: tuple[int, int, int, int],
        powers: Powers,
        low: torch.dtype,
        buffer: Buffers,
        *,
        gradients: bool = False,
    ) -> None:
        self.shape, self.powers, self.low, self.wide = shape, powers, low, powers.tables.dtype
        self.pair, self.sums = buffer("pair", (2, *shape), self.wide), buffer("sums", shape, self.wide)
        self.queries, self.keys = self.pair
        self.low_pair = buffer("low pair", shape, low)
        heads, rows, size, _ = shape
        # no buffer of others: what no level writes must stay zero
        self.scores = self.low_pair.new_zeros(heads * rows, size, size)
        if gradients:
            self.to_pair = buffer("to pair", (2, *shape), self.wide)
            self.to_queries, self.to_keys = self.to_pair
            self.g_scores = torch.zeros_like(self.scores)
            self.plain, self.spare = (buffer(name, shape, self.wide) for name in ("plain", "spare"))
            self.low_spare = buffer("low spare", shape, low)
            self.ages = [
                powers.exponents[first : first + size].repeat(rows).expand(heads, 1, -1) for first in (0, 1)
            ]
        spans = [1 << n for n in range(size.bit_length() - 1)]
        self._levels = [Level(self, span, gradients=gradients) for span in spans]

    def decayed_sums(self, first: Tensor) -> None:
        """sums_0 = first [H, B, N], sums_t = lam sums_{t-1} + keys_{t-1}."""
        self.sums[:, :, ::2] = 0
        self.sums[:, :, 0] = first
        for level in self._levels:
            level.pass_on_sums()

    def decayed_sums_from_the_end(self) -> None:
        """sums_t += lam sums_{t+1}, from the last token to the first: the gradient of `decayed_sums`."""
        for level in self._levels:
            level.pass_back_sums()

    def find_scores(self, *, scale: bool = True) -> None:
        """scores_ts = sum_n lam^(t-1-s) queries_t keys_s for s < t, and 0 elsewhere.

        Queries and keys are scaled afterwards, by lam^t and lam^(P-1-s), if that is wanted.
        """
        for level in self._levels:
            level.find_scores()
            if scale or level is not self._levels[-1]:
                level.scale()

    def find_gradients(self, g_decay: Tensor | None, *, scale: bool = True) -> None:
        """Sets `to_pair` from `g_scores`. Scales as `find_scores` does.

        g_decay [H, 1, N]: where to add what makes good for rounding, to the gradient of log lam; see `Level`.
        """
        if not self._levels:
            self.to_pair.zero_()
        for level in self._levels:
            level.add_gradients(g_decay)
            if scale or level is not self._levels[-1]:
                level.scale()


class Level:
    """The pairs of tokens that meet in the halves of blocks of 2 `span` tokens: views of a block's buffers.

    The gradient of log lam weighs what flows between two tokens with t - 1 - s, and is summed as t times what flows
    into the query less s + 1 times what flows into the key. These flows are the same number, but for the rounding of
    low products, which times t would be noise. So a level of low products adds its middle times their difference, and
    all is as if it had been summed with t - middle and middle - 1 - s.
    """

    def __init__(self, block: Block, span: int, *, gradients: bool) -> None:
        powers, (heads, rows, size, width) = block.powers, block.shape
        blocks = size // (2 * span)
        self._is_first = span == 1
        self._is_low = span >= LOW_FROM and block.low != block.wide
        self._until, self._after = powers.until(span).unsqueeze(2), powers.after(span).unsqueeze(2)
        self._one, self._lost = powers.one[:, :, None, None], powers.at(span)[:, :, None, None]
        self._earlier_sums, self._later_sums = earlier(block.sums, span), later(block.sums, span)
        self._last_sums = self._earlier_sums[..., span - 1 :, :]
        self._last_keys = earlier(block.keys, span)[..., span - 1 :, :]
        self._first_sums = self._later_sums[..., :1, :]
        self._left = torch.empty_like(self._last_sums)

        self._pair = halves(block.pair, span)
        shape = (2, heads, rows, blocks, span, width)
        self._low_pair = block.low_pair.view(shape)
        operands = self._low_pair if self._is_low else self._pair
        self._queries, self._keys = (x.flatten(0, 2) for x in operands)
        self._place = square(block.scores, span)
        self._scores = operands.new_empty(heads * rows * blocks, span, span)
        if gradients:
            self._to_pair, self._tables = halves(block.to_pair, span), powers.meeting(span)
            self._to_others = halves(block.to_pair, span, meeting=False)
            self._g_pair, self._low_g_pair = block.spare.view(shape), block.low_spare.view(shape)
            products = self._low_g_pair if self._is_low else self._g_pair
            self._g_queries, self._g_keys = (x.flatten(0, 2) for x in products)
            self._g_place = square(block.g_scores, span)
            middles = powers.exponents[span : size + 1 : 2 * span].repeat_interleave(span).repeat(rows)
            self._middles = (
                torch.stack([-middles, middles])[:, None].expand(2, heads, -1).flatten(0, 1)[:, None]
            )

    def pass_on_sums(self) -> None:
        """What the earlier halves leave to the later ones: their last sum, decayed, and their last token."""
        if self._is_first:
            torch.addcmul(self._last_keys, self._last_sums, self._one, out=self._later_sums)
        else:
            torch.addcmul(self._last_keys, self._last_sums, self._one, out=self._left)
            self._later_sums.addcmul_(self._left, self._after)

    def pass_back_sums(self) -> None:
        """To the earlier halves, from the first token of the later ones."""
        self._earlier_sums.addcmul_(self._first_sums, self._until)

    def find_scores(self) -> None:
        """The products of this level."""
        if self._is_low:
            self._low_pair.copy_(self._pair)
        torch.bmm(self._queries, self._keys.mT, out=self._scores)
        self._place.copy_(self._scores.view_as(self._place))

    def scale(self) -> None:
        """To what the next level wants."""
        self._pair.mul_(self._lost)

    def add_gradients(self, g_decay: Tensor | None) -> None:
        """Those of this level's products: the first level sets, the others add."""
        g = self._scores
        g.view_as(self._g_place).copy_(self._g_place)
        if self._is_first:  # neighbours: no decay lies between them
            weights = g.view(*self._pair.shape[1:4], 1, 1)
            torch.mul(self._pair[1], weights, out=self._to_pair[0])
            torch.mul(self._pair[0], weights, out=self._to_pair[1])
            self._to_others.zero_()
        else:
            if self._is_low:
                self._low_pair.copy_(self._pair)
            torch.bmm(g, self._keys, out=self._g_queries)
            torch.bmm(g.mT, self._queries, out=self._g_keys)
            if self._is_low:
                self._g_pair.copy_(self._low_g_pair)
            self._to_pair.addcmul_(self._g_pair, self._tables)
            if self._is_low and g_decay is not None:
                flows = self._g_pair.mul_(self._pair).view(len(self._middles), -1, g_decay.shape[-1])
                g_decay += torch.bmm(self._middles, flows).unflatten(0, (2, -1)).sum(0)
