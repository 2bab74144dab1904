"""The line that says what sizes a memory runs at: sizes that follow from others, in one place."""

from __future__ import annotations

import os

from ..config import Config, layer_totals
from ..config.schema import Model
from ..errors import CheckpointError, ConfigError
from ..memory import Memory, Rwkv8
from ..runs import Choice
from ..watch.fingerprint import Line, geometry

RWKV8_CHUNK = "WYRMLING_RWKV8_CHUNK"
RWKV8_SCRATCH = "WYRMLING_RWKV8_SCRATCH_BYTES"
RWKV8_CHOICE = "rwkv8_chunk"


def geometry_line(config: Config, device: str, memory: Memory, tile: int | None = None) -> Line | None:
    """The sizes of the memory in force for one micro-batch; None for linear attention, which has none of its own.

    Args:
        tile: tokens that the layer hands over at a time; None is the whole block.
    """
    model, training = config.effective_model, config.training
    system = model.sequence_kernel.memory_system
    if system == "linear_attention":
        return None
    sizes = _mamba(model) if system.startswith("mamba") else _rwkv8(config, memory, tile)
    return geometry(
        device=device,
        memory=system,
        micro_batch=training.batch_size,
        kernel_block=training.kernel_block,
        sizes=sizes,
    )


def limit_scratch(memory: Memory, stored: str | None = None) -> tuple[Choice, ...]:
    """Tell an RWKV-8 memory how long its chunks may be: as the environment says, or as was recorded.

    Args:
        stored: the recorded value of a run that goes on.
    Returns: the choice that was made; none for another memory.
    Raises:
        ConfigError: a variable that is no positive whole number.
        CheckpointError: a variable that says something else than what the run was created with.
    """
    if not isinstance(memory, Rwkv8):
        return ()
    chunk, scratch = _from_environment(RWKV8_CHUNK), _from_environment(RWKV8_SCRATCH)
    value = f"{chunk} tokens" if chunk else f"within {scratch or memory.scratch_bytes} bytes"
    if stored is not None and (chunk or scratch) and value != stored:
        raise CheckpointError(
            f"{RWKV8_CHUNK if chunk else RWKV8_SCRATCH} asks for chunks of {value}, and the run was created with "
            f"{stored}: unset it, or pass --allow-inexact"
        )
    reason = (
        "as when the run was created" if stored else f"{RWKV8_CHUNK} and {RWKV8_SCRATCH}, where they are set"
    )
    value = stored or value
    words = value.split()
    memory.chunk_override = int(words[0]) if words[1] == "tokens" else None
    memory.scratch_bytes = memory.scratch_bytes if memory.chunk_override else int(words[1])
    return (Choice(RWKV8_CHOICE, value, reason),)


def _from_environment(name: str) -> int | None:
    text = os.environ.get(name, "").strip()
    if not text:
        return None
    if not text.isdecimal() or int(text) < 1:
        raise ConfigError(f"{name} must be a positive whole number, got {text!r}: set one, or unset it")
    return int(text)


def _mamba(model: Model) -> dict[str, object]:
    mamba, width = model.mamba, model.n_embd
    sizes: dict[str, object] = {
        "d_inner": mamba.inner_width(width),
        "headdim": mamba.head_width(width),
        "nheads": mamba.head_count(width),
        "ngroups": mamba.ngroups,
        "d_state": mamba.d_state,
    }
    if model.sequence_kernel.memory_system == "mamba2":
        return sizes | {"d_conv": mamba.d_conv, "chunk_size": mamba.chunk_size}
    return sizes | {"rope_angles": mamba.rope_angles, "chunk_size": mamba.chunk_size}


def _rwkv8(config: Config, memory: Memory, tile: int | None) -> dict[str, object]:
    assert isinstance(memory, Rwkv8)
    model, training = config.effective_model, config.training
    total = max(layer_totals(model))  # a narrow layer needs no more than the widest
    neurons = total // model.n_head
    length = min(training.kernel_block, tile or training.kernel_block)
    return {
        "latent_total": total,
        "latent/head": neurons,
        "nheads": model.n_head,
        "value_heads": 1,
        "embd": model.n_embd,
        "runtime_chunk": memory.runtime_chunk(training.batch_size, length, neurons),
    }
