"""The products of one token, for few rows: every weight is read once, so the layout decides the time.

Everything is heads first, [H, R, ...], and tables are rows of neurons, [H, N, D]. What was measured on two virtual
cores of a Zen 4 server (torch 2.13, float32, H N = 32768, D = 256; a full pass over such a table is 33 MB):

    dense product, one row        0.48 ms as sums of columns (`Blocks`), 0.75 as matrix times column, 1.2 as a row
                                  times the transpose; in bfloat16 0.33, 1.2 and 0.57
    dense product, 4 rows         0.8 ms as matrix times columns, 1.7 otherwise; from 16 rows on it is the other way
    sums of the rows that fire    0.48 ms for all, 0.14 for a quarter (`embedding_bag`; `torch.mm` takes 1.3 for any)
    products with these rows      0.52 ms for all, in proportion below (`sampled_addmm`)

Tables that fit a core's cache are not bound by memory: there a dense product beats one of half the rows.
"""

from __future__ import annotations

import functools
import warnings
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

LARGE = 8 << 20  # bytes of a table beyond which reading it costs more than the arithmetic
COLUMN_ROWS = 8  # up to so many rows a large table (but bfloat16) is multiplied from the left
SAMPLED_SHARE = {
    True: 1.2,
    False: 0.4,
}  # of one table's rows, over all batch rows, for a large table and a small one
GATHERED_SHARE = 0.25  # the same for a large bfloat16 table, whose rows have to be copied first
BLOCK = 256  # neurons of a block: their sums stay in registers and the nearest cache
SUMMED_SHARE = 4.0  # more weighted rows than so many tables: a dense product is cheaper


class Blocks(NamedTuple):
    """A table [H, N, D] in blocks of columns, for dense products of one row.

    Attributes:
        columns: [H b D, BLOCK], the columns of b blocks of neurons per head, the last one filled up with zeros.
        blocks: b.
    """

    columns: Tensor
    blocks: int

    @staticmethod
    def of(table: Tensor) -> Blocks:
        """The blocks of a table [H, N, D]: a copy."""
        heads, neurons, width = table.shape
        size = min(BLOCK, neurons)
        blocks = -(-neurons // size)
        padded = F.pad(table, (0, 0, 0, blocks * size - neurons))
        return Blocks(padded.view(heads * blocks, size, width).mT.reshape(-1, size), blocks)

    def project(self, vectors: Tensor, neurons: int) -> Tensor:
        """vectors [H, 1, D] times the first `neurons` rows of every head: contiguous [H, 1, neurons]."""
        heads, _, width = vectors.shape
        size = self.columns.shape[1]
        used = -(-neurons // size)
        places, starts = _block_bags(heads, self.blocks, used, width)
        weights = vectors.expand(heads, used, width).reshape(-1)
        sums = sum_rows(self.columns, places, starts, weights).view(heads, 1, used * size)
        return sums if used * size == neurons else sums[..., :neurons].contiguous()


@functools.lru_cache(maxsize=64)
def _block_bags(heads: int, blocks: int, used: int, width: int) -> tuple[Tensor, Tensor]:
    """Which columns make up each of the first `used` blocks of every head, as `sum_rows` takes them."""
    with torch.inference_mode(False):
        first = torch.arange(heads)[:, None, None] * blocks + torch.arange(used)[:, None]
        places = (first * width + torch.arange(width)).flatten()
        # short indices: long ones take a quarter of the time of a small product
        return places.int(), (torch.arange(heads * used + 1) * width).int()


class Firing(NamedTuple):
    """Which entries of some [H, R, N] are not zero.

    Attributes:
        entries: int64 [n], places in the flattened tensor, ascending.
        starts: int64 [H R + 1], where each (head, row) begins in `entries`, and n.
    """

    entries: Tensor
    starts: Tensor


def count_nonzero(x: Tensor) -> int:
    """How many entries are not zero (NaN is not)."""
    return int(np.count_nonzero(x.numpy() != 0))


def firing(x: Tensor, bags: int) -> Firing:
    """The entries of contiguous x that are not zero; `bags` equal parts of x are told apart."""
    # numpy finds the marks of a bool array four times as fast as torch those of any
    entries = torch.from_numpy(np.flatnonzero(x.numpy() != 0))
    return Firing(entries, torch.searchsorted(entries, _bag_starts(bags, x.numel() // bags)))


@functools.lru_cache(maxsize=64)
def _bag_starts(bags: int, size: int) -> Tensor:
    with torch.inference_mode(False):
        return torch.arange(bags + 1) * size


def is_large(table: Tensor) -> bool:
    """Whether a table [H, N, D] is bound by memory."""
    return table.numel() * table.element_size() > LARGE


def project(vectors: Tensor, table: Tensor) -> Tensor:
    """vectors [H, R, D] times every row of table [H, N, D]: contiguous [H, R, N], in the table's dtype."""
    rows = vectors.shape[1]
    if table.dtype != torch.bfloat16 and rows <= COLUMN_ROWS and is_large(table):
        return torch.bmm(table, vectors.mT).mT.contiguous()
    return torch.bmm(vectors, table.mT)


def project_firing(vectors: Tensor, table: Tensor, found: Firing, places: Tensor) -> Tensor | None:
    """`project` for some neurons only: [n], or None where the dense product is cheaper.

    Args:
        places: int64 [n], for every entry of `found` its row in the flattened table.
    """
    heads, neurons, width = table.shape
    flat, share = table.view(heads * neurons, width), len(places) / (heads * neurons)
    if table.dtype == torch.bfloat16:
        if share > GATHERED_SHARE or not is_large(table) or not len(places):
            return None
        parts = places.split(found.starts.diff().tolist())
        picked = vectors.reshape(-1, width).to(table.dtype)
        return torch.cat([torch.mv(flat.index_select(0, p), v) for p, v in zip(parts, picked, strict=True)])
    if share > SAMPLED_SHARE[is_large(table)] or not len(places):
        return None
    _accept_sparse_tensors()
    pattern = torch.sparse_csr_tensor(
        found.starts,
        places,
        vectors.new_zeros(len(places)),
        (len(found.starts) - 1, heads * neurons),
        check_invariants=False,
    )
    return torch.sparse.sampled_addmm(pattern, vectors.reshape(-1, width), flat.t(), beta=0.0).values()


@functools.cache
def _accept_sparse_tensors() -> None:
    """Let torch warn once, into the void, that its sparse tensors may change."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.sparse_csr_tensor(
            torch.tensor([0, 0]), torch.empty(0, dtype=torch.int64), torch.empty(0), (1, 1)
        )


def sum_rows(table: Tensor, places: Tensor, starts: Tensor, weights: Tensor) -> Tensor:
    """Weighted sums of rows of table [M, D], one per bag: [bags, D], in the table's dtype.

    Args:
        places, weights: [n], the rows and their weights.
        starts: int64 [bags + 1], where each bag begins, and n.
    """
    return F.embedding_bag(
        places,
        table,
        starts,
        mode="sum",
        per_sample_weights=weights.to(table.dtype),
        include_last_offset=True,
    )
