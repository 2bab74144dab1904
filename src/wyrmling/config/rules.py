"""Rules that tie several keys together; all of them are checked whenever a configuration is made.

The ranges of single keys stand in the schema. Messages name the exact dotted keys, with the numbers in
parentheses.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from .autotune_rules import autotune_rules
from .fanout import layer_totals, schedule_totals
from .gdpo_rules import gdpo_rules
from .layout_rules import layout_rules
from .memory_rules import chunk_rules, memory_rules
from .optimizer_rules import broken_optimizer_rules
from .problems import Problem, RuleError
from .scale_rules import scale_rules
from .schema.sources import HuggingFaceSource, PretokenizedSource, RecordSource, SourceConfig
from .schema.tokenizer import ByteTokenizer, PretokenizedTokenizer
from .transfer_rules import transfer_rules

if TYPE_CHECKING:
    from .schema import Config, Model, Training

_PLACEHOLDER = re.compile(r"\{[^{}]+\}")


def check(config: Config) -> None:
    """Check every rule.

    Raises:
        RuleError: at least one is broken.
    """
    sizes = list(_model(config.model))
    problems = [
        *_training(config.training),
        *chunk_rules(config.training),
        *scale_rules(config.training),
        *gdpo_rules(config.training),
        *_launch(config.training),
        *transfer_rules(config),
        *_optimizer(config),
        *_dataset(config),
        *sizes,
        *_positions(config.model),
        *(() if sizes else _pairs(config.effective_model)),
        *memory_rules(config),
        *autotune_rules(config),
        *_vocabulary(config),
        *_rest(config),
        *layout_rules(config.run_layout),
    ]
    if problems:
        raise RuleError(problems)


def resolve_gradient_accumulation(batch_size: int, accumulation: int, target: int | None) -> int:
    """Micro-batches in an optimizer step.

    Args:
        batch_size: rows in a micro-batch.
        accumulation: `training.gradient_accumulation_steps`, used when there is no target.
        target: `training.target_effective_batch_size`: at least so many rows in a step, in whole
            micro-batches.
    """
    if target is None:
        return max(accumulation, 1)
    return -(-max(target, batch_size) // batch_size)


def _exclusive(first: str, second: str) -> Problem:
    return Problem(f"{first} cannot be combined with {second}", (first, second))


def _training(training: Training) -> Iterator[Problem]:
    if training.epochs is None and training.max_iters is None:
        keys = ("training.max_iters", "training.epochs")
        yield Problem("training.max_iters is required when training.epochs is unset", keys)
    if training.epochs is not None and training.max_iters is not None:
        yield _exclusive("training.epochs", "training.max_iters")
    if training.target_effective_batch_size is not None and training.gradient_accumulation_steps != 1:
        yield _exclusive("training.target_effective_batch_size", "training.gradient_accumulation_steps")


def _launch(training: Training) -> Iterator[Problem]:
    """Which keys go with which launch mode."""
    mode = training.launch_mode
    needed = {"resume_exact_run": "resume_run_dir", "init_from_checkpoint": "init_checkpoint_path"}
    allowed = {
        "fresh": (),
        "resume_exact_run": ("resume_run_dir", "resume_checkpoint_step"),
        "resume_latest_checkpoint_if_present": ("init_checkpoint_path", "init_checkpoint_step"),
        "init_from_checkpoint": ("init_checkpoint_path", "init_checkpoint_step"),
    }[mode]
    required = needed.get(mode)
    if required is not None and getattr(training, required) is None:
        yield Problem(
            f'training.launch_mode = "{mode}" requires training.{required}',
            ("training.launch_mode", f"training.{required}"),
        )
    for key, wanted in (
        ("resume_run_dir", "resume_exact_run"),
        ("resume_checkpoint_step", "resume_exact_run"),
        ("init_checkpoint_path", "init_from_checkpoint"),
        ("init_checkpoint_step", "init_from_checkpoint"),
    ):
        if getattr(training, key) is not None and key not in allowed:
            yield Problem(
                f'training.{key} requires training.launch_mode = "{wanted}" (it is "{mode}")',
                (f"training.{key}", "training.launch_mode"),
            )
    if training.init_checkpoint_step is not None and training.init_checkpoint_path is None:
        yield Problem(
            "training.init_checkpoint_step requires training.init_checkpoint_path",
            ("training.init_checkpoint_step",),
        )


def _optimizer(config: Config) -> Iterator[Problem]:
    for text, keys in broken_optimizer_rules(config):
        yield Problem(text, keys)


def _dataset(config: Config) -> Iterator[Problem]:
    dataset = config.dataset
    yield from _source("dataset", dataset, config)
    if dataset.validation is not None:
        yield from _source("dataset.validation", dataset.validation, config)
    tokenizer = dataset.tokenizer
    if isinstance(tokenizer, PretokenizedTokenizer):
        for name in ("bos_id", "eos_id", "pad_id", "unk_id"):
            value = getattr(tokenizer, name)
            if value is not None and value >= tokenizer.vocab_size:
                yield Problem(
                    f"dataset.tokenizer.{name} must be < dataset.tokenizer.vocab_size "
                    f"({value} >= {tokenizer.vocab_size})",
                    (f"dataset.tokenizer.{name}", "dataset.tokenizer.vocab_size"),
                )


def _source(table: str, source: SourceConfig, config: Config) -> Iterator[Problem]:
    """Rules of a source: of its own keys, and that numbers and text are not mixed up."""
    holds_ids = isinstance(source, PretokenizedSource)
    key = f"{table}.type"
    if isinstance(source, RecordSource):
        if source.field is None and source.template is None:
            yield Problem(
                f"{table}.field is required when {table}.template is unset", (f"{table}.field", key)
            )
        if source.field is not None and source.template is not None:
            yield _exclusive(f"{table}.template", f"{table}.field")
    if isinstance(source, HuggingFaceSource):
        yield from _hugging_face(table, source)
        if source.sequence_field is not None:
            holds_ids, key = True, f"{table}.sequence_field"
    template = getattr(source, "template", None)
    if template is not None and not _PLACEHOLDER.search(template):
        yield Problem(f"{table}.template must hold at least one {{field}}", (f"{table}.template",))
    has_ids = isinstance(config.dataset.tokenizer, PretokenizedTokenizer)
    if holds_ids and not has_ids:
        what = key if key.endswith("sequence_field") else f'{key} = "pretokenized"'
        yield Problem(
            f'{what} requires dataset.tokenizer.type = "pretokenized"', (key, "dataset.tokenizer.type")
        )
    if has_ids and not holds_ids:
        yield Problem(
            f'dataset.tokenizer.type = "pretokenized" requires {table}.type = "pretokenized" '
            f'or a sequence_field (it is "{source.type}")',
            ("dataset.tokenizer.type", key),
        )


def _hugging_face(table: str, source: HuggingFaceSource) -> Iterator[Problem]:
    validates = table.endswith("validation")
    if not source.train_files and not (validates and source.validation_files):
        yield Problem(f"{table}.train_files must not be empty", (f"{table}.train_files",))
    if source.sequence_field is not None:
        if source.template is not None:
            yield _exclusive(f"{table}.sequence_field", f"{table}.template")
        if source.format not in ("jsonl", "parquet"):
            yield Problem(
                f'{table}.sequence_field requires {table}.format = "jsonl" or "parquet" '
                f'(it is "{source.format}")',
                (f"{table}.sequence_field", f"{table}.format"),
            )
    elif source.template is None and not source.text_fields:
        yield Problem(f"{table}.text_fields must not be empty", (f"{table}.text_fields",))


def _model(model: Model) -> Iterator[Problem]:
    """The numbers that must fit into each other."""
    total, multiplier = model.latent_total, model.mlp_internal_dim_multiplier
    if total is not None and total % model.n_embd:
        yield Problem(
            f"model.latent_total must be divisible by model.n_embd ({total} and {model.n_embd})",
            ("model.latent_total", "model.n_embd"),
        )
    elif total is not None and multiplier is not None and multiplier * model.n_embd != total:
        yield Problem(
            "model.mlp_internal_dim_multiplier cannot be combined with another model.latent_total "
            f"({multiplier} * {model.n_embd} is not {total})",
            ("model.mlp_internal_dim_multiplier", "model.latent_total"),
        )
    if model.total_neurons % model.n_head:
        size = (
            "model.latent_total" if total is not None else "model.mlp_internal_dim_multiplier * model.n_embd"
        )
        yield Problem(
            f"{size} must be divisible by model.n_head ({model.total_neurons} and {model.n_head})",
            ("model.n_head", "model.latent_total", "model.mlp_internal_dim_multiplier", "model.n_embd"),
        )
    step = math.lcm(model.n_embd, model.n_head)
    for name, value in schedule_totals(model).items():
        key = f"model.latent_fanout_schedule.{name}"
        if value > model.total_neurons:
            yield Problem(
                f"{key} must be <= the neurons of the model ({value} > {model.total_neurons})", (key,)
            )
        elif value % step:
            yield Problem(
                f"{key} must be divisible by the least common multiple of model.n_embd and model.n_head "
                f"({value} and {step})",
                (key, "model.n_embd", "model.n_head"),
            )
    norm = model.normalization
    if norm.alpha_init is not None and norm.kind not in ("dynamic_tanh", "derf"):
        yield _needs_kind("alpha_init", '"dynamic_tanh" or "derf"', norm.kind)
    if norm.shift_init is not None and norm.kind != "derf":
        yield _needs_kind("shift_init", '"derf"', norm.kind)


def _needs_kind(key: str, kinds: str, kind: str) -> Problem:
    full = f"model.normalization.{key}"
    return Problem(f'{full} requires model.normalization.kind = {kinds} (it is "{kind}")', (full,))


def _positions(model: Model) -> Iterator[Problem]:
    slopes = model.alibi_slopes
    if slopes is not None:
        if model.rotary_embedding != "alibi":
            yield Problem(
                'model.alibi_slopes requires model.rotary_embedding = "alibi" '
                f'(it is "{model.rotary_embedding}")',
                ("model.alibi_slopes", "model.rotary_embedding"),
            )
        if len(slopes) != model.n_head:
            yield Problem(
                f"model.alibi_slopes must have model.n_head items ({len(slopes)} and {model.n_head})",
                ("model.alibi_slopes", "model.n_head"),
            )


def _pairs(model: Model) -> Iterator[Problem]:
    """Rotation turns neurons in pairs, in every layer."""
    odd = [total for total in layer_totals(model) if (total // model.n_head) % 2]
    if model.rotary_embedding == "rope" and odd and model.sequence_kernel.memory_system == "linear_attention":
        yield Problem(
            'model.rotary_embedding = "rope" requires an even number of neurons per head '
            f"({odd[0]} neurons / {model.n_head} heads = {odd[0] / model.n_head:g})",
            (
                "model.rotary_embedding",
                "model.latent_total",
                "model.mlp_internal_dim_multiplier",
                "model.n_head",
            ),
        )


def _vocabulary(config: Config) -> Iterator[Problem]:
    """The model's vocabulary holds the tokenizer's, as far as that is known before any text is read."""
    tokenizer, size = config.dataset.tokenizer, config.model.vocab_size
    if size is None:
        return
    if isinstance(tokenizer, PretokenizedTokenizer):
        least = tokenizer.vocab_size
    elif isinstance(tokenizer, ByteTokenizer):
        least = 259 if tokenizer.add_special_tokens else 256
    else:
        return
    if size < least:
        yield Problem(
            f"model.vocab_size must be >= the tokenizer's number of tokens ({size} < {least})",
            ("model.vocab_size", "dataset.tokenizer.vocab_size", "dataset.tokenizer.type"),
        )


def _rest(config: Config) -> Iterator[Problem]:
    if config.parallel.mode == "single" and config.parallel.world_size != 1:
        yield Problem(
            f'parallel.world_size must be 1 when parallel.mode is "single", got {config.parallel.world_size}',
            ("parallel.world_size",),
        )
