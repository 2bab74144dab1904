"""Buffers that outlive a call: touching fresh memory costs more than the arithmetic on it."""

from __future__ import annotations

import math
import threading

import torch
from torch import Tensor

from .halving import Block, Powers

KEPT = 64  # blocks of different sizes; beyond that their views are made anew


class Workspace(threading.local):
    """Tables, blocks and buffers, one set per thread, that every call uses again.

    Nothing in them means anything between two calls, and blocks of different sizes lie in the same memory. On devices
    whose allocator keeps freed memory anyway, and where work of several streams may overlap, all is made anew.
    """

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, torch.dtype], Tensor] = {}
        self._powers: dict[tuple[object, ...], Powers] = {}
        # by address: whose tables lie there, of which decays
        self._set: dict[int, tuple[Powers, Tensor]] = {}
        self._blocks: dict[tuple[object, ...], Block] = {}

    def __reduce__(self) -> tuple[type[Workspace], tuple[()]]:
        # buffers are made again where they are needed: copies and pickles do without
        return Workspace, ()

    def buffer(self, name: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
        """A buffer [shape] whose contents are whatever the last user left."""
        if device.type != "cpu":
            return torch.empty(shape, dtype=dtype, device=device)
        size = math.prod(shape)
        buffer = self._buffers.get((name, dtype))
        if buffer is None or buffer.numel() < size:
            if buffer is not None:  # what was made so far may be views of it
                self._powers.clear()
                self._set.clear()
                self._blocks.clear()
            with torch.inference_mode(False):  # it may be written to outside of inference later
                buffer = self._buffers[name, dtype] = torch.empty(size, dtype=dtype)
        return buffer[:size].view(shape)

    def powers(self, log_decay: Tensor, size: int, name: int = 0) -> Powers:
        """The powers of lam up to `size`, from log lam [H, N]. Those of another name stay as they are.

        Layers and passes ask for the same ones again and again: that costs a comparison.
        """
        (heads, width), dtype, device = log_decay.shape, log_decay.dtype, log_decay.device
        tables = self.buffer(f"powers {name}", (2, heads, 1, size + 1, width), dtype, device)
        key = (name, dtype, *tables.shape)
        powers = self._powers.get(key)
        if powers is None:
            with torch.inference_mode(False):
                powers = Powers(tables)
        if device.type == "cpu":
            self._powers[key] = powers
            last = self._set.get(tables.data_ptr())
            if last is not None and last[0] is powers and torch.equal(last[1], log_decay):
                return powers
            self._set.pop(
                tables.data_ptr(), None
            )  # should setting them be interrupted, nothing is known of them
        powers.set(log_decay)
        if device.type == "cpu":
            self._set[tables.data_ptr()] = powers, log_decay.detach().clone()
        return powers

    def block(
        self, shape: tuple[int, int, int, int], powers: Powers, low: torch.dtype, *, gradients: bool
    ) -> Block:
        """A block of this shape; it takes the place of all others."""
        device = powers.tables.device

        def buffer(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
            return self.buffer(name, shape, dtype, device)

        key = (shape, powers, low, gradients)
        block = self._blocks.get(key)
        if block is None:
            with torch.inference_mode(False):
                block = Block(shape, powers, low, buffer, gradients=gradients)
            if device.type == "cpu":
                if len(self._blocks) >= KEPT:
                    self._blocks.clear()
                self._blocks[key] = block
        return block
