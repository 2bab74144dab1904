"""From pre-activations to keys, per kind of position: the part of the fused layer that differs between them."""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from .kernels import Kernels

Phase = tuple[Tensor, Tensor]


class Encoding(Protocol):
    """Keys (= queries) of one tile and head.

    fire(z, threshold, phases, q): z [G, R, C, N] becomes x = relu(z - threshold); returns the keys [G, R, C, K],
        which may be q (a buffer [G, R, C, K]) or x itself.
    keys(x, phases, q): the same from x.
    backward(g_q, g, x, phases): g [G, R, C, N], what x receives from elsewhere, becomes dL/dz; g_q is dL/d(keys).
    """

    def fire(self, z: Tensor, threshold: float, phases: Phase | None, q: Tensor) -> Tensor: ...
    def keys(self, x: Tensor, phases: Phase | None, q: Tensor) -> Tensor: ...
    def backward(self, g_q: Tensor, g: Tensor, x: Tensor, phases: Phase | None) -> None: ...


class Rotary:
    """Rotation of pairs; a pair's members stand in the two halves of the neuron axis."""

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels

    def fire(self, z: Tensor, threshold: float, phases: Phase | None, q: Tensor) -> Tensor:
        assert phases is not None
        self._kernels.fire_rotate(z, *phases, threshold, q)
        return q

    def keys(self, x: Tensor, phases: Phase | None, q: Tensor) -> Tensor:
        assert phases is not None
        self._kernels.rotate(x, *phases, q)
        return q

    def backward(self, g_q: Tensor, g: Tensor, x: Tensor, phases: Phase | None) -> None:
        assert phases is not None
        self._kernels.rotate_backward(g_q, g, x, *phases)


class Decaying:
    """ALiBi: the keys are the neurons; the state decays."""

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels

    def fire(self, z: Tensor, threshold: float, phases: Phase | None, q: Tensor) -> Tensor:
        self._kernels.fire(z, threshold)
        return z

    def keys(self, x: Tensor, phases: Phase | None, q: Tensor) -> Tensor:
        return x

    def backward(self, g_q: Tensor, g: Tensor, x: Tensor, phases: Phase | None) -> None:
        g.add_(g_q)
        torch.ops.aten.threshold_backward.grad_input(g, x, 0.0, grad_input=g)


class Polar:
    """PoPE: magnitude softplus(x), angle from the position; keys hold all cosine parts, then all sine parts."""

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels

    def fire(self, z: Tensor, threshold: float, phases: Phase | None, q: Tensor) -> Tensor:
        self._kernels.fire(z, threshold)
        return self.keys(z, phases, q)

    def keys(self, x: Tensor, phases: Phase | None, q: Tensor) -> Tensor:
        assert phases is not None
        magnitude = F.softplus(x.float() if x.dtype == torch.bfloat16 else x).to(x.dtype)
        for half, phase in zip(q.chunk(2, -1), phases, strict=True):
            torch.mul(magnitude, phase, out=half)
        return q

    def backward(self, g_q: Tensor, g: Tensor, x: Tensor, phases: Phase | None) -> None:
        assert phases is not None
        along_cos, along_sin = g_q.chunk(2, -1)
        g_magnitude = (along_cos * phases[0]).addcmul_(along_sin, phases[1])
        g.addcmul_(g_magnitude, torch.sigmoid(x))
        torch.ops.aten.threshold_backward.grad_input(g, x, 0.0, grad_input=g)


def encoding(positions: str, kernels: Kernels) -> Encoding:
    """The encoding of this kind of position: "rope", "alibi" or "pope"."""
    kinds: dict[str, type[Rotary] | type[Decaying] | type[Polar]] = {
        "rope": Rotary,
        "alibi": Decaying,
        "pope": Polar,
    }
    return kinds[positions](kernels)
