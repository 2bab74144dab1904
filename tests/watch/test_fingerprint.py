"""The five lines, character for character: people search logs for them."""

from __future__ import annotations

from wyrmling.watch import fingerprint


def test_parallel_runtime_line() -> None:
    assert fingerprint.parallel_runtime() == (
        "parallel runtime",
        "mode=single world_size=1 global_rank=0 local_rank=0 dp_size=1 local_dp_size=1 tp_size=1 "
        "process_group=false",
    )
    _, text = fingerprint.parallel_runtime(
        mode="ddp", world_size=4, global_rank=3, local_rank=1, dp_size=4, process_group=True
    )
    assert text == (
        "mode=ddp world_size=4 global_rank=3 local_rank=1 dp_size=4 local_dp_size=1 tp_size=1 "
        "process_group=true"
    )


def test_training_path_line() -> None:
    line = fingerprint.training_path(
        backend="cpu",
        launch_mode="fresh",
        sequence_kernel="linear_attention",
        block_size=256,
        dtype="float32",
        executor="dense",
    )
    assert line == (
        "training path fingerprint",
        "backend=cpu execution_form=default_stateful launch_mode=fresh "
        "effective_sequence_kernel=linear_attention sequence_kernel_override=none "
        "tbptt_chunk_size=disabled kernel_block_size=256 pipeline_enabled=false "
        "dtype=float32 executor=dense",
    )


def test_training_path_of_a_chunked_run_names_the_chunk_as_the_kernels_block() -> None:
    common = {
        "backend": "cuda",
        "launch_mode": "resume_exact_run",
        "sequence_kernel": "mamba2",
        "block_size": 64,
        "dtype": "bfloat16",
        "executor": "chunked",
    }
    _, text = fingerprint.training_path(**common, tbptt_chunk_size=16, sequence_kernel_override="mamba2")
    assert "execution_form=tbptt " in text
    assert "sequence_kernel_override=mamba2 tbptt_chunk_size=16 kernel_block_size=16 " in text
    _, text = fingerprint.training_path(**common, tbptt_chunk_size=64)
    assert "tbptt_chunk_size=64 kernel_block_size=64 " in text
    _, text = fingerprint.training_path(**common, pipeline_enabled=True, tbptt_chunk_size=16)
    assert "execution_form=pipeline " in text
    assert "pipeline_enabled=true" in text


def test_train_schedule_line_of_a_run_measured_in_steps() -> None:
    line = fingerprint.train_schedule(dataset_steps_per_epoch=40, checkpoint_interval_iters=8, total_steps=25)
    assert line == (
        "train schedule",
        "dataset_steps_per_epoch=40, logical_steps_per_epoch=8, checkpoint_interval_iters=8, total_steps=25, "
        "epochs=4, source=max_iters",
    )


def test_train_schedule_line_of_a_run_measured_in_epochs() -> None:
    line = fingerprint.train_schedule(
        dataset_steps_per_epoch=10, checkpoint_interval_iters=500, total_steps=30, epochs=3
    )
    assert line == (
        "train schedule",
        "dataset_steps_per_epoch=10, logical_steps_per_epoch=10, checkpoint_interval_iters=500, "
        "total_steps=30, epochs=3, source=epochs",
    )


def test_an_interval_longer_than_the_run_gives_one_logical_epoch() -> None:
    _, text = fingerprint.train_schedule(
        dataset_steps_per_epoch=10, checkpoint_interval_iters=500, total_steps=25
    )
    assert "logical_steps_per_epoch=25, " in text
    assert text.endswith("epochs=1, source=max_iters")


def test_training_batching_line() -> None:
    line = fingerprint.training_batching(micro_batch_size=8, gradient_accumulation_steps=4)
    assert line == (
        "training batching",
        "micro_batch_size=8 gradient_accumulation_steps=4 effective_batch_size=32 tbptt_chunk_size=disabled "
        "tbptt_persist_across_steps=false min_logical_block_size=disabled",
    )
    _, text = fingerprint.training_batching(micro_batch_size=3, gradient_accumulation_steps=5, replicas=7)
    assert "effective_batch_size=105 " in text


def test_optimizer_line() -> None:
    line = fingerprint.optimizer(
        name="adamw", schedule_mode="bdh_reference", learning_rate=1e-3, weight_decay=0.1
    )
    assert line == (
        "optimizer fingerprint",
        "name=adamw schedule_mode=bdh_reference learning_rate=0.001 weight_decay=0.1 weight_decay_final=none "
        "module_lr_scales=none continual_backprop_lr_coupling=none continual_backprop_lr_coupling_power=1.0",
    )


def test_a_value_never_holds_a_space() -> None:
    _, text = fingerprint.optimizer(
        name="muon",
        schedule_mode="bdh_reference",
        learning_rate=3e-4,
        weight_decay=0.1,
        module_lr_scales=[{"target": "shared_lowrank_decoder", "scale": 0.5}],
    )
    assert 'module_lr_scales=[{"target":"shared_lowrank_decoder","scale":0.5}] ' in text
    assert all(pair.count("=") == 1 for pair in text.split(" "))
