"""How fast this machine multiplies matrices: the yardstick for the operations of a training step."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

# rows, inner, columns: one square, and those of a dragon
SHAPES = [(2048, 2048, 2048), (1024, 256, 8192), (1024, 8192, 256), (512, 8192, 512)]
ROUNDS = 3


def products(dtype: torch.dtype, device: torch.device | None = None) -> dict[str, Callable[[], object]]:
    """A product of each of `SHAPES`, to be timed, by name. Draws from no generator but its own."""
    import torch

    generator = torch.Generator().manual_seed(0)

    def product(rows: int, inner: int, columns: int) -> Callable[[], object]:
        left = torch.randn(rows, inner, generator=generator).to(device or "cpu", dtype)
        right = torch.randn(inner, columns, generator=generator).to(device or "cpu", dtype)
        result = torch.empty(rows, columns, dtype=dtype, device=device)
        return lambda: torch.mm(left, right, out=result)

    return {product_name(dtype, shape): product(*shape) for shape in SHAPES}


def product_name(dtype: torch.dtype, shape: tuple[int, int, int]) -> str:
    """The name of a product."""
    return f"product {dtype} {'x'.join(map(str, shape))}"


def operations_of(shape: tuple[int, int, int]) -> int:
    """Additions and multiplications of a product."""
    return 2 * shape[0] * shape[1] * shape[2]


def matrix_rate(
    dtype: torch.dtype,
    device: torch.device | None = None,
    *,
    seconds: float = 1.0,
    wait: Callable[[], None] = lambda: None,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Operations per second of the fastest of the products, by the median over rounds that take them in turn.

    Args:
        seconds: begin no further round after so many; there are `ROUNDS` at least.
        wait: lets the device finish what it was given.
    """
    calls = products(dtype, device)
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():  # the first product of a size prepares kernels
        call()
    wait()
    begun = clock()
    while len(times[next(iter(times))]) < ROUNDS or clock() - begun < seconds:
        for name, call in calls.items():
            before = clock()
            call()
            wait()
            times[name].append(max(clock() - before, 1e-9))
    return max(
        operations_of(shape) / statistics.median(times[product_name(dtype, shape)]) for shape in SHAPES
    )
