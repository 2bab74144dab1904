"""PyTorch's AdamW, without PyTorch's compiler.

`torch.optim` guards its methods from being compiled, and loads the compiler to do so: about a second, a third of what
a short run takes to start. No optimizer is compiled here, so this class has the methods without their guards;
PyTorch's own classes keep theirs. What is computed is PyTorch's own, to the last bit.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import cast

import torch

_update = inspect.unwrap(torch.optim.AdamW.step)


class AdamW(torch.optim.AdamW):
    """AdamW (Loshchilov and Hutter 2019) as PyTorch computes it; the same arguments, the same state."""

    add_param_group = inspect.unwrap(torch.optim.Optimizer.add_param_group)
    zero_grad = inspect.unwrap(torch.optim.Optimizer.zero_grad)
    state_dict = inspect.unwrap(torch.optim.Optimizer.state_dict)
    load_state_dict = inspect.unwrap(torch.optim.Optimizer.load_state_dict)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One update; a `closure` computes the loss again before it."""
        return cast("float | None", _update(self, closure))


def update_moments(optimizer: torch.optim.AdamW) -> None:
    """The update of AdamW over the optimizer's groups, without hooks or closure."""
    _update(optimizer)
