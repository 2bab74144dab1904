"""A model that is looked at, not trained: evaluation mode, no graph, and everything put back afterwards."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def evaluating(model: torch.nn.Module) -> Iterator[None]:
    """Put every module into evaluation mode and build no graph; restore each module's own mode at the end.

    The modes are restored one by one, also after an exception: a module that was frozen in evaluation mode
    inside a training model stays so. Tensors made inside are inference tensors and cannot be used for
    training.
    """
    modes = [(module, module.training) for module in model.modules()]
    try:
        if any(training for _, training in modes):
            model.eval()
        with torch.inference_mode():
            yield
    finally:
        for module, training in modes:
            if module.training != training:
                module.training = training
