"""`wyrmling import-bdh`: weights of the published PyTorch BDH become a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..watch.streams import say


def import_bdh(
    file: Annotated[Path, typer.Argument(help="A state dict saved by torch.save.", metavar="FILE.pt")],
    layers: Annotated[
        int, typer.Option(min=1, help="How often the layer is applied; shared weights do not tell.")
    ] = 6,
    name: Annotated[str | None, typer.Option(help="Name of the new run; default: drawn.")] = None,
    dropout: Annotated[float, typer.Option(min=0, max=0.99, help="For further training.")] = 0.1,
) -> None:
    """Make a run from published BDH weights (byte vocabulary). The only command that reads such a file; nothing
    in it is executed."""
    from ..training.importing import import_published

    run, parameters = import_published(file, n_layer=layers, name=name, dropout=dropout)
    say(f"{run.path}: {parameters:,} parameters; try: wyrmling generate {run.name} --prompt 'To be'")
