"""The four normalisations of BDH, over the last axis.

`layer_norm` without gain or bias is what the published model uses everywhere. `dynamic_tanh` follows Zhu et al. 2025
("Transformers without Normalization"); `derf` is its error-function sibling.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .roles import declare

NormKind = Literal["layer_norm", "rms_norm", "dynamic_tanh", "derf"]

# The described system's: tanh(x / 2), and erf(sqrt(pi) / 2 x), whose slope at 0 is 1.
DEFAULT_ALPHA = {"dynamic_tanh": 0.5, "derf": 0.88622695}


class Norm(nn.Module):
    """One normalisation, shared by the whole model.

    Args:
        width: size D of the last axis.
        kind: which one; see the module's text.
        eps: added to the variance (layer_norm) or mean square (rms_norm).
        affine: whether a learned gain (starts at 1) and bias (starts at 0), both [D], follow.
        alpha, shift: starting values of the learned scalars of dynamic_tanh and derf.
    """

    def __init__(
        self,
        width: int,
        kind: NormKind = "layer_norm",
        *,
        eps: float = 1e-5,
        affine: bool = False,
        alpha: float | None = None,
        shift: float | None = None,
    ) -> None:
        super().__init__()
        self.width, self.kind, self.eps = width, kind, eps
        self.gain = declare(nn.Parameter(torch.ones(width)), "gain") if affine else None
        self.bias = declare(nn.Parameter(torch.zeros(width)), "bias") if affine else None
        self.alpha: nn.Parameter | None = None
        self.shift: nn.Parameter | None = None
        if kind in DEFAULT_ALPHA:
            start = DEFAULT_ALPHA[kind] if alpha is None else alpha
            self.alpha = declare(nn.Parameter(torch.full((1,), float(start))), "gain")
        if kind == "derf":
            self.shift = declare(nn.Parameter(torch.full((1,), float(shift or 0.0))), "bias")

    def forward(self, x: Tensor) -> Tensor:
        """Normalise x [..., D]; same shape. Half precision is computed in float32 and returned in float32."""
        if x.dtype in (torch.bfloat16, torch.float16):
            x = x.float()
        if self.kind == "layer_norm":
            return F.layer_norm(x, (self.width,), self.gain, self.bias, self.eps)
        if self.kind == "rms_norm":
            x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps)
        elif self.shift is not None and self.alpha is not None:
            x = torch.erf(self.alpha * x + self.shift)
        elif self.alpha is not None:
            x = torch.tanh(self.alpha * x)
        if self.gain is not None and self.bias is not None:
            x = x * self.gain + self.bias
        return x

    def extra_repr(self) -> str:
        return f"{self.width}, {self.kind}, eps={self.eps}, affine={self.gain is not None}"
