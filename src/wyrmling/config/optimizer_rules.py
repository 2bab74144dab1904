"""Rules of the table `optimizer`, and of what follows its rates, that tie several keys together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from .schema.optimizer import CosineSchedule, LinearSchedule, NoamSchedule

if TYPE_CHECKING:
    from .schema import Config, Optimizer
    from .schema.continual import ContinualBackprop

Broken = tuple[str, tuple[str, ...]]
"""What to say, and the keys that the rule ties together."""


def broken_optimizer_rules(config: Config) -> Iterator[Broken]:
    """Every broken rule of the table `optimizer`."""
    optimizer = config.optimizer
    yield from _clipping(optimizer)
    if optimizer.name != "muon":
        for key in sorted(optimizer.muon.model_dump(exclude_defaults=True)):
            yield (
                f'optimizer.muon.{key} requires optimizer.name = "muon" (it is "{optimizer.name}")',
                (f"optimizer.muon.{key}", "optimizer.name"),
            )
    two_stages = optimizer.name == "bitnet_published" or optimizer.schedule_mode != "bdh_reference"
    if optimizer.weight_decay_final is not None and not two_stages:
        yield (
            'optimizer.weight_decay_final requires optimizer.schedule_mode = "bitnet_b158_reference" or '
            f'optimizer.name = "bitnet_published" (they are "{optimizer.schedule_mode}" and "{optimizer.name}")',
            ("optimizer.weight_decay_final", "optimizer.schedule_mode", "optimizer.name"),
        )
    yield from _learning_rate(config)
    yield from _continual(config.training.continual_backprop)


def _clipping(optimizer: Optimizer) -> Iterator[Broken]:
    """At most one of the three limits."""
    norm, others = "optimizer.grad_clip_norm", ("grad_clip_value", "grad_clip_norm_per_tensor")
    given = [f"optimizer.{key}" for key in others if getattr(optimizer, key) is not None]
    if optimizer.grad_clip_norm != "off" and given:
        yield (f'{given[0]} cannot be combined with {norm} (set it to "off")', (given[0], norm))
    elif len(given) > 1:
        yield f"{given[1]} cannot be combined with {given[0]}", (given[1], given[0])


def _continual(table: ContinualBackprop) -> Iterator[Broken]:
    """A power of nothing changes nothing."""
    name = "training.continual_backprop"
    if table.enabled and table.lr_coupling == "none" and table.lr_coupling_power != 1:
        yield (
            f'{name}.lr_coupling_power requires {name}.lr_coupling = "global_ratio" or "target_group_ratio" '
            '(it is "none")',
            (f"{name}.lr_coupling_power", f"{name}.lr_coupling"),
        )


def _learning_rate(config: Config) -> Iterator[Broken]:
    optimizer, table = config.optimizer, "optimizer.lr_schedule"
    schedule = optimizer.lr_schedule
    if not isinstance(schedule, CosineSchedule | LinearSchedule | NoamSchedule):
        return
    total = None if isinstance(schedule, NoamSchedule) else schedule.num_iters
    name = f"{table}.num_iters"
    if total is None:
        total, name = config.training.max_iters, "training.max_iters"
    if total is not None and schedule.warmup_steps is not None and schedule.warmup_steps > total:
        yield (
            f"{table}.warmup_steps must be <= {name} ({schedule.warmup_steps} > {total})",
            (f"{table}.warmup_steps", name),
        )
    peak = schedule.initial_lr if schedule.initial_lr is not None else optimizer.learning_rate
    peak_key = f"{table}.initial_lr" if schedule.initial_lr is not None else "optimizer.learning_rate"
    if isinstance(schedule, CosineSchedule) and schedule.min_lr > peak:
        yield (
            f"{table}.min_lr must be <= {peak_key} ({schedule.min_lr:g} > {peak:g})",
            (f"{table}.min_lr", peak_key),
        )
