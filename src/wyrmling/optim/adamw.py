"""PyTorch's AdamW, without PyTorch's compiler.

`torch.optim` guards its methods from being compiled, and loads the compiler to do so: about a second, a third of what
a short run takes to start. No optimizer is compiled here, so the guards are left out. What is computed is PyTorch's
own, to the last bit. The names of the guards are private to PyTorch: where they change, the second comes back and
nothing else happens.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, cast

import torch

_update = inspect.unwrap(torch.optim.AdamW.step)


class AdamW(torch.optim.AdamW):
    """AdamW (Loshchilov and Hutter 2019) as PyTorch computes it; the same arguments, the same state."""

    def __init__(self, params: Any, **settings: Any) -> None:
        for name in ("add_param_group", "zero_grad", "state_dict", "load_state_dict"):
            _lift_guard(getattr(torch.optim.Optimizer, name))
        super().__init__(params, **settings)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One update; a `closure` computes the loss again before it."""
        return cast("float | None", _update(self, closure))


def update_moments(optimizer: torch.optim.AdamW) -> None:
    """The update of AdamW over the optimizer's groups, without hooks or closure."""
    _update(optimizer)


def _lift_guard(method: Callable[..., Any]) -> None:
    """Tell a guarded method that its guard is up: it would load the compiler at its first call to make one."""
    inner = getattr(method, "__wrapped__", None)
    if inner is not None and not hasattr(inner, "__dynamo_disable"):
        setattr(inner, "__dynamo_disable", inner)
