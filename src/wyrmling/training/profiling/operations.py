"""What a training step computes, in multiply-adds of its products.

Only the products are counted, once each: what the backward pass computes again, and everything elementwise, is time
without operations. So operations / time, as a share of the measured rate of products, says how much of a step is not
products.
"""

from __future__ import annotations

from collections import Counter

from ...memory.choose import BLOCK_ROWS
from ...model import Model
from ...model.geometry import Geometry


def operations(
    *,
    layers: int,
    width: int,
    heads: int,
    neurons: int,
    vocabulary: int,
    rows: int,
    length: int,
    tile: int,
) -> dict[str, int]:
    """Multiply-adds of the products of one training step, forward and backward, by what they are for.

    A tile of C tokens takes its scores by blocks of 128 rows up to the diagonal; tiles after the first read the
    state, tiles before the last add to it. The backward pass of q q^T is one full product, (G + G^T) q; every other
    product has two of its own size.

    Args:
        neurons: per head.
        tile: tokens that attend to each other directly; at least `length` where no state is read.
    """
    tiles = [min(tile, length - begin) for begin in range(0, length, tile)]
    triangles = sum(_triangle(tokens) for tokens in tiles)
    squares = sum(tokens * tokens for tokens in tiles)
    all_neurons = heads * neurons
    matrix = 3 * layers * rows * length * width * all_neurons
    carried = (length - tiles[0]) + (length - tiles[-1])
    return {
        "encoder": matrix,
        "encoder_v": matrix,
        "decoder": matrix,
        "scores": layers * rows * (triangles + squares) * all_neurons,
        "reads": 3 * layers * rows * triangles * heads * width,
        "state": 3 * layers * rows * carried * all_neurons * width,
        "head": 3 * rows * length * width * vocabulary,
    }


def _triangle(tokens: int) -> int:
    """Entries of a lower triangle that is cut into blocks of 128 rows, the diagonal's squares whole."""
    ends = [min(begin + BLOCK_ROWS, tokens) for begin in range(0, tokens, BLOCK_ROWS)]
    return sum((end - begin) * end for begin, end in zip([0, *ends], ends, strict=False))


def step_operations(model: Model, *, rows: int, length: int, tile: int) -> int:
    """Additions and multiplications (two per multiply-add) of one forward and backward pass over `rows` x `length`.

    A memory other than linear attention is counted by its definition: every token goes through its matrices once,
    writes every number of its state once, and reads it once.

    Args:
        tile: tokens that attend to each other directly.
    """
    geometry = model.geometry
    total = 3 * rows * length * geometry.width * geometry.vocab_size
    memory = 0
    linear = model.config.sequence_kernel.memory_system == "linear_attention"
    if not linear:
        roles = model.memory.parameter_roles
        matrices = sum(
            weight.numel() for name, weight in model.memory.named_parameters() if roles.get(name) == "matrix"
        )
        memory = 3 * rows * length * (geometry.layers * matrices + 2 * geometry.state_numbers)
    for neurons, layers in Counter(geometry.layer_neurons).items():
        parts = _layers(geometry, neurons, layers, rows=rows, length=length, tile=tile)
        kept = parts if linear else {name: parts[name] for name in ("encoder", "encoder_v", "decoder")}
        total += sum(kept.values())
    return 2 * (total + memory)


def _layers(
    geometry: Geometry, neurons: int, layers: int, *, rows: int, length: int, tile: int
) -> dict[str, int]:
    parts = operations(
        layers=layers,
        width=geometry.width,
        heads=geometry.heads,
        neurons=neurons,
        vocabulary=0,
        rows=rows,
        length=length,
        tile=tile,
    )
    for name in ("scores", "state"):  # pope's keys have two numbers per neuron
        parts[name] *= geometry.key_factor
    return parts
