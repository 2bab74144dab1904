"""The command `wyrmling`: its parts, put together. Nothing here imports torch, numpy or pydantic."""

from __future__ import annotations

from typing import Annotated

import typer

from .._version import __version__
from ..watch.streams import say
from .bundle import bundle
from .config import app as config_app
from .doctor import doctor
from .evaluate import evaluate
from .generate import generate
from .import_bdh import import_bdh
from .report import report
from .runs import runs
from .train import TrainCommand, train

app = typer.Typer(
    name="wyrmling",
    help="Train, resume, study and run Dragon Hatchling (BDH) language models.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _version(asked: bool) -> None:
    if asked:
        say(f"wyrmling {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Train, resume, study and run Dragon Hatchling (BDH) language models."""


app.command("train", cls=TrainCommand, short_help="train a model, or go on training one")(train)
app.command("bundle", short_help="train in stages, each from where another ended")(bundle)
app.command("evaluate", short_help="loss and bits per byte of a model over a whole text")(evaluate)
app.command("generate", short_help="write text with a trained model")(generate)
app.command("runs", short_help="list the runs")(runs)
app.command("report", short_help="write a run's curves, figures and samples as a page")(report)
app.command("doctor", short_help="measure what this machine offers")(doctor)
app.command("import-bdh", short_help="make a run from published BDH weights")(import_bdh)
app.add_typer(config_app, name="config", short_help="show and explain configurations")
