"""Rules of the table `optimizer`, and of what follows its rates."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..problems import Problem, exclusive
from ..schema.optimizer import CosineSchedule, LinearSchedule, NoamSchedule
from .rulebook import Rulebook

if TYPE_CHECKING:
    from ..schema import Config

BOOK = Rulebook()
SCHEDULE = "optimizer.lr_schedule"
CONTINUAL = "training.continual_backprop"


@BOOK.rule(
    "one-limit-of-gradients",
    "At most one of `optimizer.grad_clip_norm`, `grad_clip_value` and `grad_clip_norm_per_tensor` is set.",
)
def _clipping(config: Config) -> Iterator[Problem]:
    optimizer = config.optimizer
    norm, others = "optimizer.grad_clip_norm", ("grad_clip_value", "grad_clip_norm_per_tensor")
    given = [f"optimizer.{key}" for key in others if getattr(optimizer, key) is not None]
    if optimizer.grad_clip_norm != "off" and given:
        yield Problem(f'{given[0]} cannot be combined with {norm} (set it to "off")', (given[0], norm))
    elif len(given) > 1:
        yield exclusive(given[1], given[0])


@BOOK.rule("muon-keys-need-muon", '`[optimizer.muon]` needs `optimizer.name = "muon"`.')
def _muon(config: Config) -> Iterator[Problem]:
    optimizer = config.optimizer
    if optimizer.name == "muon":
        return
    for key in sorted(optimizer.muon.model_dump(exclude_defaults=True)):
        yield Problem(
            f'optimizer.muon.{key} requires optimizer.name = "muon" (it is "{optimizer.name}")',
            (f"optimizer.muon.{key}", "optimizer.name"),
        )


@BOOK.rule(
    "a-final-decay-has-two-stages",
    '`optimizer.weight_decay_final` needs `schedule_mode = "bitnet_b158_reference"` or `name = "bitnet_published"`.',
)
def _final_decay(config: Config) -> Iterator[Problem]:
    optimizer = config.optimizer
    two_stages = optimizer.name == "bitnet_published" or optimizer.schedule_mode != "bdh_reference"
    if optimizer.weight_decay_final is not None and not two_stages:
        yield Problem(
            'optimizer.weight_decay_final requires optimizer.schedule_mode = "bitnet_b158_reference" or '
            f'optimizer.name = "bitnet_published" (they are "{optimizer.schedule_mode}" and "{optimizer.name}")',
            ("optimizer.weight_decay_final", "optimizer.schedule_mode", "optimizer.name"),
        )


@BOOK.rule(
    "a-warm-up-ends",
    f"`{SCHEDULE}.warmup_steps` is at most `num_iters`, or `training.max_iters` where that is not set.",
)
def _warmup(config: Config) -> Iterator[Problem]:
    schedule = config.optimizer.lr_schedule
    if not isinstance(schedule, CosineSchedule | LinearSchedule | NoamSchedule):
        return
    total = None if isinstance(schedule, NoamSchedule) else schedule.num_iters
    name = f"{SCHEDULE}.num_iters"
    if total is None:
        total, name = config.training.max_iters, "training.max_iters"
    if total is not None and schedule.warmup_steps is not None and schedule.warmup_steps > total:
        yield Problem(
            f"{SCHEDULE}.warmup_steps must be <= {name} ({schedule.warmup_steps} > {total})",
            (f"{SCHEDULE}.warmup_steps", name),
        )


@BOOK.rule(
    "a-cosine-goes-down",
    f"`{SCHEDULE}.min_lr` is at most the peak: `initial_lr`, or `optimizer.learning_rate` where that is not set.",
)
def _minimum(config: Config) -> Iterator[Problem]:
    schedule = config.optimizer.lr_schedule
    if not isinstance(schedule, CosineSchedule):
        return
    given = schedule.initial_lr is not None
    peak = schedule.initial_lr if schedule.initial_lr is not None else config.optimizer.learning_rate
    peak_key = f"{SCHEDULE}.initial_lr" if given else "optimizer.learning_rate"
    if schedule.min_lr > peak:
        yield Problem(
            f"{SCHEDULE}.min_lr must be <= {peak_key} ({schedule.min_lr:g} > {peak:g})",
            (f"{SCHEDULE}.min_lr", peak_key),
        )


@BOOK.rule(
    "not-more-than-all-neurons",
    f"Where `{CONTINUAL}` is enabled, `replacement_rate` * `replace_interval_steps` is at most 1: all mature neurons.",
)
def _share(config: Config) -> Iterator[Problem]:
    table = config.training.continual_backprop
    share = table.replacement_rate * table.replace_interval_steps
    if table.enabled and share > 1 + 1e-9:
        rate, interval = f"{CONTINUAL}.replacement_rate", f"{CONTINUAL}.replace_interval_steps"
        yield Problem(
            f"{rate} * {interval} must be <= 1, all mature neurons at once ({table.replacement_rate:g} * "
            f"{table.replace_interval_steps} = {share:g})",
            (rate, interval),
        )


@BOOK.rule(
    "a-power-has-its-coupling",
    f"Where `{CONTINUAL}` is enabled, `lr_coupling_power` other than 1 needs an `lr_coupling` other than "
    '"none".',
)
def _coupling(config: Config) -> Iterator[Problem]:
    table = config.training.continual_backprop
    if table.enabled and table.lr_coupling == "none" and table.lr_coupling_power != 1:
        yield Problem(
            f'{CONTINUAL}.lr_coupling_power requires {CONTINUAL}.lr_coupling = "global_ratio" or '
            '"target_group_ratio" (it is "none")',
            (f"{CONTINUAL}.lr_coupling_power", f"{CONTINUAL}.lr_coupling"),
        )
