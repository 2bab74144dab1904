"""What a training step computes, in multiply-adds of its products.

Only the products are counted, once for each pass that needs them: what a backward pass computes again, and everything
elementwise, is time without operations. So operations / time, as a share of the measured rate of products, says how
much of a step is not products.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...memory.choose import BLOCK_ROWS
from ...model import Model


def operations(
    *,
    neurons: Sequence[int],
    width: int,
    heads: int,
    vocabulary: int,
    rows: int,
    length: int,
    tile: int,
    chunk: int | None = None,
    window: int = 1,
    carries: bool = False,
    key_factor: int = 1,
) -> dict[str, int]:
    """Multiply-adds of the products of one training step with linear attention, by what they are for.

    The block is read in chunks, each a call of the model: forward, then backward through as many chunks as the window
    reaches. In a call, a tile of C tokens takes its scores by blocks of 128 rows up to the diagonal; the state is read
    by every tile that one comes before, and written by every tile that one follows. The backward pass of q q^T is one
    full product, (G + G^T) q; every other product has two of its own size, but for the read of a state that no
    gradient leaves by, which has one.

    The loss of a later chunk comes in through the states: through the whole of every layer but the last one, whose
    state depends on its encoder alone.

    Args:
        neurons: per head, of each layer.
        tile: tokens that attend to each other directly; at least a chunk where no state is handed on inside it.
        chunk: tokens per chunk; None: the block is one.
        window: chunks that a loss reaches, its own included.
        carries: whether the state outlives the step.
        key_factor: numbers of a key per neuron.
    """
    parts = dict.fromkeys(("encoder", "encoder_v", "decoder", "scores", "reads", "state", "head"), 0)
    factors = ("encoder", "encoder_v", "decoder")
    calls = _cut(length, chunk or length)
    for index, tokens in enumerate(calls):
        parts["head"] += 3 * tokens * width * vocabulary
        for layer, own in enumerate(neurons):
            matrix, keys = width * heads * own, heads * own * key_factor
            tiles = _cut(tokens, tile)
            unread = 0 if carries or index else tiles[0]  # nothing came before
            unwritten = 0 if carries or index + 1 < len(calls) else tiles[-1]  # nothing follows
            triangles = sum(map(_triangle, tiles))
            for name in factors:
                parts[name] += tokens * matrix
            parts["scores"] += triangles * keys
            parts["reads"] += triangles * heads * width
            parts["state"] += (2 * tokens - unread - unwritten) * keys * width
            for back in range(
                min(window, index + 1)
            ):  # chunks that lie between the loss and the one it goes through
                came, last = calls[index - back], layer + 1 == len(neurons)
                tiles = _cut(came, tile)
                if back and last:
                    parts["encoder"] += 2 * came * matrix
                    parts["state"] += 2 * came * keys * width
                    continue
                for name in factors:
                    parts[name] += 2 * came * matrix
                parts["scores"] += sum(size * size for size in tiles) * keys
                parts["reads"] += 2 * sum(map(_triangle, tiles)) * heads * width
                first = 0 if not (carries or back < index) else tiles[0] * (2 if window > 1 else 1)
                written = came if back else came - tiles[-1]
                parts["state"] += (first + 2 * (came - tiles[0]) + 2 * written) * keys * width
    return {name: rows * count for name, count in parts.items()}


def _cut(length: int, size: int) -> list[int]:
    """Sizes of the pieces of `length` tokens, the last one perhaps smaller."""
    return [min(size, length - begin) for begin in range(0, length, size)]


def _triangle(tokens: int) -> int:
    """Entries of a lower triangle that is cut into blocks of 128 rows, the diagonal's squares whole."""
    ends = [min(begin + BLOCK_ROWS, tokens) for begin in range(0, tokens, BLOCK_ROWS)]
    return sum((end - begin) * end for begin, end in zip([0, *ends], ends, strict=False))


def step_operations(
    model: Model,
    *,
    rows: int,
    length: int,
    tile: int,
    chunk: int | None = None,
    window: int = 1,
    carries: bool = False,
) -> int:
    """Additions and multiplications (two per multiply-add) of one forward and backward pass over `rows` x `length`.

    A memory other than linear attention is counted by its definition: every token goes through its matrices once,
    writes every number of its state once, and reads it once, in the forward pass and twice in every backward pass.

    Args: see `operations`.
    """
    geometry = model.geometry
    parts = operations(
        neurons=geometry.layer_neurons,
        width=geometry.width,
        heads=geometry.heads,
        vocabulary=geometry.vocab_size,
        rows=rows,
        length=length,
        tile=tile,
        chunk=chunk,
        window=window,
        carries=carries,
        key_factor=geometry.key_factor,
    )
    if model.config.sequence_kernel.memory_system == "linear_attention":
        return 2 * sum(parts.values())
    roles = model.memory.parameter_roles
    matrices = sum(
        weight.numel() for name, weight in model.memory.named_parameters() if roles.get(name) == "matrix"
    )
    calls = _cut(length, chunk or length)
    backward = sum(
        calls[index - back] for index in range(len(calls)) for back in range(min(window, index + 1))
    )
    memory = rows * (length + 2 * backward) * (geometry.layers * matrices + 2 * geometry.state_numbers)
    return 2 * (memory + sum(parts[name] for name in ("encoder", "encoder_v", "decoder", "head")))
