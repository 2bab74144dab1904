"""How many tokens a chunk has: a pure function of sizes, so that it can be printed and kept."""

from __future__ import annotations

FIRST = 64
SCRATCH_BYTES = 4 << 30


def runtime_chunk(
    rows: int,
    heads: int,
    length: int,
    neurons: int,
    width: int,
    *,
    override: int | None = None,
    scratch_bytes: int = SCRATCH_BYTES,
) -> int:
    """Tokens per chunk of a call with rows x length tokens, H heads, N neurons per head and a stream of width D.

    min(64, T), halved (rounding up) until 4 (3 B H C N D + 2 B H C N) bytes fit `scratch_bytes`: the rule of the
    described system, whose kernels hold that much for a chunk of C tokens. This package needs far less; the rule
    is kept so that the number means the same. Rows and heads are those that are taken at a time.

    Args:
        override: wins over the rule, as min(override, T).

    Raises:
        ValueError: the override, or a size, is not positive.
    """
    if override is not None and override < 1:
        raise ValueError(f"the chunk of the RWKV-8 memory must be at least 1 token, got {override}")
    if min(rows, heads, length, neurons, width) < 1:
        raise ValueError(
            f"a chunk needs positive sizes, got {rows} rows, {heads} heads, {length} tokens, "
            f"{neurons} neurons, width {width}"
        )
    if override is not None:
        return min(override, length)
    chunk = min(FIRST, length)
    while chunk > 1 and 4 * rows * heads * chunk * neurons * (3 * width + 2) > scratch_bytes:
        chunk = (chunk + 1) // 2
    return chunk
