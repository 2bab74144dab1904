"""Configurations that break a rule, and what is said: at least one for every rule, by its name.

Keys are dotted; what a rule does not mention has its default.
"""

from __future__ import annotations

from typing import Any

PRETOKENIZED = {"dataset.type": "pretokenized", "dataset.path": "x"}
IDS = {"dataset.tokenizer.type": "pretokenized", "dataset.tokenizer.vocab_size": 10}
HUB = {"dataset.type": "hugging_face", "dataset.repo_id": "a/b"}
COSINE = {"optimizer.lr_schedule.type": "cosine"}
LATE = {"model.latent_fanout_schedule.type": "late_layer", "model.latent_fanout_schedule.last_layers": 1}
ALIBI = {"model.rotary_embedding": "alibi"}
START = "training.launch_mode"
MAMBA2 = {"model.sequence_kernel": "mamba2"}
MAMBA3 = {"model.sequence_kernel": "mamba3"}
CARRY = {"training.tbptt_persist_across_steps": True}
CONTINUAL = "training.continual_backprop"
SCALES = "training.module_lr_scales"
TRANSFER = "training.init_transfer"
AUTOTUNE = "runtime.startup_autotune"
BORROWED = {START: "init_from_checkpoint", "training.init_checkpoint_path": "a"}
INTERFACE = {**BORROWED, f"{TRANSFER}.interface_checkpoint_path": "b"}
LATE_LINE = {"final_scale": 1.0, "start_fraction": 0.5, "end_fraction": 0.25}

Example = tuple[dict[str, Any], str]

