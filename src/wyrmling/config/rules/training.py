"""Rules of the table `training`: how long, how much at a time, in which order, and from where."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..problems import Problem, at_most, exclusive, requires
from .rulebook import Rulebook

if TYPE_CHECKING:
    from ..schema import Config

BOOK = Rulebook()
_ALLOWED = {
    "fresh": (),
    "resume_exact_run": ("resume_run_dir", "resume_checkpoint_step"),
    "resume_latest_checkpoint_if_present": ("init_checkpoint_path", "init_checkpoint_step"),
    "init_from_checkpoint": ("init_checkpoint_path", "init_checkpoint_step"),
    "fork": ("resume_run_dir", "resume_checkpoint_step"),
}
"""The keys that go with a launch mode."""


@BOOK.rule("one-length", "Exactly one of `training.max_iters` and `training.epochs` is set.")
def _length(config: Config) -> Iterator[Problem]:
    training = config.training
    if training.epochs is None and training.max_iters is None:
        keys = ("training.max_iters", "training.epochs")
        yield Problem("training.max_iters is required when training.epochs is unset", keys)
    if training.epochs is not None and training.max_iters is not None:
        yield exclusive("training.epochs", "training.max_iters")


@BOOK.rule(
    "one-number-of-rows",
    "`training.target_effective_batch_size` decides `training.gradient_accumulation_steps`: not both are set.",
)
def _rows(config: Config) -> Iterator[Problem]:
    training = config.training
    if training.target_effective_batch_size is not None and training.gradient_accumulation_steps != 1:
        yield exclusive("training.target_effective_batch_size", "training.gradient_accumulation_steps")


@BOOK.rule("chunks-fit-a-row", "`training.tbptt_chunk_size` is at most `training.block_size`.")
def _chunk(config: Config) -> Iterator[Problem]:
    chunk, block = config.training.tbptt_chunk_size, config.training.block_size
    if chunk is not None and chunk > block:
        yield at_most("training.tbptt_chunk_size", "training.block_size", chunk, block)


@BOOK.rule("a-window-has-chunks", "`training.tbptt_window` above 1 needs `training.tbptt_chunk_size`.")
def _window(config: Config) -> Iterator[Problem]:
    if config.training.tbptt_window > 1 and config.training.tbptt_chunk_size is None:
        yield requires("training.tbptt_window", "training.tbptt_chunk_size")


@BOOK.rule(
    "carried-states-stream",
    '`training.tbptt_persist_across_steps` needs `training.order = "streaming"`, which it sets.',
)
def _carried(config: Config) -> Iterator[Problem]:
    training = config.training
    if training.tbptt_persist_across_steps and training.order != "streaming":
        yield Problem(
            'training.tbptt_persist_across_steps requires training.order = "streaming" '
            f'(it is "{training.order}"); leave the order out',
            ("training.order", "training.tbptt_persist_across_steps"),
        )


@BOOK.rule("documents-stream", '`training.min_logical_block_size` needs `training.order = "streaming"`.')
def _documents(config: Config) -> Iterator[Problem]:
    training = config.training
    if training.min_logical_block_size is not None and training.order != "streaming":
        yield Problem(
            f'training.min_logical_block_size requires training.order = "streaming" (it is "{training.order}")',
            ("training.min_logical_block_size", "training.order"),
        )


@BOOK.rule(
    "a-launch-has-its-place",
    "`resume_exact_run` and `fork` need `training.resume_run_dir`, `init_from_checkpoint` needs "
    "`training.init_checkpoint_path`.",
)
def _launch_place(config: Config) -> Iterator[Problem]:
    training, mode = config.training, config.training.launch_mode
    required = {
        "resume_exact_run": "resume_run_dir",
        "fork": "resume_run_dir",
        "init_from_checkpoint": "init_checkpoint_path",
    }.get(mode)
    if required is not None and getattr(training, required) is None:
        yield Problem(
            f'training.launch_mode = "{mode}" requires training.{required}',
            ("training.launch_mode", f"training.{required}"),
        )


@BOOK.rule(
    "a-place-has-its-launch",
    "`training.resume_*` and `training.init_*` need the launch mode that reads them.",
)
def _place_launch(config: Config) -> Iterator[Problem]:
    training, mode = config.training, config.training.launch_mode
    for key, wanted in (
        ("resume_run_dir", "resume_exact_run"),
        ("resume_checkpoint_step", "resume_exact_run"),
        ("init_checkpoint_path", "init_from_checkpoint"),
        ("init_checkpoint_step", "init_from_checkpoint"),
    ):
        if getattr(training, key) is not None and key not in _ALLOWED[mode]:
            yield Problem(
                f'training.{key} requires training.launch_mode = "{wanted}" (it is "{mode}")',
                (f"training.{key}", "training.launch_mode"),
            )


@BOOK.rule(
    "a-step-has-its-checkpoint", "`training.init_checkpoint_step` needs `training.init_checkpoint_path`."
)
def _init_step(config: Config) -> Iterator[Problem]:
    if config.training.init_checkpoint_step is not None and config.training.init_checkpoint_path is None:
        yield requires("training.init_checkpoint_step", "training.init_checkpoint_path")
