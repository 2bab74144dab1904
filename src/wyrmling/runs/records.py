"""What a run writes about itself, once, when it begins: what it is, from what, and every choice made for it."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from pydantic import BaseModel

from ..config import Config, layer_totals, resolve_gradient_accumulation
from ..config.state_layout import state_axes
from ..errors import CheckpointError
from ..files import read_record, sealed, write_json_atomically

if TYPE_CHECKING:
    from ..text.tokenizers import Tokenizer

RECORD = "config.json"
TRAINING_CONFIG = "training_config.json"
TOKENIZER = "tokenizer.json"

ARCHITECTURE = "dragon_bdh_v1"


class _Choice(BaseModel):
    name: str
    value: str


class _Data(BaseModel):
    fingerprint: str
    tokenizer_fingerprint: str


class _Versions(BaseModel):
    torch: str


class ConfigRecord(BaseModel):
    """`training_config.json` holds all tables: without one of them it would be read as the defaults."""

    model: dict[str, Any]
    dataset: dict[str, Any]
    training: dict[str, Any]
    optimizer: dict[str, Any]
    runtime: dict[str, Any]
    generation: dict[str, Any]


class RunRecord(BaseModel):
    """What others rely on of `config.json`."""

    run_name: str | None = None
    created: str = ""
    data: _Data
    choices: list[_Choice] = []
    versions: _Versions


class ChoiceLike(Protocol):
    """A choice made for the user: `Choice`, or a named tuple of the same three texts."""

    @property
    def name(self) -> str: ...
    @property
    def value(self) -> str: ...
    @property
    def reason(self) -> str: ...


def build_run_record(
    *,
    config: Config,
    name: str,
    model_facts: Mapping[str, Any],
    data_facts: Mapping[str, Any],
    choices: Iterable[ChoiceLike],
    versions: Mapping[str, str],
    kernel_override: str | None = None,
) -> dict[str, Any]:
    """The content of `config.json`, a function of its arguments alone.

    Args:
        model_facts: JSON-able; `parameters` (a count of numbers) and `vocab_size` at least.
        data_facts: JSON-able; `fingerprint` and `tokenizer_fingerprint` at least.
        choices: every automatic choice; those called `device`, `dtype` and `threads` are repeated at the top.
        versions: of this package, torch, numpy and Python.
    """
    made = list(choices)
    value_of = {choice.name: choice.value for choice in made}
    training, optimizer = config.training, config.optimizer
    accumulation = resolve_gradient_accumulation(
        training.batch_size, training.gradient_accumulation_steps, training.target_effective_batch_size
    )
    return {
        "run_name": name,
        "arch_version": ARCHITECTURE,
        "backend_name": value_of.get("device", config.runtime.device),
        "dtype": value_of.get("dtype", config.runtime.dtype),
        "threads": value_of.get("threads", config.runtime.threads),
        "seed": training.seed,
        "block_size": training.block_size,
        "training_batch_size": training.batch_size,
        "training_gradient_accumulation_steps": accumulation,
        "training_effective_batch_size": training.batch_size * accumulation,
        "training_checkpoint_interval_iters": training.checkpoint_interval_iters,
        "training_execution_form": execution_form(tbptt_chunk_size=training.tbptt_chunk_size),
        "training_launch_mode_requested": training.launch_mode,
        "optimizer_spec": optimizer.model_dump(mode="json"),
        "overrides": config.model.model_dump(mode="json", exclude_defaults=True),
        "model_spec": _model_spec(config, model_facts),
        "parallel_spec": config.parallel.model_dump(mode="json"),
        "kernel_spec": _kernel_spec(config, value_of.get("executor"), kernel_override),
        "state_layout": state_layout(config),
        "metrics_sink": _metrics_sink(config),
        "data": dict(data_facts),
        "origins": config.origins(),
        "choices": [{"name": choice.name, "value": choice.value, "reason": choice.reason} for choice in made],
        "versions": dict(versions),
    }


def execution_form(*, pipeline_enabled: bool = False, tbptt_chunk_size: int | None = None) -> str:
    """`pipeline`, `tbptt` (a step's block is cut into chunks with carried state), or `default_stateful`."""
    if pipeline_enabled:
        return "pipeline"
    return "tbptt" if tbptt_chunk_size is not None else "default_stateful"


def state_layout(config: Config) -> dict[str, Any]:
    """Names and axes of the recurrent state, layer by layer; a size of null is the caller's (rows of a batch)."""
    model = config.effective_model
    layers = []
    for index, total in enumerate(layer_totals(model)):
        per_head = total // model.n_head
        tensors = [
            {
                "name": name,
                "axes": [{"name": axis, "size": size} for axis, size in {"batch": None, **axes}.items()],
            }
            for name, axes in state_axes(model, per_head).items()
        ]
        layers.append(
            {"layer_index": index, "latent_total": total, "latent_per_head": per_head, "tensors": tensors}
        )
    return {"state_family": "bdh_model_state", "position_tracked": True, "layers": layers}


def write_records(path: Path, config: Config, tokenizer: Tokenizer, record: Mapping[str, Any]) -> None:
    """Write the three documents of a new run; `config.json` last, with the time of creation.

    Raises:
        StorageError: the file system refused.
    """
    from ..text.tokenizers import save_tokenizer

    write_training_config(path, config)
    save_tokenizer(path / TOKENIZER, tokenizer)
    created = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    write_json_atomically(path / RECORD, sealed({**record, "created": created}))


def write_training_config(path: Path, config: Config) -> None:
    """Write every value of the configuration, defaults included, secrets left out; sealed, so that edits show."""
    write_json_atomically(path / TRAINING_CONFIG, sealed(config.to_dict()))


def read_json(path: Path, shape: type[BaseModel] | None = None) -> dict[str, Any]:
    """A JSON object of a run.

    Raises:
        CheckpointError: missing, unreadable, changed since it was written, not of this shape: one line.
    """
    try:
        return read_record(path, shape)
    except FileNotFoundError:
        raise CheckpointError(
            f"{path.parent} has no {path.name}: it is not a run, or was stopped before it began; start a new run"
        ) from None
    except ValueError as error:
        raise CheckpointError(f"{path} is damaged: {error}; put back a copy of it") from error


def changes(before: Mapping[str, Any], after: Mapping[str, Any], allowed: Iterable[str] = ()) -> list[str]:
    """`key: old -> new` for every key in which two configurations differ, but for those (and those below) allowed."""
    old, new = _flat(before), _flat(after)
    free = tuple(allowed)
    return [
        f"{key}: {old.get(key, 'unset')} -> {new.get(key, 'unset')}"
        for key in sorted({*old, *new})
        if old.get(key) != new.get(key)
        and not any(key == name or key.startswith(name + ".") for name in free)
    ]


def listed(found: list[str]) -> str:
    """The first four of several changes, and how many more there are."""
    more = f" (and {len(found) - 4} more)" if len(found) > 4 else ""
    return f"{'; '.join(found[:4])}{more}"


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(value, Mapping):
        return {prefix: value}
    flat: dict[str, Any] = {}
    for key, item in value.items():
        flat.update(_flat(item, f"{prefix}.{key}" if prefix else key))
    return flat


def _model_spec(config: Config, facts: Mapping[str, Any]) -> dict[str, Any]:
    model, initialization = config.effective_model, config.model.initialization
    others = {key: value for key, value in facts.items() if key != "parameters"}
    return {
        "arch": "dragon_bdh",
        "n_embd": model.n_embd,
        "n_head": model.n_head,
        "n_layer": model.n_layer,
        "latent_total": model.total_neurons,
        "latent_per_head": model.neurons_per_head,
        "shared_layer_weights": True,
        "sequence_kernel": model.sequence_kernel.memory_system,
        "bdh_initialization_kind": initialization.kind,
        "bdh_residual_scaling_kind": initialization.residual_scaling.kind,
        "bdh_neuron_gain_kind": initialization.neuron_gains.kind,
        "bdh_topology_prior_kind": initialization.topology_prior.kind,
        "bdh_firing_target_kind": initialization.firing_targets.kind,
        "parameter_count": facts["parameters"],
        **others,
    }


def _kernel_spec(config: Config, executor: str | None, override: str | None) -> dict[str, Any]:
    kernel = config.effective_model.sequence_kernel
    return {
        "sequence_kernel": kernel.memory_system,
        "executor": executor or kernel.executor,
        "sequence_kernel_override": override,
    }


def _metrics_sink(config: Config) -> dict[str, Any]:
    training = config.training
    validation = training.validation_interval_iters or training.checkpoint_interval_iters
    often = {"loss": ("train", training.log_frequency), "learning_rate": ("train", training.log_frequency)}
    entries = {**often, "validation_loss": ("valid", validation)}
    return {
        "family": "language_wyrmling_train_v1",
        "file": "events.jsonl",
        "entries": [
            {"name": name, "split": split, "interval_iters": interval}
            for name, (split, interval) in entries.items()
        ],
    }
