"""The elementwise passes of the fused layer, in place and over tiles that stay in the cache.

Two sets with the same meaning. `eager` is a chain of PyTorch's own vectorised operations; every chain runs over slabs
of rows small enough for the cache, since one pass over main memory costs as much as the product before it. `compiled`
is one loop each, made by `torch.compile` (needs a C++ compiler); it computes in float32 between reading and writing
bfloat16, so its last bits differ from the eager ones.

Shapes: tiles are [G, R, C, N] (heads, rows, tokens, neurons), contiguous; under rope the neuron axis holds the first
members of all pairs, then the second ones, so that a rotation works on two contiguous halves. Phases are
[1 or R, C, N / 2].
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

KernelKind = Literal["eager", "compiled"]

# Numbers per slab: a few buffers of it, in bfloat16, fit the second-level cache of one core.
SLAB = 1 << 19


@dataclass(frozen=True)
class Kernels:
    """The six passes.

    fire_rotate(z, cos, sin, threshold, q): z becomes x = relu(z - threshold); q its rotation.
    rotate(x, cos, sin, q): the same from x.
    fire(z, threshold): z becomes relu(z - threshold).
    gate(y, x, mask, threshold, gated): y becomes relu(y - threshold); gated = x y (mask).
    gate_backward(g, x, y, mask, gated, g_y): with g = dL/d(gated): g becomes g y (its part of dL/dx),
        gated = x y, g_y = g x where y fires.
    rotate_backward(g_q, g, x, cos, sin): g becomes (g + rotation^T g_q) where x fires.
    """

    fire_rotate: Callable[[Tensor, Tensor, Tensor, float, Tensor], None]
    rotate: Callable[[Tensor, Tensor, Tensor, Tensor], None]
    fire: Callable[[Tensor, float], None]
    gate: Callable[[Tensor, Tensor, Tensor | None, float, Tensor], None]
    gate_backward: Callable[[Tensor, Tensor, Tensor, Tensor | None, Tensor, Tensor], None]
    rotate_backward: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], None]


def kernels(kind: KernelKind) -> Kernels:
    """The set of this name."""
    return _compiled() if kind == "compiled" else EAGER


def _slabs(tiles: tuple[Tensor, ...], phases: tuple[Tensor, ...] = ()) -> Iterator[tuple[Tensor, ...]]:
    """The same part of every tile (and of the phases), as views, small enough for the cache."""
    heads, rows, length, width = tiles[0].shape
    if all(len(phase) == 1 for phase in phases):  # heads and rows are alike, and may go several at a time
        tiles = tuple(tile.flatten(0, 1) for tile in tiles)
        step = max(1, SLAB // (length * width))
        part = length if step > 1 else max(1, SLAB // width)
        for first in range(0, heads * rows, step):
            for begin in range(0, length, part):
                tokens = slice(begin, begin + part)
                yield (
                    *(tile[first : first + step, tokens] for tile in tiles),
                    *(phase[:, tokens] for phase in phases),
                )
        return
    for row in range(rows):
        yield from _slabs(
            tuple(tile[:, row : row + 1] for tile in tiles),
            tuple(phase[row : row + 1] for phase in phases),
        )


def _fire(z: Tensor, threshold: float) -> None:
    if threshold:
        z.sub_(threshold)
    z.relu_()


def _rotate(x: Tensor, cos: Tensor, sin: Tensor, q: Tensor) -> None:
    half = x.shape[-1] // 2
    for x_, q_, c, s in _slabs((x, q), (cos, sin)):
        first, second = x_[..., :half], x_[..., half:]
        torch.mul(first, c, out=q_[..., :half]).addcmul_(second, s, value=-1)
        torch.mul(second, c, out=q_[..., half:]).addcmul_(first, s)


def _fire_rotate(z: Tensor, cos: Tensor, sin: Tensor, threshold: float, q: Tensor) -> None:
    _fire(z, threshold)
    _rotate(z, cos, sin, q)


def _gate(y: Tensor, x: Tensor, mask: Tensor | None, threshold: float, gated: Tensor) -> None:
    for y_, x_, gated_, *mask_ in _slabs((y, x, gated) if mask is None else (y, x, gated, mask)):
        _fire(y_, threshold)
        torch.mul(x_, y_, out=gated_)
        if mask_:
            gated_.mul_(mask_[0])


def _gate_backward(g: Tensor, x: Tensor, y: Tensor, mask: Tensor | None, gated: Tensor, g_y: Tensor) -> None:
    tiles = (g, x, y, gated, g_y) if mask is None else (g, x, y, gated, g_y, mask)
    for g_, x_, y_, gated_, g_y_, *mask_ in _slabs(tiles):
        torch.mul(x_, y_, out=gated_)
        if mask_:
            gated_.mul_(mask_[0])
            g_.mul_(mask_[0])
        torch.mul(g_, x_, out=g_y_)
        torch.ops.aten.threshold_backward.grad_input(g_y_, y_, 0.0, grad_input=g_y_)
        g_.mul_(y_)


def _rotate_backward(g_q: Tensor, g: Tensor, x: Tensor, cos: Tensor, sin: Tensor) -> None:
    half = x.shape[-1] // 2
    for g_q_, g_, x_, c, s in _slabs((g_q, g, x), (cos, sin)):
        first, second = g_q_[..., :half], g_q_[..., half:]
        g_[..., :half].addcmul_(first, c).addcmul_(second, s)
        g_[..., half:].addcmul_(second, c).addcmul_(first, s, value=-1)
        torch.ops.aten.threshold_backward.grad_input(g_, x_, 0.0, grad_input=g_)


EAGER = Kernels(_fire_rotate, _rotate, _fire, _gate, _gate_backward, _rotate_backward)


def _wide(x: Tensor) -> Tensor:
    return x.float() if x.dtype == torch.bfloat16 else x


def _one_fire(z: Tensor, threshold: float) -> None:
    z.copy_(torch.relu(z - threshold))


def _one_fire_rotate(
    z1: Tensor, z2: Tensor, cos: Tensor, sin: Tensor, threshold: float, q1: Tensor, q2: Tensor
) -> None:
    x1, x2 = torch.relu(z1 - threshold), torch.relu(z2 - threshold)
    first, second, c, s = _wide(x1), _wide(x2), _wide(cos), _wide(sin)
    z1.copy_(x1)
    z2.copy_(x2)
    q1.copy_(first * c - second * s)
    q2.copy_(second * c + first * s)


def _one_rotate(x1: Tensor, x2: Tensor, cos: Tensor, sin: Tensor, q1: Tensor, q2: Tensor) -> None:
    first, second, c, s = _wide(x1), _wide(x2), _wide(cos), _wide(sin)
    q1.copy_(first * c - second * s)
    q2.copy_(second * c + first * s)


def _one_gate(y: Tensor, x: Tensor, mask: Tensor | None, threshold: float, gated: Tensor) -> None:
    fires = torch.relu(y - threshold)
    product = _wide(fires) * _wide(x)
    y.copy_(fires)
    gated.copy_(product if mask is None else product * mask)


def _one_gate_backward(
    g: Tensor, x: Tensor, y: Tensor, mask: Tensor | None, gated: Tensor, g_y: Tensor
) -> None:
    x_, y_, g_ = _wide(x), _wide(y), _wide(g)
    product = x_ * y_
    if mask is not None:
        product, g_ = product * mask, g_ * mask
    gated.copy_(product)
    g_y.copy_(torch.where(y > 0, g_ * x_, 0.0))
    g.copy_(g_ * y_)


def _one_rotate_backward(
    q1: Tensor, q2: Tensor, g1: Tensor, g2: Tensor, x1: Tensor, x2: Tensor, cos: Tensor, sin: Tensor
) -> None:
    first, second, c, s = _wide(q1), _wide(q2), _wide(cos), _wide(sin)
    to_first = _wide(g1) + first * c + second * s
    to_second = _wide(g2) + second * c - first * s
    g1.copy_(torch.where(x1 > 0, to_first, 0.0))
    g2.copy_(torch.where(x2 > 0, to_second, 0.0))


def _halves(x: Tensor) -> tuple[Tensor, Tensor]:
    """The two halves of the last axis as tensors that know nothing of each other.

    A compiled function that writes to views of one storage writes each of them in a pass of its own; these halves
    never overlap, and going through the exchange protocol hides that they are neighbours.
    """
    first, second = x.detach().chunk(2, -1)
    return torch.from_dlpack(first), torch.from_dlpack(second)


# A compiled function is made again for tensors of another type, for sizes of one, and for a mask or none: more often
# than PyTorch allows by itself, which would end a run in the middle.
_REMADE = 64


@functools.cache
def _compiled() -> Kernels:
    """One loop per pass. Sizes are symbols, so that another batch or a last, shorter chunk compiles nothing."""

    settings: dict[str, Any] = {"dynamic": True, "fullgraph": True}
    own_limit = "recompile_limit" in inspect.signature(torch.compile).parameters
    if own_limit:
        settings["recompile_limit"] = _REMADE

    def one(function: Callable[..., None]) -> Callable[..., None]:
        compiled = torch.compile(function, **settings)

        def run(*arguments: object) -> None:  # older PyTorch: a setting of the thread, at every call
            with torch._dynamo.config.patch(cache_size_limit=_REMADE):
                compiled(*arguments)

        return compiled if own_limit else run

    first_turn, turn, turn_back = one(_one_fire_rotate), one(_one_rotate), one(_one_rotate_backward)

    def fire_rotate(z: Tensor, cos: Tensor, sin: Tensor, threshold: float, q: Tensor) -> None:
        first_turn(*_halves(z), cos, sin, threshold, *_halves(q))

    def rotate(x: Tensor, cos: Tensor, sin: Tensor, q: Tensor) -> None:
        turn(*_halves(x), cos, sin, *_halves(q))

    def rotate_backward(g_q: Tensor, g: Tensor, x: Tensor, cos: Tensor, sin: Tensor) -> None:
        turn_back(*_halves(g_q), *_halves(g), *_halves(x), cos, sin)

    return Kernels(
        fire_rotate, rotate, one(_one_fire), one(_one_gate), one(_one_gate_backward), rotate_backward
    )
