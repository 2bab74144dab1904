"""`wyrmling config`: look at a configuration, and write the pages that describe all of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..watch.streams import say

app = typer.Typer(name="config", help="Look at configurations.", no_args_is_help=True)

Configs = Annotated[
    list[str] | None,
    typer.Argument(metavar="[CONFIG]...", help="TOML files or recipe names, laid over each other."),
]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Set one value; repeatable.")
]
Output = Annotated[Path | None, typer.Option("--output", help="File to write; otherwise it is printed.")]


@app.command()
def show(configs: Configs = None, overrides: Overrides = None) -> None:
    """Print a configuration with everything resolved, and where each value comes from."""
    from ..config import load_config
    from ..config.toml import as_toml

    say(as_toml(load_config(configs or (), overrides or ())), end="")


@app.command()
def recipes() -> None:
    """List the configurations that come with the program."""
    from ..config import list_recipes

    for recipe in list_recipes():
        say(f"{recipe.name}: {recipe.description}")


@app.command()
def docs(output: Output = None) -> None:
    """Write the page that describes every key."""
    from ..config.document import config_page

    _deliver(config_page(), output)


@app.command()
def schema(output: Output = None) -> None:
    """Write the JSON schema of a configuration file."""
    from ..config.document import json_schema_text

    _deliver(json_schema_text(), output)


def _deliver(content: str, output: Path | None) -> None:
    from ..files import write_atomically

    if output is None:
        say(content, end="")
    else:
        write_atomically(output, content)
