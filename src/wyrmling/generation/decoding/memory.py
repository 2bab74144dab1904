"""The linear memory of one layer while tokens come one by one: a state, and the tokens that it has not taken in.

Of t tokens since the state S_0 was last written, the keys q_s and values v_s are kept as they are:

    a_t = d^t S_0^T q_t + sum_{s < t} d^(t-s) (q_t . q_s) v_s          d the head's decay, 1 except under ALiBi
    S_t = d^t S_0       + sum_{s < t} d^(t-s) q_s v_s^T                one product, when it is due

Writing q v^T into S with every token would read and write the state once more than reading it does; one product per
`FOLD` tokens costs a tenth of that. Of S_0 only the rows whose key is not zero are read.

A row that has seen nothing has no S_0, and reading t tokens costs less than reading a state until t is about D times
the share of keys that fire: `history_pays` counts the bytes, and the first product waits until then. A state that a
prompt has left is a sum; its keys are gone, and keeping them while a prompt is read would save at most one read of a
state per token over that same stretch. So history begins with what is decoded.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...numerics.decays import decayed, powers
from .products import Firing, count_nonzero, firing, sum_rows

FOLD = 32  # tokens between two writes: from 16 on the product is bound by arithmetic, and scores cost more and more
GROWTH = 32  # tokens by which a history's buffers grow


def history_pays(pending: int, keys: int, width: int, share: float = 1.0) -> bool:
    """Whether reading `pending` tokens moves fewer bytes than reading a state and what stands beside it.

    Args:
        keys, width: K and D.
        share: of the keys that are not zero (only their rows of a state are read).
    """
    return pending * (keys + width) <= share * keys * width + FOLD / 2 * (keys + width)


class LayerMemory:
    """One layer's memory of R rows. Everything is heads first.

    Args:
        state: [H, R, K, D], owned from now on; None for rows that have seen nothing.
        sizes: (H, R, K, D).
        dtype: of keys, values and reads (float32 or float64).
        state_dtype: what a state is kept in.
        log_decay: log d, float64 [H], or None.
        first_fold: tokens until the first write, so that not all layers write with the same token.
        dense_keys: no key is ever zero (pope).
    """

    def __init__(
        self,
        state: Tensor | None,
        sizes: tuple[int, int, int, int],
        dtype: torch.dtype,
        state_dtype: torch.dtype,
        log_decay: Tensor | None,
        first_fold: int,
        *,
        dense_keys: bool = False,
    ) -> None:
        self.heads, self.rows, self.key_width, self.width = sizes
        self._dtype, self._state_dtype, self._log_decay = dtype, state_dtype, log_decay
        self._dense_keys = dense_keys
        self._state = None if state is None else state.to(state_dtype).contiguous()
        self._due, self._pending = first_fold, 0
        self._all = self._everything() if dense_keys else None
        self._keys, self._values = self._buffers()

    @property
    def has_state(self) -> bool:
        """False while everything the rows have seen is kept as it came."""
        return self._state is not None

    def slot(self) -> Tensor:
        """Where the next token's key goes: contiguous [H, R, K]."""
        if self._pending == len(self._keys):
            self._keys = torch.cat([self._keys, torch.empty_like(self._keys[:GROWTH])])
            self._values = torch.cat([self._values, torch.empty_like(self._values[:GROWTH])])
        return self._keys[self._pending]

    def read(self) -> Tensor:
        """What the past says about the key in `slot`: [H, R, D]."""
        query, count = self._keys[self._pending], self._pending
        past: Tensor | None = None
        if self._state is not None:
            past = self._read_state(query)
        if count:
            recent = self._read_pending(query, count)
            past = recent if past is None else past.add_(recent)
        return query.new_zeros(self.heads, self.rows, self.width) if past is None else past

    def take(self, values: Tensor) -> None:
        """The token's values [R, D]: its key and they belong to the past from now on."""
        self._values[self._pending] = values
        self._pending += 1
        if self._is_due():
            self._state = self._folded(self._state, self._keys, self._values).to(self._state_dtype)
            self._due, self._pending = FOLD, 0
            self._keys, self._values = self._buffers()

    def state(self, rows: Tensor | None = None) -> Tensor:
        """The state of some rows (int64 [r]) or all, nothing pending: a new [H, r, K, D] in `dtype`."""
        keys, values, state = self._keys, self._values, self._state
        if rows is not None:
            keys, values = keys.index_select(2, rows), values.index_select(1, rows)
            state = None if state is None else state.index_select(1, rows)
        if state is not None:
            state = state.to(self._dtype, copy=rows is None)
        return self._folded(state, keys, values)

    def select(self, rows: Tensor) -> None:
        """Keep these rows (int64 [r]), in this order."""
        self.rows = len(rows)
        self._keys, self._values = self._keys.index_select(2, rows), self._values.index_select(1, rows)
        self._state = None if self._state is None else self._state.index_select(1, rows)
        self._all = self._everything() if self._dense_keys else None

    def _buffers(self) -> tuple[Tensor, Tensor]:
        """Room for the keys and values of `FOLD` tokens; `slot` makes more where a history grows."""
        keys = torch.empty(FOLD, self.heads, self.rows, self.key_width, dtype=self._dtype)
        return keys, torch.empty(FOLD, self.rows, self.width, dtype=self._dtype)

    def _everything(self) -> Firing:
        bags = self.heads * self.rows
        return Firing(torch.arange(bags * self.key_width), torch.arange(bags + 1) * self.key_width)

    def _is_due(self) -> bool:
        if self._pending < self._due:
            return False
        if self._state is not None:
            return True
        self._due += FOLD // 2  # asked again then: counting what fires costs something too
        newest = self._keys[self._pending - 1]
        share = 1.0 if self._dense_keys else count_nonzero(newest) / newest.numel()
        return not history_pays(self._pending, self.key_width, self.width, share)

    def _read_state(self, query: Tensor) -> Tensor:
        assert self._state is not None
        found = firing(query, self.heads * self.rows) if self._all is None else self._all
        flat = query.view(-1)
        weights = flat if len(found.entries) == len(flat) else flat.index_select(0, found.entries)
        table = self._state.view(-1, self.width)
        read = sum_rows(table, found.entries, found.starts, weights).to(self._dtype)
        read = read.view(self.heads, self.rows, self.width)
        return (
            read
            if self._log_decay is None
            else read.mul_(self._powers(torch.tensor([self._pending]))[..., None])
        )

    def _read_pending(self, query: Tensor, count: int) -> Tensor:
        past = self._keys[:count].view(count, -1, self.key_width).permute(1, 2, 0)
        scores = torch.bmm(query.view(-1, 1, self.key_width), past).view(self.heads, self.rows, count)
        if self._log_decay is not None:
            scores = scores * self._powers(torch.arange(count, 0, -1))[:, None]
        # one product per row: its values are shared by the heads
        return torch.matmul(scores.transpose(0, 1), self._values[:count].transpose(0, 1)).transpose(0, 1)

    def _powers(self, exponents: Tensor) -> Tensor:
        """d^e, [H, e]."""
        assert self._log_decay is not None
        return powers(self._log_decay[:, None], exponents, self._dtype, self._log_decay.device)

    def _folded(self, state: Tensor | None, keys: Tensor, values: Tensor) -> Tensor:
        """`state` [H, r, K, D] (None: empty; else written to) and what is pending of keys and values."""
        count, rows = self._pending, keys.shape[2]
        if not count:
            empty = (self.heads, rows, self.key_width, self.width)
            return values.new_zeros(empty) if state is None else state
        past = keys[:count].flatten(1, 2).permute(1, 2, 0)
        written = values[:count].transpose(0, 1).expand(self.heads, -1, -1, -1)
        if self._log_decay is not None:
            written = written * self._powers(torch.arange(count, 0, -1))[:, None, :, None]
        written = written.reshape(-1, count, self.width)
        if state is None:
            return torch.bmm(past, written).view(self.heads, rows, self.key_width, self.width)
        if self._log_decay is not None:
            # in half precision too the loss is counted in full, and rounded once
            exponent = (self._log_decay * count)[:, None, None, None]
            state.copy_(decayed(state.to(self._dtype), exponent))
        if state.dtype == past.dtype:
            state.flatten(0, 1).baddbmm_(past, written)
            return state
        # a state in half precision is rounded once per write, after the sum in full precision
        return state.add_(torch.bmm(past, written).view_as(state))
