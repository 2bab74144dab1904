"""From the `[model]` table to a sequence memory."""

from __future__ import annotations

from ..config.schema.model import Model as ModelConfig
from ..memory import LinearAttention, Mamba2, Mamba3, Memory, Rwkv8


def build_memory(config: ModelConfig, *, neurons: int, seed: int) -> Memory:
    """The memory that a configuration asks for. `neurons`: per head, of the widest layer."""
    kernel, mamba, width = config.sequence_kernel, config.mamba, config.n_embd
    if kernel.memory_system == "linear_attention":
        return LinearAttention(
            config.n_head,
            neurons,
            width,
            positions=config.rotary_embedding,
            theta=config.rope_theta,
            slopes=None if config.alibi_slopes is None else list(config.alibi_slopes),
            executor=kernel.executor,
        )
    executor = "reference" if kernel.executor == "reference" else "auto"
    if kernel.memory_system == "rwkv8":
        return Rwkv8(config.n_head, neurons, width, executor=executor)
    headdim = mamba.head_width(width)
    if kernel.memory_system == "mamba2":
        return Mamba2(
            width,
            d_state=mamba.d_state,
            d_conv=mamba.d_conv,
            expand=mamba.expand,
            headdim=headdim,
            ngroups=mamba.ngroups,
            conv_bias=mamba.conv_bias,
            dt_min=mamba.dt_min,
            dt_max=mamba.dt_max,
            dt_init_floor=mamba.dt_init_floor,
            a_init_min=mamba.a_init_min,
            a_init_max=mamba.a_init_max,
            norm_eps=mamba.norm_eps,
            norm_before_gate=mamba.norm_before_gate,
            norm_full_width=mamba.norm_full_width,
            chunk_size=mamba.chunk_size,
            executor=executor,
            seed=seed,
        )
    return Mamba3(
        width,
        d_state=mamba.d_state,
        expand=mamba.expand,
        headdim=headdim,
        ngroups=mamba.ngroups,
        dt_min=mamba.dt_min,
        dt_max=mamba.dt_max,
        dt_init_floor=mamba.dt_init_floor,
        norm_eps=mamba.norm_eps,
        rope_fraction=mamba.rope_fraction,
        a_floor=mamba.a_floor,
        heavy_tail=mamba.heavy_tail,
        is_outproj_norm=mamba.is_outproj_norm,
        chunk_size=mamba.chunk_size,
        executor=executor,
        seed=seed,
    )
