"""The lines of the log that say what a run does, for people and for scripts that compare runs."""

from __future__ import annotations

from ..watch import fingerprint
from .geometry import geometry_line
from .session import Session


def fingerprint_lines(session: Session) -> tuple[tuple[str, str], ...]:
    """The lines that say what the run does: five, and one for the geometry of a memory other than linear."""
    training, optimizer = session.config.training, session.config.optimizer
    continual, executor = training.continual_backprop, session.machine.chosen_executor
    geometry = geometry_line(session.config, session.machine.device.type, session.model.memory, executor.tile)
    return (
        fingerprint.parallel_runtime(),
        fingerprint.training_path(
            backend=session.machine.device.type,
            launch_mode=training.launch_mode,
            sequence_kernel=session.config.effective_model.sequence_kernel.memory_system,
            sequence_kernel_override=session.kernel_override,
            block_size=training.block_size,
            dtype=str(session.machine.dtype).removeprefix("torch."),
            executor=f"{executor.name}/{executor.form}",
            tbptt_chunk_size=training.tbptt_chunk_size,
        ),
        fingerprint.train_schedule(
            dataset_steps_per_epoch=session.plan.steps_per_epoch,
            checkpoint_interval_iters=training.checkpoint_interval_iters,
            total_steps=session.total_steps,
            epochs=training.epochs,
        ),
        fingerprint.training_batching(
            micro_batch_size=training.batch_size,
            gradient_accumulation_steps=session.plan.accumulation,
            tbptt_chunk_size=training.tbptt_chunk_size,
            tbptt_persist_across_steps=training.tbptt_persist_across_steps,
            min_logical_block_size=training.min_logical_block_size,
        ),
        fingerprint.optimizer(
            name=optimizer.name,
            schedule_mode=optimizer.schedule_mode,
            learning_rate=optimizer.learning_rate,
            weight_decay=optimizer.weight_decay,
            weight_decay_final=optimizer.weight_decay_final,
            module_lr_scales=[
                table.model_dump(mode="json", exclude_none=True) for table in training.module_lr_scales
            ],
            continual_backprop_lr_coupling=continual.lr_coupling,
            continual_backprop_lr_coupling_power=continual.lr_coupling_power,
        ),
        *(() if geometry is None else (geometry,)),
    )
