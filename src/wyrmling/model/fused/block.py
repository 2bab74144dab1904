"""Linear attention of one tile and one head through its scores: the products, by rows of 128, nothing above the diagonal.

Shapes: queries [R, C, K] (R batch rows, C tokens), values [R, C, D], both in the products' type. The equations, the
decay included, stand in `memory/linear/dense.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...memory.choose import BLOCK_ROWS


@dataclass(frozen=True)
class HeadDecay:
    """Powers of one head's decay d within a chunk of C tokens, in the products' type.

    Attributes:
        since: d^t, [C, 1], what a token still sees of the state before the chunk.
        until: d^(C - t), [C, 1], what the state after the chunk keeps of a token.
        whole: d^C.
        between: d^(t - s), [C, C] (lower part).
    """

    since: Tensor
    until: Tensor
    whole: float
    between: Tensor

    @staticmethod
    def of(decay: Tensor, length: int, dtype: torch.dtype) -> HeadDecay:
        """For a scalar float32 or float64 decay."""
        steps = torch.arange(length)
        between = decay ** (steps[:, None] - steps).clamp_min(0)
        since, until = decay**steps, decay ** (length - steps)
        return HeadDecay(
            since[:, None].to(dtype), until[:, None].to(dtype), float(decay**length), between.to(dtype)
        )


def lower_products(left: Tensor, right: Tensor, decay: HeadDecay | None) -> list[Tensor]:
    """Strictly lower part of left right^T, [R, C, K] each, as blocks of rows [R, r, e], e the block's end."""
    rows, length, _ = left.shape
    blocks = []
    for begin in range(0, length, BLOCK_ROWS):
        end = min(length, begin + BLOCK_ROWS)
        if length <= BLOCK_ROWS:
            block = torch.bmm(left, right.mT)
        else:  # one product per row: a batched one copies operands that are parts of larger tensors
            block = left.new_empty(rows, end - begin, end)
            for row in range(rows):
                torch.mm(left[row, begin:end], right[row, :end].mT, out=block[row])
        if decay is not None:
            block.mul_(decay.between[begin:end, :end])
        blocks.append(block.tril_(begin - 1))
    return blocks


def weigh(scores: list[Tensor], values: Tensor, reads: Tensor) -> None:
    """reads [R, C, D] = scores values."""
    begin = 0
    for block in scores:
        end = block.shape[2]
        for row in range(len(values)):
            torch.mm(block[row], values[row, :end], out=reads[row, begin:end])
        begin = end


def weigh_transposed(scores: list[Tensor], g: Tensor, g_values: Tensor) -> None:
    """g_values [R, C, D] += scores^T g."""
    begin = 0
    for block in scores:
        end = block.shape[2]
        g_values[:, :end] += torch.bmm(block.mT, g[:, begin:end])
        begin = end


def symmetric_gram(g: Tensor, values: Tensor, decay: HeadDecay | None) -> Tensor:
    """G + G^T, [R, C, C], where G is the strictly lower part of g values^T.

    The queries are the keys, so their gradient is this one matrix times them.
    """
    rows, length, _ = g.shape
    blocks = lower_products(g, values, decay)
    if len(blocks) == 1:
        return blocks[0] + blocks[0].mT
    gram = g.new_zeros(rows, length, length)
    begin = 0
    for block in blocks:
        end = block.shape[2]
        gram[:, begin:end, :end] = block
        begin = end
    return gram + gram.mT
