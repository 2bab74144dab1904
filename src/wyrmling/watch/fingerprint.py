"""Lines that say what a run does, for logs that are searched and compared.

Each function returns (name, text); the line in a log is `name: text`. Keys and their order are fixed. A
value holds no space: lists and tables are compact JSON, a thing that is off says `disabled`, a thing that
is not given `none`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ..runs.records import execution_form

Line = tuple[str, str]


def parallel_runtime(
    *,
    mode: str = "single",
    world_size: int = 1,
    global_rank: int = 0,
    local_rank: int = 0,
    dp_size: int = 1,
    local_dp_size: int = 1,
    tp_size: int = 1,
    process_group: bool = False,
) -> Line:
    """Who this process is: `dp_size` replicas in all, `local_dp_size` of them inside this process."""
    return "parallel runtime", _pairs(
        mode=mode,
        world_size=world_size,
        global_rank=global_rank,
        local_rank=local_rank,
        dp_size=dp_size,
        local_dp_size=local_dp_size,
        tp_size=tp_size,
        process_group=process_group,
    )


def training_path(
    *,
    backend: str,
    launch_mode: str,
    sequence_kernel: str,
    block_size: int,
    dtype: str,
    executor: str,
    sequence_kernel_override: str | None = None,
    tbptt_chunk_size: int | None = None,
    pipeline_enabled: bool = False,
) -> Line:
    """Which code runs a step. `backend` is the device type; `sequence_kernel` the memory in force.

    `kernel_block_size` in the text is the time length of one call of the model: the chunk when there is one
    that is shorter than the block, else the block. `dtype` and `executor` come last: the automatic choices
    of a run.
    """
    chunked = tbptt_chunk_size is not None and 0 < tbptt_chunk_size < block_size
    return "training path fingerprint", _pairs(
        backend=backend,
        execution_form=execution_form(pipeline_enabled=pipeline_enabled, tbptt_chunk_size=tbptt_chunk_size),
        launch_mode=launch_mode,
        effective_sequence_kernel=sequence_kernel,
        sequence_kernel_override=sequence_kernel_override,
        tbptt_chunk_size=_or_disabled(tbptt_chunk_size),
        kernel_block_size=tbptt_chunk_size if chunked else block_size,
        pipeline_enabled=pipeline_enabled,
        dtype=dtype,
        executor=executor,
    )


def train_schedule(
    *,
    dataset_steps_per_epoch: int,
    checkpoint_interval_iters: int,
    total_steps: int,
    epochs: int | None = None,
) -> Line:
    """How long the run is, in optimizer steps. This line separates its pairs with commas.

    A logical epoch is the dataset's when the run's length is given in `epochs`; otherwise it is what lies
    between two scheduled checkpoints, and `epochs` in the text counts those, the last perhaps short.
    """
    if epochs is None:
        logical = max(1, min(checkpoint_interval_iters, total_steps))
        count, source = -(-total_steps // logical), "max_iters"
    else:
        logical, count, source = dataset_steps_per_epoch, epochs, "epochs"
    return "train schedule", _pairs(
        ", ",
        dataset_steps_per_epoch=dataset_steps_per_epoch,
        logical_steps_per_epoch=logical,
        checkpoint_interval_iters=checkpoint_interval_iters,
        total_steps=total_steps,
        epochs=count,
        source=source,
    )


def training_batching(
    *,
    micro_batch_size: int,
    gradient_accumulation_steps: int = 1,
    replicas: int = 1,
    tbptt_chunk_size: int | None = None,
    tbptt_persist_across_steps: bool = False,
    min_logical_block_size: int | None = None,
) -> Line:
    """What one optimizer step reads. `effective_batch_size` counts accumulation and replicas too."""
    return "training batching", _pairs(
        micro_batch_size=micro_batch_size,
        gradient_accumulation_steps=gradient_accumulation_steps,
        effective_batch_size=micro_batch_size * gradient_accumulation_steps * replicas,
        tbptt_chunk_size=_or_disabled(tbptt_chunk_size),
        tbptt_persist_across_steps=tbptt_persist_across_steps,
        min_logical_block_size=_or_disabled(min_logical_block_size),
    )


def geometry(
    *, device: str, memory: str, micro_batch: int, kernel_block: int, sizes: Mapping[str, object]
) -> Line:
    """The sizes at which a memory runs on a micro-batch of `micro_batch` rows of `kernel_block` tokens."""
    common = {
        "micro_batch": micro_batch,
        "kernel_block": kernel_block,
        "tokens/micro_batch": micro_batch * kernel_block,
    }
    return f"{device} {memory} geometry", _pairs(**common, **sizes)


def optimizer(
    *,
    name: str,
    schedule_mode: str,
    learning_rate: float,
    weight_decay: float,
    weight_decay_final: float | None = None,
    module_lr_scales: list[dict[str, Any]] | None = None,
    continual_backprop_lr_coupling: str = "none",
    continual_backprop_lr_coupling_power: float = 1.0,
) -> Line:
    """Who moves the weights. Numbers are written so that reading them back gives the same number."""
    return "optimizer fingerprint", _pairs(
        name=name,
        schedule_mode=schedule_mode,
        learning_rate=learning_rate,
        weight_decay=weight_decay,
        weight_decay_final=weight_decay_final,
        module_lr_scales=module_lr_scales or None,
        continual_backprop_lr_coupling=continual_backprop_lr_coupling,
        continual_backprop_lr_coupling_power=continual_backprop_lr_coupling_power,
    )


def _or_disabled(value: int | None) -> int | str:
    return "disabled" if value is None else value


def _pairs(separator: str = " ", /, **pairs: object) -> str:
    return separator.join(f"{key}={_text(value)}" for key, value in pairs.items())


def _text(value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, dict)):
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return str(value)
