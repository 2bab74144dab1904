"""`wyrmling generate`: text from a trained model."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Literal

import typer

from ..errors import ConfigError, DataError
from ..watch.streams import note
from .choices import checkpoint_step

if TYPE_CHECKING:
    from ..generation.conversation import Conversation
    from ..training import LoadedRun


Checkpoint = int | Literal["latest", "best"]


def generate(
    run: Annotated[
        str, typer.Argument(help="A run's name or folder, or `latest`.", metavar="RUN")
    ] = "latest",
    prompt: Annotated[list[str] | None, typer.Option(help="Text to go on from; may be repeated.")] = None,
    prompt_file: Annotated[
        str | None,
        typer.Option(help="A file with the text to go on from, read as it is; - is standard input."),
    ] = None,
    encoding: Annotated[
        str | None, typer.Option(help="What --prompt-file is written in; default: what the run's texts are.")
    ] = None,
    max_tokens: Annotated[str | None, typer.Option(help="Most tokens to draw, or `unlimited`.")] = None,
    max_chars: Annotated[int | None, typer.Option(help="Most characters to write.")] = None,
    temperature: Annotated[float | None, typer.Option(help="0 takes the likeliest token every time.")] = None,
    top_k: Annotated[int | None, typer.Option(help="Draw among the k likeliest tokens only.")] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Draw among the likeliest tokens whose probabilities reach p.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same text.")] = None,
    stop_at_eos: Annotated[
        bool | None,
        typer.Option("--stop-at-eos/--no-stop-at-eos", help="Stop where the model ends the document."),
    ] = None,
    output: Annotated[
        Literal["text", "ids", "json"] | None,
        typer.Option(help="text, token ids, or a line of JSON per prompt."),
    ] = None,
    state_in: Annotated[Path | None, typer.Option(help="Go on with the conversation in this file.")] = None,
    state_out: Annotated[Path | None, typer.Option(help="Save the conversation to this file.")] = None,
    checkpoint: Annotated[str, typer.Option(help="latest, best, or a step.")] = "latest",
    context_window: Annotated[
        str | None, typer.Option(help="Read only the last N tokens, or `infinite`: everything.")
    ] = None,
) -> None:
    """Write text after a prompt, with a trained model. What is not given comes from the run's [generation]
    table."""
    from ..generation.settings import GenerationSettings

    given = {
        "max_tokens": _number_or(max_tokens, "unlimited", "--max-tokens"),
        "max_chars": max_chars,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "seed": seed,
        "stop_at_eos": stop_at_eos,
        "window": _number_or(context_window, "infinite", "--context-window"),
    }
    overrides: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if max_tokens == "unlimited":
        overrides["max_tokens"] = None
    if context_window == "infinite":
        overrides["window"] = None
    GenerationSettings.of(overrides)
    texts = _prompts(prompt, prompt_file)
    if (state_in or state_out) and len(texts) > 1:
        raise ConfigError(
            f"a conversation has one prompt, got {len(texts)}: give one, or leave the state out"
        )
    if state_out is not None and not state_out.parent.is_dir():
        raise ConfigError(f"--state-out {state_out}: there is no folder {state_out.parent}")
    _generate(run, checkpoint_step(checkpoint), texts, encoding, overrides, output, state_in, state_out)


def _generate(
    run: str,
    checkpoint: Checkpoint,
    texts: list[tuple[str, bytes | Path | BinaryIO]],
    encoding: str | None,
    overrides: dict[str, Any],
    output: str | None,
    state_in: Path | None,
    state_out: Path | None,
) -> None:
    from ..generation.conversation import load_conversation, model_fingerprint, save_conversation
    from ..generation.output import show, summary, writer
    from ..generation.settings import GenerationSettings
    from ..generation.text import TextGeneration, encode_prompt, output_format
    from ..training import keep_freed_memory, load_run

    keep_freed_memory()

    loaded = load_run(run, checkpoint=checkpoint)
    note(f"weights of step {loaded.step}: {loaded.path}")
    read = [(origin, _read(origin, text, encoding, loaded)) for origin, text in texts]
    settings = GenerationSettings.from_config(loaded.config.generation, overrides)
    if settings.seed is None:
        settings = settings.seeded()
        note(f"seed {settings.seed} (drawn at random; --seed {settings.seed} repeats it)")
    form = output_format(output or loaded.config.generation.output_format, loaded.tokenizer)
    fingerprints: dict[str, str] = {}
    if state_in or state_out:
        fingerprints = {
            "model": model_fingerprint(loaded.model),
            "tokenizer": loaded.tokenizer.fingerprint(),
        }
    conversation: Conversation | None = load_conversation(state_in, fingerprints) if state_in else None
    if not read:
        read = [("the prompt", b"" if conversation else loaded.config.generation.prompt.encode())]
    prompts = [
        encode_prompt(loaded.tokenizer, text, origin=origin, start=conversation is None)
        for origin, text in read
    ]
    generation = TextGeneration(
        loaded.model,
        loaded.tokenizer,
        prompts,
        settings,
        conversation=conversation,
        keep_state=state_out is not None,
        threads=loaded.machine.threads,
    )
    for line in generation.notes:
        note(line)
    show(generation, loaded.tokenizer, form, writer())
    for result in generation.results:
        note(summary(result))
    if state_out is not None:
        finished = generation.conversation()
        save_conversation(state_out, finished.state, finished.tokens, fingerprints, unshown=finished.unshown)
        note(f"conversation of {len(finished.tokens)} tokens saved to {state_out}")


def _prompts(prompts: list[str] | None, file: str | None) -> list[tuple[str, bytes | Path | BinaryIO]]:
    """What was given on the command line, with what to call it in messages; arguments may be any bytes."""
    many = len(prompts or []) + (file is not None) > 1
    texts: list[tuple[str, bytes | Path | BinaryIO]] = [
        (f"prompt {place}" if many else "the prompt", text.encode("utf-8", "surrogateescape"))
        for place, text in enumerate(prompts or [], start=1)
    ]
    if file == "-":
        if sys.stdin is None:
            raise DataError("--prompt-file - reads standard input, which is closed: give a file, or --prompt")
        texts.append(("standard input", sys.stdin.buffer))
    elif file is not None:
        if not os.path.exists(file):
            raise DataError(f"--prompt-file {file}: no such file")
        texts.append((file, Path(file)))
    return texts


def _read(origin: str, text: bytes | Path | BinaryIO, encoding: str | None, loaded: LoadedRun) -> bytes:
    """A prompt as UTF-8; one from a file is opened as the texts of the run's dataset are."""
    from ..text.sources import read_prompt

    try:
        if isinstance(text, bytes):
            return text
        return read_prompt(loaded.config.dataset, text, origin, encoding)
    except OSError as error:  # of a file it is told already
        raise DataError(f"cannot read {origin}: {error.strerror or error}") from error


def _number_or(text: str | None, word: str, option: str) -> int | None:
    """A whole number; None when it is not given or is the word that lifts the limit."""
    if text is None or text == word:
        return None
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"{option} must be a whole number or {word}, got {text!r}") from None
