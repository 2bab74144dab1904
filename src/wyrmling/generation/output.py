"""What a generation looks like on a screen or in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, TextIO

from .text import Continuation, Output, TextGeneration, as_json

if TYPE_CHECKING:
    from ..text.tokenizers import Tokenizer


def printable(text: str) -> str:
    """With control characters other than line ends and tabs written as `\\x1b`: a terminal must not obey a
    model."""
    return "".join(
        character if character in "\n\t" or not _is_control(character) else f"\\x{ord(character):02x}"
        for character in text
    )


def writer(stream: TextIO | None = None) -> Callable[[str], None]:
    """A function that writes to `stream` (standard output) at once; on a terminal, control characters are escaped."""
    target = stream or sys.stdout
    screen = target.isatty()

    def write(text: str) -> None:
        target.write(printable(text) if screen else text)
        target.flush()

    return write


def show(
    generation: TextGeneration,
    tokenizer: Tokenizer,
    output: Output,
    write: Callable[[str], None],
) -> None:
    """Run a generation to its end and write it.

    text    the prompt (unless it was empty) and what follows; several are separated by an empty line
    ids     token ids, prompt included, one line per prompt
    json    one object per line and prompt

    A single text, or line of ids, is written as it comes.
    """
    stream = len(generation.results) == 1 and output != "json"
    if stream:
        write(_opening(generation.results[0], output))
        for piece in generation:
            write(piece.text if output == "text" else f" {piece.token}")
        write("\n")
        return
    for row, result in enumerate(generation.finish()):
        write(_whole(generation, tokenizer, result, row, output))


def summary(result: Continuation) -> str:
    """One line on how much was drawn and why it ended."""
    characters = f", {len(result.text)} characters" if result.text else ""
    return f"{len(result.ids)} tokens{characters}, stopped by {result.reason}"


def _whole(
    generation: TextGeneration,
    tokenizer: Tokenizer,
    result: Continuation,
    row: int,
    output: Output,
) -> str:
    if output == "json":
        return as_json(tokenizer, result, row=row, settings=generation.tokens.settings) + "\n"
    if output == "ids":
        return " ".join(map(str, [*result.prompt, *result.ids])) + "\n"
    return ("\n" if row else "") + _opening(result, output) + result.text + "\n"


def _opening(result: Continuation, output: Output) -> str:
    return " ".join(map(str, result.prompt)) if output == "ids" else result.opening


def _is_control(character: str) -> bool:
    code = ord(character)
    return code < 0x20 or 0x7F <= code < 0xA0
