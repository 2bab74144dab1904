"""`wyrmling train`: train a model, or go on training one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from ..errors import ConfigError
from ..watch.streams import say
from .watching import watchers

if TYPE_CHECKING:
    from pathlib import Path

    from ..config import Config


class Profiled(StrEnum):
    """How much `--profile` measures."""

    SUMMARY = "summary"
    DETAIL = "detail"


class TrainCommand(TyperCommand):
    """The command line of `train`, where `--profile` may stand alone."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse, with the word that `--profile` means filled in."""
        return super().parse_args(ctx, with_profile_named(args))


def with_profile_named(words: Sequence[str]) -> list[str]:
    """`--profile` that no known word follows is `--profile summary`; what follows it is something else."""
    found = list(words)
    end = found.index("--") if "--" in found else len(found)  # after it there are no options
    known = {mode.value for mode in Profiled}
    for place in range(end):
        if found[place] == "--profile" and (place + 1 == end or found[place + 1] not in known):
            found[place] = f"--profile={Profiled.SUMMARY.value}"
    return found


def train(
    configs: Annotated[
        list[str] | None,
        typer.Argument(metavar="[CONFIG]...", help="TOML files or recipe names, laid over each other."),
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Set one value; repeatable.")
    ] = None,
    resume: Annotated[
        str | None,
        typer.Option(metavar="RUN", help="Go on with a run: its name, its folder, or `latest`."),
    ] = None,
    fork: Annotated[
        str | None,
        typer.Option(
            metavar="RUN",
            help="Begin a new run that goes on from a run's newest checkpoint, with what --set changes of "
            "[optimizer] and of the run's length.",
        ),
    ] = None,
    allow_inexact: Annotated[
        bool, typer.Option(help="Resume even where this machine cannot continue bit for bit.")
    ] = False,
    track: Annotated[bool, typer.Option(help="Write TensorBoard files too (needs tensorboard).")] = False,
    profile: Annotated[
        Profiled | None,
        typer.Option(
            metavar="[detail]",
            help="Measure where time and memory go, and write profile.json and trace.json into the run; "
            "`--profile detail` times the parts of a step too.",
        ),
    ] = None,
) -> None:
    """Train a model on your text. Without arguments: the recipe `shakespeare`, about three minutes."""
    config = _configured(configs, overrides, resume=resume, fork=fork)

    from ..training import keep_freed_memory
    from ..training import train as run_training

    keep_freed_memory()

    with watchers(track) as (console, callbacks):
        result = run_training(
            config,
            callbacks=callbacks,
            allow_inexact=allow_inexact,
            preparing=console.preparing,
            profile=None if profile is None else profile.value,
            on_signal="return",
        )
    if result.profile is not None:
        _print_profile(result.profile)
    raise typer.Exit(result.exit_code)


def _configured(
    configs: list[str] | None, overrides: list[str] | None, *, resume: str | None, fork: str | None
) -> Config:
    """The configuration that was given, or that of the run that goes on, with what --set changes."""
    from ..config import load_config, with_overrides

    run = resume if fork is None else fork
    if run is None:
        return load_config(configs or (), overrides or ())
    if resume is not None and fork is not None:
        raise ConfigError(
            "--resume goes on with a run, --fork begins a new one from it: leave one of them out"
        )
    if configs:
        raise ConfigError(
            f"--{'resume' if fork is None else 'fork'} takes the run's own configuration: leave {configs[0]} out, "
            "and change what may change with --set"
        )
    from ..config.launching import to_fork, to_go_on
    from ..runs import find_run

    directory = find_run(run)
    launch = to_go_on(directory.path) if fork is None else to_fork(directory.path)
    return with_overrides(directory.training_config(), [*launch, *(overrides or [])])


def _print_profile(path: Path) -> None:
    from ..watch.profile_table import table

    say(table(json.loads(path.read_text(encoding="utf-8"))))
