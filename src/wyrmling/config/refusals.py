"""Names that are recognised and refused: renamed keys, and things that this version does not have.

A key that is left at a value which changes nothing (`model.mhc.enabled = false`) is dropped in
silence. Three older names are simply understood.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .locations import KeyPath
from .messages import shown
from .schema.base import UNSET
from .tree import Node, dotted

PRESENT_NAMES: dict[KeyPath, str] = {
    ("model", "neuron_space_dim"): "latent_total",
    ("model", "init"): "initialization",
}

RENAMED_KEYS = {
    "wgpu": "runtime",
    "training.resume_checkpoint_epoch": "training.resume_checkpoint_step",
    "training.init_checkpoint_epoch": "training.init_checkpoint_step",
    "training.fresh_top_layers": "training.init_transfer.fresh_top_heads",
    "training.fresh_top_heads": "training.init_transfer.fresh_top_heads",
    "training.init_transfer.interface_checkpoint_epoch": "training.init_transfer.interface_checkpoint_step",
    "training.init_transfer.fresh_top_layers": "training.init_transfer.fresh_top_heads",
    "training.fast_train": "training.launch_mode",
    "training.context_strategy": "generation.context_strategy",
    "optimizer.muon.enabled": "optimizer.name",
    "optimizer.muon.split_decoder_heads": "optimizer.muon.split_heads",
}

NOT_YET = "is not in this version yet"
NOT_BUILT = "is not built"
OWN_TOKENIZER = (
    f"{NOT_BUILT}: prompts and text are read and written with the tokenizer that the run was trained with; a run of "
    "ready-made ids takes and gives ids"
)

REFUSED_KEYS = {
    "optimizer.muon.target_modules": f"{NOT_BUILT}: matrices are found by their role",
    "parallel.data": NOT_YET,
    "parallel.fsdp": NOT_YET,
    "parallel.pipeline": NOT_YET,
    "parallel.checkpoint": NOT_YET,
    "parallel.tensor": NOT_BUILT,
    "generation.prompt_tokenizer": OWN_TOKENIZER,
    "generation.decode_tokenizer": OWN_TOKENIZER,
    "run_layout.mirror_config_path": f"{NOT_BUILT}: where a run lies does not follow from where its file lies; use "
    "run_layout.category",
    "stages": "belong to a bundle, not to a configuration: run the file with `wyrmling bundle`",
    "dataset.auto_discover_train_files": f"{NOT_BUILT}: list dataset.train_files",
    "model.mamba.is_mimo": f"{NOT_BUILT}: mamba3 has one input and one output per head (SISO)",
    "model.mamba.mimo_rank": f"{NOT_BUILT}: mamba3 has one input and one output per head (SISO)",
    "model.mamba.dt_rank": f"{NOT_BUILT}: it belongs to Mamba-1",
    "model.mamba.dt_scale": f"{NOT_BUILT}: it belongs to Mamba-1",
    "model.mamba.use_fast_path": f"{NOT_BUILT}: use model.sequence_kernel.executor",
    "model.quant": NOT_YET,
    "model.rho": NOT_YET,
    "model.mhc": NOT_YET,
    "model.attention_residual": NOT_YET,
    "model.block_attention_residual": NOT_YET,
    "model.y_neuron_recurrence": NOT_YET,
    "model.y_sparse_recurrence": NOT_YET,
    "model.clocked_slow_memory": NOT_YET,
    "model.summary_memory": NOT_YET,
    "model.rollout_fast_steps_per_slow_step": NOT_YET,
    "model.rollout_fast_steps": NOT_YET,
    "model.n_expert": NOT_BUILT,
    "model.block_sparse": f"{NOT_BUILT}: latents are never block-sparse",
    "model.block_size": f"{NOT_BUILT}: use training.block_size",
    "model.fused_kernels": f"{NOT_BUILT}: use model.sequence_kernel.executor",
}

NEUTRAL_VALUES: dict[str, Any] = {
    "model.mamba.mimo_rank": 1,
    "model.mamba.use_fast_path": True,
    "generation.prompt_tokenizer": {"source": "dataset"},
    "generation.decode_tokenizer": {"source": "dataset"},
}
"""Values of refused keys that change nothing, where it is not off."""

Answers = dict[Any, str]
"""What is said about values (texts, or true) of a key."""

_PRESETS = {
    "deep_math": "zwhe99/DeepMath-103K",
    "tiny_chat": "starhopp3r/TinyChat",
    "webscale_rl": "Salesforce/Webscale-RL",
    "poetry_foundation": "suayptalha/Poetry-Foundation-Poems",
    "open_web_text_gpt2": "chanind/openwebtext-gpt2",
    "openwebtext_gpt2": "chanind/openwebtext-gpt2",
    "nemotron_climb_mix": "nvidia/Nemotron-ClimbMix",
}
_PRESET_REFUSALS: Answers = {
    name: f'{NOT_BUILT} as a preset: use type = "hugging_face" with repo_id = "{repository}"'
    for name, repository in _PRESETS.items()
} | dict.fromkeys(("universality_manifest", "universality_nca"), f'{NOT_BUILT}: use type = "pretokenized"')
_MEMORY_REFUSALS: Answers = dict.fromkeys(("mamba1", "mamba1_selective_scan"), NOT_BUILT)
_EXECUTOR_REFUSALS: Answers = {"dense_score_short_context": 'has a new name: use "dense"'}

REFUSED_VALUES: dict[str, Answers] = {
    "dataset.type": _PRESET_REFUSALS,
    "dataset.validation.type": _PRESET_REFUSALS,
    "dataset.tokenizer.type": {"rust_bpe": 'has a new name: use "bpe"'},
    "optimizer.name": {"muon_hybrid_exp": 'has a new name: use "muon"'},
    "optimizer.schedule_mode": {"hybrid": 'has a new name: use "bitnet_b158_reference"'},
    "parallel.mode": dict.fromkeys(("ddp", "fsdp", "pipeline"), NOT_YET)
    | dict.fromkeys(
        ("tensor", "tensor_parallel", "tensor_parallel_neuron", "hybrid_2d", "hybrid2_d"), NOT_BUILT
    ),
    "model.sequence_kernel": _MEMORY_REFUSALS,
    "model.sequence_kernel.memory_system": _MEMORY_REFUSALS,
    "training.sequence_kernel_override": _MEMORY_REFUSALS,
    "training.sequence_kernel_override.memory_system": _MEMORY_REFUSALS,
    "model.sequence_kernel.executor": _EXECUTOR_REFUSALS,
    "training.sequence_kernel_override.executor": _EXECUTOR_REFUSALS,
    "model.residual_connector": dict.fromkeys(
        ("mhc", "attention_residual", "block_attention_residual"), NOT_YET
    ),
    "model.language_head.type": dict.fromkeys(("nca_factorized_patch", "nca_factorized"), NOT_YET),
}


def present_name(table: KeyPath, key: str) -> str:
    """The name by which a key goes today."""
    return PRESENT_NAMES.get((*table, key), key)


def use_present_names(layer: Node) -> Node:
    """Replace the older names of a layer that are simply understood."""
    for (*table, old), new in PRESENT_NAMES.items():
        around = layer.find(tuple(table))
        if around is None or not around.is_table or old not in around.value or new in around.value:
            continue
        renamed = {new if key == old else key: child for key, child in around.value.items()}
        layer = _put(layer, tuple(table), Node(renamed, around.origin))
    return layer


def _put(tree: Node, path: KeyPath, value: Node) -> Node:
    if not path:
        return value
    return Node({**tree.value, path[0]: _put(tree.value[path[0]], path[1:], value)}, tree.origin)


def drop_neutral(tree: Node) -> Node:
    """Leave out refused keys whose value changes nothing."""
    for key in REFUSED_KEYS:
        path = tuple(key.split("."))
        node = tree.find(path)
        if node is None:
            continue
        value = node.plain()
        if changes_nothing(value) or value == NEUTRAL_VALUES.get(key):
            tree = tree.without(path)
    return tree


def changes_nothing(value: Any) -> bool:
    """Whether a value of a refused key is the one that leaves the thing off."""
    if isinstance(value, dict):
        return value.get("enabled") is False or all(
            changes_nothing(item) or (key in ("size", "stage_count") and item == 1)
            for key, item in value.items()
        )
    return value is None or value is False or value in (UNSET, "disabled") or value == []


def refusals(tree: Node) -> Iterator[tuple[KeyPath, str]]:
    """Every refused key and value of a tree, with what to say about it."""
    renamed = [path for path, _ in tree.walk() if dotted(path) in RENAMED_KEYS]
    for path in renamed:
        yield path, f"{dotted(path)} has a new name: use {RENAMED_KEYS[dotted(path)]}"
    for path, node in tree.walk():
        key = dotted(path)
        if any(path == new[: len(path)] for new in renamed):
            continue
        if key in REFUSED_KEYS:
            yield path, f"{key} {REFUSED_KEYS[key]}"
        elif isinstance(node.value, str | bool) and node.value in REFUSED_VALUES.get(key, {}):
            yield path, f"{key} = {shown(node.value)} {REFUSED_VALUES[key][node.value]}"
