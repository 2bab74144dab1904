"""`wyrmling evaluate`: how well a trained model predicts a text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ..watch.streams import note, say, say_json
from .choices import checkpoint_step

if TYPE_CHECKING:
    from ..training import LoadedRun


def evaluate(
    run: Annotated[
        str, typer.Argument(help="A run's name or folder, or `latest`.", metavar="RUN")
    ] = "latest",
    text: Annotated[
        Path | None, typer.Option(help="A file to evaluate on, instead of the run's own data.")
    ] = None,
    encoding: Annotated[
        str | None, typer.Option(help="What --text is written in; default: what the run's texts are.")
    ] = None,
    split: Annotated[
        Literal["validation", "train"], typer.Option(help="Which split of the run's data.")
    ] = "validation",
    state: Annotated[
        Literal["carry", "reset"],
        typer.Option(
            help="Carry the state through the text (through each document, where the run was trained document by "
            "document), or start every block anew."
        ),
    ] = "carry",
    checkpoint: Annotated[str, typer.Option(help="latest, best, or a step.")] = "latest",
    rows: Annotated[
        int | None, typer.Option(min=1, help="Shares of the text that are read side by side.")
    ] = None,
    block_size: Annotated[
        int | None, typer.Option(min=1, help="Tokens per block; default: as in training.")
    ] = None,
    probe_state: Annotated[
        bool,
        typer.Option(
            "--probe-state",
            help="Score with a living and with an emptied state, by distance; writes probe_state.json and .png.",
        ),
    ] = False,
    probe_length: Annotated[
        int | None,
        typer.Option(min=64, help="Tokens after which the probe empties a state; default: by the text."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Loss, perplexity and bits per byte over every token of a text, each exactly once."""
    step = checkpoint_step(checkpoint)

    from ..training import evaluate as run_evaluation
    from ..training import keep_freed_memory, load_run

    keep_freed_memory()

    loaded = load_run(run, checkpoint=step)
    if probe_state:
        _probe(loaded, text, encoding, split, rows, probe_length, json)
        return
    found = run_evaluation(
        loaded,
        text=text,
        encoding=encoding,
        split=split,
        carry_state=state == "carry",
        rows=rows,
        block_size=block_size,
        note=_note,
    )
    figures = {
        "run": loaded.run.name,
        "step": loaded.step,
        "text": split if text is None else str(text),
        "state": state,
        "documents": found.documents,
        "tokens": found.targets,
        "loss": found.loss,
        "perplexity": found.perplexity,
        "bits_per_byte": found.bits_per_byte,
        "tokens_without_text": found.textless,
        "loss_without_text": found.textless_loss,
        "tokens_of_unknown_bytes": found.unmeasured,
    }
    if json:
        say_json(figures)
        return
    read = "as one text" if found.documents is None else f"{found.documents:,} documents apart"
    say(
        f"{loaded.run.name}, step {loaded.step}, on {figures['text']} (state {state}, {read}), "
        f"{found.targets:,} tokens"
    )
    say(f"loss           {found.loss:.4f} nats per token")
    say(f"perplexity     {found.perplexity:.3f}")
    if found.bits_per_byte is not None:
        say(f"bits per byte  {found.bits_per_byte:.4f}")
    elif found.unmeasured:
        say(f"bits per byte  not known: {found.unmeasured:,} tokens do not say how many bytes they stand for")
    if found.textless_loss is not None:
        ends = f"{found.textless:,} tokens without text, which bits per byte leave out"
        say(f"ends of text   {found.textless_loss:.4f} nats per token over {ends}")


def _note(line: str) -> None:
    note(f"text: {line}")


def _probe(
    loaded: LoadedRun,
    text: Path | None,
    encoding: str | None,
    split: Literal["validation", "train"],
    rows: int | None,
    length: int | None,
    as_json: bool,
) -> None:
    """What a living state is worth: a table, and two files in the run's folder."""
    import dataclasses

    from ..files import write_json_atomically
    from ..training import probe
    from ..watch.probe import write_probe

    found = probe(loaded, text=text, encoding=encoding, split=split, rows=rows, period=length, note=_note)
    record = {
        "run": loaded.run.name,
        "step": loaded.step,
        "text": split if text is None else str(text),
        "distances": [dataclasses.asdict(distance) for distance in found],
    }
    write_json_atomically(loaded.run.path / "probe_state.json", record)
    picture = write_probe(found, loaded.run.path / "probe_state.png")
    if as_json:
        say_json(record)
        return
    say(
        f"{loaded.run.name}, step {loaded.step}, on {record['text']}: nats per token by distance from an emptied state"
    )
    say(f"{'distance':>16}  {'tokens':>9}  {'living':>7}  {'emptied':>7}  gain")
    for d in found:
        where = f"{d.after + 1:,}-{d.upto:,}"
        say(f"{where:>16}  {d.tokens:>9,}  {d.live:7.4f}  {d.reset:7.4f}  {d.gain:+.4f} ± {d.interval:.4f}")
    say(f"written to {picture.parent}: probe_state.json, probe_state.png")
