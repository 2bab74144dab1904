"""What the state of one layer holds, by memory; pure functions of the `[model]` table.

    memory           tensors of one layer, per row                            read
    linear_attention rho [H, K, D]                                            before the token is written
    mamba2           ssm [h, P, N], conv [channels, d_conv - 1]               after
    mamba3           ssm [h, P, N], angle [h, R], key [h, N], value [h, P]    after
    rwkv8            rho [H, N, D], norm [H, N]                               before

The Mamba memories read the dense stream and share one read among all heads of the layer; their state does not depend
on how many neurons the layer has.
"""

from __future__ import annotations

import math

from .schema.model import Model

Axes = dict[str, int]


def state_axes(config: Model, neurons: int) -> dict[str, Axes]:
    """Tensors of one layer's state with the names and sizes of their axes, without the batch row in front.

    Args:
        neurons: per head, of this layer.
    """
    width, mamba, system = config.n_embd, config.mamba, config.sequence_kernel.memory_system
    if system in ("linear_attention", "rwkv8"):
        keys = neurons * (2 if system == "linear_attention" and config.rotary_embedding == "pope" else 1)
        rho = {"heads": config.n_head, "latent_per_head": keys, "dense_dim": width}
        if system == "linear_attention":
            return {"rho": rho}
        return {"rho": rho, "norm": {"heads": config.n_head, "latent_per_head": neurons}}
    heads, headdim, key = mamba.head_count(width), mamba.head_width(width), mamba.d_state
    ssm = {"memory_heads": heads, "headdim": headdim, "d_state": key}
    if system == "mamba2":
        channels = mamba.inner_width(width) + 2 * mamba.ngroups * key
        return {"ssm": ssm, "conv": {"channels": channels, "taps": mamba.d_conv - 1}}
    return {
        "ssm": ssm,
        "angle": {"memory_heads": heads, "rope_angles": mamba.rope_angles},
        "key": {"memory_heads": heads, "d_state": key},
        "value": {"memory_heads": heads, "headdim": headdim},
    }


def state_numbers(config: Model, neurons: int) -> int:
    """Numbers in one row's state of one layer with so many neurons per head."""
    return sum(math.prod(axes.values()) for axes in state_axes(config, neurons).values())
