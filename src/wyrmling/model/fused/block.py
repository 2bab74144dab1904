"""Linear attention of one tile through its scores: the products, by rows of 128, nothing above the diagonal.

Shapes: queries [M, C, K], values [M, C, D] in the products' type, M = heads x rows of the tile. The equations, the
decay included, stand in `memory/linear/dense.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...memory.choose import BLOCK_ROWS
from ...numerics.decays import powers


@dataclass(frozen=True)
class Decays:
    """Powers of the decays d of some heads within a chunk of C tokens, in the products' type.

    Attributes:
        since: d^t, [M, C, 1], what a token still sees of the state before the chunk.
        until: d^(C - t), [M, C, 1], what the state after the chunk keeps of a token.
        whole: log d^C, float64 [M, 1, 1].
        between: d^(t - s), [G, C, C] (lower part): the same for all rows of a head.
    """

    since: Tensor
    until: Tensor
    whole: Tensor
    between: Tensor

    @staticmethod
    def of(log_decay: Tensor, rows: int, length: int, dtype: torch.dtype) -> Decays:
        """For log d, float64 [G]; each head's narrow ones are repeated for `rows` rows."""
        steps = torch.arange(length + 1)
        table = powers(log_decay[:, None], steps, dtype, log_decay.device)  # [G, C + 1]
        distance = (steps[:-1, None] - steps[:-1]).clamp_min(0)
        by_row = table.repeat_interleave(rows, dim=0)[..., None]  # [M, C + 1, 1]
        whole = log_decay.repeat_interleave(rows)[:, None, None] * length
        return Decays(by_row[:, :-1], by_row[:, 1:].flip(1), whole, table[:, distance])

    @staticmethod
    def weaken(scores: Tensor, between: Tensor) -> None:
        """scores [M, r, e] times the powers between [G, r, e] their queries and keys, in place."""
        scores.unflatten(0, (len(between), -1)).mul_(between[:, None])


def lower_products(left: Tensor, right: Tensor, decay: Decays | None) -> list[Tensor]:
    """Strictly lower part of left right^T, [M, C, K] each, as blocks of rows [M, r, e], e the block's end."""
    blocks = []
    for begin in range(0, left.shape[1], BLOCK_ROWS):
        end = min(left.shape[1], begin + BLOCK_ROWS)
        block = products(left[:, begin:end], right[:, :end].mT)
        if decay is not None:
            decay.weaken(block, decay.between[:, begin:end, :end])
        blocks.append(block.tril_(begin - 1))
    return blocks


# From this size on, an operand that a batched product would copy costs more than products one by one.
_COPIED = 1 << 20


def products(left: Tensor, right: Tensor, out: Tensor | None = None) -> Tensor:
    """left [M, C, K] times right [M, K, E]: batched, or one by one where that would copy a large operand first.

    A batched product copies parts of larger tensors, and whatever it gets where the batch is one.
    """
    if len(left) > 1 and all(_whole(x) or x.numel() <= _COPIED for x in (left, right)):
        return torch.bmm(left, right, out=out)
    out = left.new_empty(len(left), left.shape[1], right.shape[2]) if out is None else out
    for one, other, target in zip(left, right, out, strict=True):
        torch.mm(one, other, out=target)
    return out


def _whole(x: Tensor) -> bool:
    return x.is_contiguous() or x.mT.is_contiguous()


def weigh(scores: list[Tensor], values: Tensor) -> Tensor:
    """scores values, [M, C, D]."""
    parts = [products(block, values[:, : block.shape[2]]) for block in scores]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def weigh_transposed(scores: list[Tensor], g: Tensor, g_values: Tensor) -> None:
    """g_values [M, C, D] += scores^T g."""
    begin = 0
    for block in scores:
        end = block.shape[2]
        g_values[:, :end] += products(block.mT, g[:, begin:end])
        begin = end


def symmetric_gram(g: Tensor, values: Tensor, decay: Decays | None) -> Tensor:
    """G + G^T, [M, C, C], where G is the strictly lower part of g values^T.

    The queries are the keys, so their gradient is this one matrix times them. The upper part is computed as values g^T:
    a product of that width is cheaper than transposing.
    """
    length = g.shape[1]
    gram = g.new_empty(len(g), length, length)
    for block in lower_products(g, values, decay):
        end = block.shape[2]
        begin = end - block.shape[1]
        square = block[:, :, begin:]
        gram[:, begin:end, :begin] = block[:, :, :begin]
        torch.add(square, square.mT, out=gram[:, begin:end, begin:end])
        if end < length:
            upper = products(values[:, begin:end], g[:, end:].mT)
            if decay is not None:
                decay.weaken(upper, decay.between[:, end:, begin:end].mT)
            gram[:, begin:end, end:] = upper
    return gram
