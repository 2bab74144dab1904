"""`wyrmling bundle`: several trainings in a row, one beginning where another ended."""

from __future__ import annotations

from typing import Annotated

import typer

from ..watch.streams import say
from .watching import watchers


def bundle(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="The TOML file that lists the stages.", show_default=False)
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="[STAGE:]KEY=VALUE",
            help="Set one value in all stages, or in one; repeatable.",
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Another name for the bundle: its runs lie apart and begin anew.")
    ] = None,
    stop_after: Annotated[
        str | None, typer.Option(metavar="STAGE", help="Stop when this stage is finished.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check every stage and print the plan; run and write nothing.")
    ] = False,
    allow_changed: Annotated[
        bool,
        typer.Option(
            "--allow-changed",
            help="Keep finished stages although their configuration has changed, or their runs are gone.",
        ),
    ] = False,
    redo_missing: Annotated[
        bool, typer.Option("--redo-missing", help="Run finished stages again whose runs are gone.")
    ] = False,
    allow_inexact: Annotated[
        bool,
        typer.Option("--allow-inexact", help="Go on even where this machine cannot continue bit for bit."),
    ] = False,
    track: Annotated[
        bool, typer.Option("--track", help="Write TensorBoard files too (needs tensorboard).")
    ] = False,
) -> None:
    """Run the stages of a bundle in order. Run it again to go on where it was interrupted."""
    from ..config import load_bundle

    loaded = load_bundle(file, overrides or (), name)

    from ..training import keep_freed_memory
    from ..training.bundles import described, plan_bundle, run_bundle

    keep_freed_memory()

    if dry_run:
        plan = plan_bundle(
            loaded, allow_inexact=allow_inexact, allow_changed=allow_changed, redo_missing=redo_missing
        )
        say(f"bundle {loaded.name} in {loaded.folder}")
        for number, item in enumerate(plan, start=1):
            say(f"{number} of {len(plan)}: {described(item)}  {item.stage.run}")
        return

    with watchers(track) as (console, callbacks):
        result = run_bundle(
            loaded,
            callbacks=callbacks,
            allow_inexact=allow_inexact,
            allow_changed=allow_changed,
            redo_missing=redo_missing,
            stop_after=stop_after,
            preparing=console.preparing,
            on_signal="return",
        )
    raise typer.Exit(result.exit_code)