EXAMPLES: dict[str, list[Example]] = {
    "one-length": [
        ({"training.max_iters": None}, "training.max_iters is required when training.epochs is unset"),
        (
            {"training.max_iters": 2, "training.epochs": 2},
            "training.epochs cannot be combined with training.max_iters",
        ),
    ],
    "chunks-fit-a-row": [
        (
            {"training.tbptt_chunk_size": 257},
            "training.tbptt_chunk_size must be <= training.block_size (257 > 256)",
        ),
    ],
    "a-window-has-chunks": [
        ({"training.tbptt_window": 2}, "training.tbptt_window requires training.tbptt_chunk_size"),
    ],
    "carried-states-stream": [
        (
            {**CARRY, "training.order": "random"},
            'training.tbptt_persist_across_steps requires training.order = "streaming" (it is "random"); '
            "leave the order out",
        ),
    ],
    "documents-stream": [
        (
            {"training.min_logical_block_size": 99},
            'training.min_logical_block_size requires training.order = "streaming" (it is "random")',
        ),
    ],
    "memory-heads-fit": [
        (
            {**MAMBA2, "model.mamba.headdim": 48},
            "model.mamba.expand * model.n_embd must be divisible by model.mamba.headdim (512 and 48)",
        ),
        (
            {**MAMBA3, "model.mamba.ngroups": 3},
            "the memory heads (model.mamba.expand * model.n_embd / model.mamba.headdim) must be divisible by "
            "model.mamba.ngroups (8 and 3)",
        ),
    ],
    "first-time-steps-fit": [
        (
            {**MAMBA3, "model.mamba.dt_min": 0.2},
            "model.mamba.dt_min must be <= model.mamba.dt_max (0.2 > 0.1)",
        ),
        (
            {**MAMBA2, "model.mamba.a_init_min": 17.0},
            "model.mamba.a_init_min must be <= model.mamba.a_init_max (17 > 16)",
        ),
    ],
    "a-pair-to-rotate": [
        (
            {**MAMBA3, "model.mamba.d_state": 3},
            "model.mamba.d_state * model.mamba.rope_fraction must be at least 2, one pair to rotate (3 * 0.5)",
        ),
    ],
    "an-executor-fits-its-memory": [
        (
            {"model.sequence_kernel.memory_system": "rwkv8", "model.sequence_kernel.executor": "fused"},
            'model.sequence_kernel.executor = "fused" requires model.sequence_kernel.memory_system = '
            '"linear_attention" (it is "rwkv8"); leave the executor out',
        ),
        (
            {"training.sequence_kernel_override": {"memory_system": "mamba2", "executor": "dense"}},
            'training.sequence_kernel_override.executor = "dense" requires '
            'training.sequence_kernel_override.memory_system = "linear_attention" (it is "mamba2"); '
            "leave the executor out",
        ),
    ],
    "one-number-of-rows": [
        (
            {"training.target_effective_batch_size": 8, "training.gradient_accumulation_steps": 2},
            "training.target_effective_batch_size cannot be combined with training.gradient_accumulation_steps",
        ),
    ],
    "a-launch-has-its-place": [
        (
            {START: "resume_exact_run"},
            'training.launch_mode = "resume_exact_run" requires training.resume_run_dir',
        ),
        ({START: "fork"}, 'training.launch_mode = "fork" requires training.resume_run_dir'),
        (
            {START: "init_from_checkpoint"},
            'training.launch_mode = "init_from_checkpoint" requires training.init_checkpoint_path',
        ),
    ],
    "a-place-has-its-launch": [
        *[
            (
                {f"training.{key}": value},
                f'training.{key} requires training.launch_mode = "{wanted}" (it is "fresh")',
            )
            for key, value, wanted in [
                ("resume_run_dir", "runs/a", "resume_exact_run"),
                ("resume_checkpoint_step", 3, "resume_exact_run"),
                ("init_checkpoint_path", "runs/a", "init_from_checkpoint"),
            ]
        ],
        (
            {START: "resume_exact_run", "training.resume_run_dir": "a", "training.init_checkpoint_path": "b"},
            'training.init_checkpoint_path requires training.launch_mode = "init_from_checkpoint" '
            '(it is "resume_exact_run")',
        ),
        (
            {
                START: "init_from_checkpoint",
                "training.init_checkpoint_path": "b",
                "training.resume_checkpoint_step": 1,
            },
            'training.resume_checkpoint_step requires training.launch_mode = "resume_exact_run" '
            '(it is "init_from_checkpoint")',
        ),
        (
            {START: "resume_latest_checkpoint_if_present", "training.resume_run_dir": "a"},
            'training.resume_run_dir requires training.launch_mode = "resume_exact_run" '
            '(it is "resume_latest_checkpoint_if_present")',
        ),
    ],
    "a-step-has-its-checkpoint": [
        (
            {START: "resume_latest_checkpoint_if_present", "training.init_checkpoint_step": 3},
            "training.init_checkpoint_step requires training.init_checkpoint_path",
        ),
    ],
    "one-limit-of-gradients": [
        (
            {"optimizer.grad_clip_norm": 1, "optimizer.grad_clip_value": 1},
            'optimizer.grad_clip_value cannot be combined with optimizer.grad_clip_norm (set it to "off")',
        ),
    ],
    "a-warm-up-ends": [
        (
            COSINE | {"optimizer.lr_schedule.warmup_steps": 11, "optimizer.lr_schedule.num_iters": 10},
            "optimizer.lr_schedule.warmup_steps must be <= optimizer.lr_schedule.num_iters (11 > 10)",
        ),
        (
            COSINE | {"optimizer.lr_schedule.warmup_steps": 11, "training.max_iters": 10},
            "optimizer.lr_schedule.warmup_steps must be <= training.max_iters (11 > 10)",
        ),
    ],
    "a-cosine-goes-down": [
        (
            COSINE | {"optimizer.lr_schedule.min_lr": 0.5},
            "optimizer.lr_schedule.min_lr must be <= optimizer.learning_rate (0.5 > 0.001)",
        ),
        (
            COSINE | {"optimizer.lr_schedule.min_lr": 0.5, "optimizer.lr_schedule.initial_lr": 0.25},
            "optimizer.lr_schedule.min_lr must be <= optimizer.lr_schedule.initial_lr (0.5 > 0.25)",
        ),
    ],
    "numbers-are-not-text": [
        (PRETOKENIZED, 'dataset.type = "pretokenized" requires dataset.tokenizer.type = "pretokenized"'),
        (
            IDS,
            'dataset.tokenizer.type = "pretokenized" requires dataset.type = "pretokenized" or a sequence_field '
            '(it is "package_text")',
        ),
        (
            PRETOKENIZED | IDS | {"dataset.validation": {"type": "local_text", "path": "x"}},
            'dataset.tokenizer.type = "pretokenized" requires dataset.validation.type = "pretokenized" or a '
            'sequence_field (it is "local_text")',
        ),
        (
            {"dataset.validation": {"type": "pretokenized", "path": "x"}},
            'dataset.validation.type = "pretokenized" requires dataset.tokenizer.type = "pretokenized"',
        ),
        (
            HUB | {"dataset.sequence_field": "ids"},
            'dataset.sequence_field requires dataset.tokenizer.type = "pretokenized"',
        ),
    ],
    "numbers-come-from-numbers": [
        (
            HUB | IDS | {"dataset.sequence_field": "ids", "dataset.format": "csv"},
            'dataset.sequence_field requires dataset.format = "jsonl" or "parquet" (it is "csv")',
        ),
    ],
    "a-hub-source-has-files": [
        (HUB | {"dataset.train_files": []}, "dataset.train_files must not be empty"),
    ],
    "a-hub-source-has-its-text": [
        (HUB | {"dataset.text_fields": []}, "dataset.text_fields must not be empty"),
    ],
    "raw-bytes-are-bytes": [
        (
            {"dataset.type": "jsonl", "dataset.path": "x", "dataset.encoding": "raw"},
            'dataset.encoding = "raw" requires dataset.type = "local_text"',
        ),
        (
            {
                "dataset.type": "local_text",
                "dataset.path": "x",
                "dataset.encoding": "raw",
                "dataset.tokenizer.type": "char",
            },
            'dataset.encoding = "raw" requires dataset.tokenizer.type = "byte"',
        ),
    ],
    "a-template-has-fields": [
        (HUB | {"dataset.template": "no field"}, "dataset.template must hold at least one {field}"),
    ],
    "a-record-has-its-text": [
        (
            {"dataset.type": "csv", "dataset.path": "x", "dataset.field": "a", "dataset.template": "{a}"},
            "dataset.template cannot be combined with dataset.field",
        ),
        (
            {"dataset.type": "csv", "dataset.path": "x", "dataset.field": None},
            "dataset.field is required when dataset.template is unset",
        ),
        (
            HUB | IDS | {"dataset.sequence_field": "ids", "dataset.template": "{a}"},
            "dataset.sequence_field cannot be combined with dataset.template",
        ),
    ],
    "a-delimiter-is-no-quote": [
        (
            {"dataset.type": "csv", "dataset.path": "x", "dataset.delimiter": '"'},
            "dataset.delimiter and dataset.quote must differ",
        ),
        (
            {"dataset.type": "csv", "dataset.path": "x", "dataset.quote": "\n"},
            "dataset.quote must not be a line end",
        ),
    ],
    "a-trained-vocabulary-has-its-own-end": [
        (
            {"dataset.tokenizer.type": "bpe", "dataset.tokenizer.eos_id": 0},
            "dataset.tokenizer.eos_id needs dataset.tokenizer.vocab_path: a vocabulary that is trained has an end of "
            "text of its own (id 0), and neither begin nor padding",
        ),
    ],
    "ids-have-no-text-between": [
        (
            PRETOKENIZED | IDS | {"dataset.document_separator": "-"},
            'dataset.document_separator cannot be combined with dataset.tokenizer.type = "pretokenized"',
        ),
    ],
    "special-tokens-are-tokens": [
        (
            PRETOKENIZED | IDS | {"dataset.tokenizer.eos_id": 10},
            "dataset.tokenizer.eos_id must be < dataset.tokenizer.vocab_size (10 >= 10)",
        ),
    ],
    "neurons-fit-the-width": [
        (
            {"model.latent_total": 100, "model.n_embd": 64},
            "model.latent_total must be divisible by model.n_embd (100 and 64): the neurons are counted in widths, "
            "model.mlp_internal_dim_multiplier of them; 64 or 128 would do",
        ),
        (
            {"model.latent_total": 128, "model.n_embd": 64, "model.mlp_internal_dim_multiplier": 4},
            "model.mlp_internal_dim_multiplier cannot be combined with another model.latent_total (4 * 64 is not 128)",
        ),
    ],
    "neurons-fit-the-heads": [
        (
            {"model.latent_total": 128, "model.n_embd": 64, "model.n_head": 3},
            "model.latent_total must be divisible by model.n_head (128 and 3): every head has as many neurons; "
            "192 would do",
        ),
        (
            {"model.mlp_internal_dim_multiplier": 1, "model.n_embd": 64, "model.n_head": 3},
            "model.mlp_internal_dim_multiplier * model.n_embd must be divisible by model.n_head (64 and 3): every head "
            "has as many neurons; 192 would do",
        ),
    ],
    "rotation-takes-pairs": [
        (
            {"model.latent_total": 9, "model.n_embd": 9, "model.n_head": 3},
            'model.rotary_embedding = "rope" requires an even number of neurons per head (9 neurons / 3 heads = 3); '
            "18 would do",
        ),
        (
            LATE
            | {"model.latent_fanout_schedule.base_latent_total": 4, "model.latent_total": 8}
            | {"model.n_embd": 4, "model.n_head": 4},
            'model.rotary_embedding = "rope" requires an even number of neurons per head (4 neurons / 4 heads = 1); '
            "8 would do",
        ),
    ],
    "slopes-belong-to-heads": [
        (
            ALIBI | {"model.alibi_slopes": [1.0, 0.5]},
            "model.alibi_slopes must have model.n_head items (2 and 4)",
        ),
        (
            {"model.alibi_slopes": [1.0, 0.5, 0.1, 0.2]},
            'model.alibi_slopes requires model.rotary_embedding = "alibi" (it is "rope")',
        ),
    ],
    "narrow-layers-fit": [
        (
            LATE | {"model.latent_fanout_schedule.base_latent_total": 65536},
            "model.latent_fanout_schedule.base_latent_total must be <= the neurons of the model (65536 > 32768)",
        ),
        (
            LATE | {"model.latent_fanout_schedule.base_latent_total": 300},
            "model.latent_fanout_schedule.base_latent_total must be divisible by the least common multiple of "
            "model.n_embd and model.n_head (300 and 256); 256 or 512 would do",
        ),
        (
            {"model.latent_fanout_schedule": {"type": "geometric", "min_latent_total": 100}},
            "model.latent_fanout_schedule.min_latent_total must be divisible by the least common multiple of "
            "model.n_embd and model.n_head (100 and 256); 256 would do",
        ),
    ],
    "norm-keys-fit-the-norm": [
        (
            {"model.normalization.alpha_init": 0.5},
            'model.normalization.alpha_init requires model.normalization.kind = "dynamic_tanh" or "derf" '
            '(it is "layer_norm")',
        ),
        (
            {"model.normalization": {"kind": "dynamic_tanh", "shift_init": 0.5}},
            'model.normalization.shift_init requires model.normalization.kind = "derf" (it is "dynamic_tanh")',
        ),
    ],
    "the-vocabulary-holds-the-tokens": [
        (
            {"model.vocab_size": 255},
            "model.vocab_size must be >= the tokenizer's number of tokens (255 < 256)",
        ),
        (
            {"model.vocab_size": 258, "dataset.tokenizer.add_special_tokens": True},
            "model.vocab_size must be >= the tokenizer's number of tokens (258 < 259)",
        ),
        (
            PRETOKENIZED | IDS | {"model.vocab_size": 9},
            "model.vocab_size must be >= the tokenizer's number of tokens (9 < 10)",
        ),
    ],
    "one-process": [
        ({"parallel.world_size": 2}, 'parallel.world_size must be 1 when parallel.mode is "single", got 2'),
    ],
    "a-run-has-its-own-name": [
        ({"run_layout.name": "latest"}, 'run_layout.name must not be "latest", which means the newest run'),
    ],
    "muon-keys-need-muon": [
        (
            {"optimizer.muon.momentum": 0.9},
            'optimizer.muon.momentum requires optimizer.name = "muon" (it is "adamw")',
        ),
    ],
    "a-final-decay-has-two-stages": [
        (
            {"optimizer.weight_decay_final": 0.05},
            'optimizer.weight_decay_final requires optimizer.schedule_mode = "bitnet_b158_reference" or '
            'optimizer.name = "bitnet_published" (they are "bdh_reference" and "adamw")',
        ),
    ],
    "not-more-than-all-neurons": [
        (
            {f"{CONTINUAL}.enabled": True, f"{CONTINUAL}.replacement_rate": 0.05},
            f"{CONTINUAL}.replacement_rate * {CONTINUAL}.replace_interval_steps must be <= 1, all mature neurons at "
            "once (0.05 * 64 = 3.2)",
        ),
    ],
    "a-power-has-its-coupling": [
        (
            {f"{CONTINUAL}.enabled": True, f"{CONTINUAL}.lr_coupling_power": 2.0},
            f'{CONTINUAL}.lr_coupling_power requires {CONTINUAL}.lr_coupling = "global_ratio" or '
            '"target_group_ratio" (it is "none")',
        ),
    ],
    "one-factor-per-part": [
        (
            {SCALES: [{"target": "embedding", "scale": 0.5}, {"target": "embedding", "scale": 2.0}]},
            f'{SCALES}.1.target = "embedding" is given before, in {SCALES}.0; write one table per target',
        ),
    ],
    "factors-end-after-they-start": [
        (
            {SCALES: [{"target": "embedding", "scale": 0.5, "schedule": LATE_LINE}]},
            f"{SCALES}.0.schedule.end_fraction must be >= {SCALES}.0.schedule.start_fraction (0.25 < 0.5)",
        ),
    ],
    "what-is-replaced-learns": [
        (
            {f"{CONTINUAL}.enabled": True, SCALES: [{"target": "shared_lowrank_decoder", "scale": 0.0}]},
            f"{SCALES}.0.scale = 0 cannot be combined with {CONTINUAL}.enabled = true: the neurons that it replaces "
            "would be frozen",
        ),
    ],
    "a-group-is-compared": [
        (
            {"training.gdpo.enabled": True, "training.gdpo.group_size": 1},
            "training.gdpo.group_size must be >= 2 when training.gdpo.enabled is true, got 1: a continuation that is "
            "compared with itself teaches nothing",
        ),
    ],
    "a-reward-counts": [
        (
            {"training.gdpo": {"enabled": True, "group_size": 2, "hard_weight": 0.0, "easy_weight": 0.0}},
            "training.gdpo.hard_weight and training.gdpo.easy_weight must not both be 0",
        ),
    ],
    "an-interface-has-its-checkpoint": [
        (
            {**BORROWED, f"{TRANSFER}.interface_checkpoint_step": 3},
            f"{TRANSFER}.interface_checkpoint_step requires {TRANSFER}.interface_checkpoint_path",
        ),
    ],
    "a-transfer-has-its-checkpoint": [
        (
            {f"{TRANSFER}.fresh_top_heads": 1},
            f"{TRANSFER}.fresh_top_heads requires training.init_checkpoint_path",
        ),
    ],
    "a-borrowed-head-is-a-head": [
        (
            {**INTERFACE, "model.tie_embeddings": True, f"{TRANSFER}.preserve_interface_output_head": True},
            f"{TRANSFER}.preserve_interface_output_head cannot be combined with model.tie_embeddings",
        ),
    ],
    "a-head-is-kept-or-blended": [
        (
            {
                **INTERFACE,
                f"{TRANSFER}.preserve_interface_output_head": True,
                f"{TRANSFER}.interface_output_head_blend_alpha": 0.5,
            },
            f"{TRANSFER}.preserve_interface_output_head cannot be combined with "
            f"{TRANSFER}.interface_output_head_blend_alpha",
        ),
    ],
    "a-held-backbone-has-its-steps": [
        (
            {**BORROWED, f"{TRANSFER}.backbone_grad_scale": 0.5},
            f"{TRANSFER}.backbone_grad_scale requires {TRANSFER}.backbone_grad_scale_steps",
        ),
        (
            {**BORROWED, f"{TRANSFER}.backbone_grad_scale_steps": 5},
            f"{TRANSFER}.backbone_grad_scale_steps requires {TRANSFER}.backbone_grad_scale",
        ),
    ],
    "heads-to-renew": [
        (
            {**BORROWED, f"{TRANSFER}.fresh_top_heads": 5},
            f"{TRANSFER}.fresh_top_heads must be <= model.n_head (5 > 4)",
        ),
    ],
    "one-memory-target": [
        (
            {AUTOTUNE: {"target_device_memory_mb": 100, "target_memory_fraction": 0.5}},
            f"{AUTOTUNE}.target_device_memory_mb cannot be combined with {AUTOTUNE}.target_memory_fraction",
        ),
        (
            {AUTOTUNE: {"target_device_memory_mb": None, "target_memory_fraction": None}},
            f"{AUTOTUNE}.target_memory_fraction is required when {AUTOTUNE}.target_device_memory_mb is unset",
        ),
    ],
    "batches-to-try": [
        (
            {AUTOTUNE: {"min_batch_size": 9, "max_batch_size": 8}},
            f"{AUTOTUNE}.min_batch_size must be <= {AUTOTUNE}.max_batch_size (9 > 8)",
        ),
    ],
    "batches-fit-the-step": [
        (
            {
                "training.target_effective_batch_size": 8,
                AUTOTUNE: {"enabled": True, "min_batch_size": 9, "max_batch_size": 10},
            },
            f"{AUTOTUNE}.min_batch_size must be <= training.target_effective_batch_size (9 > 8)",
        ),
    ],
    "folders-lie-below-the-runs": [
        (
            {"run_layout.category": "../x"},
            "run_layout.category must name folders below the folder of the runs: at most 4 names of letters, "
            "digits, '.', '_' and '-' with / between them, got '../x'",
        ),
    ],
}
