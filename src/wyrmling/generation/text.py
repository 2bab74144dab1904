"""Text after text: prompts into tokens, tokens into whole characters as they come."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

import torch

from ..errors import ConfigError, DataError
from ..text.utf8 import cut_characters
from .conversation import Conversation
from .engine import Generation, generate
from .settings import GenerationSettings

if TYPE_CHECKING:
    from ..config import Config
    from ..text.tokenizers import Tokenizer

Output = Literal["text", "ids", "json"]
_OUTPUTS: dict[str, Output] = {"decoded_text": "text", "token_ids": "ids"}


class Machine(Protocol):
    """What is needed of the machine that a run computes on."""

    @property
    def threads(self) -> int: ...
    def settings(self) -> AbstractContextManager[None]: ...


class LoadedRun(Protocol):
    """What is needed of a run that has been loaded."""

    @property
    def model(self) -> torch.nn.Module: ...
    @property
    def tokenizer(self) -> Tokenizer: ...
    @property
    def config(self) -> Config: ...
    @property
    def machine(self) -> Machine: ...


@dataclass(frozen=True)
class Prompt:
    """A prompt as tokens.

    Attributes:
        given: whether these are the tokens of a text, not what stands in for an empty one.
        note: what a person should know about how the prompt is read.
    """

    ids: tuple[int, ...]
    given: bool = True
    note: str | None = None


@dataclass(frozen=True)
class Piece:
    """New text of one row: whole characters only, possibly none; `reason` is set in the row's last piece."""

    row: int
    token: int
    text: str
    reason: str | None = None


@dataclass
class Continuation:
    """What followed a prompt. `reason`: "eos", "max_tokens" or "max_chars"; None while it runs.

    `opening` is the text before it, in whole characters: what a conversation had not shown yet, and the prompt. A
    character that begins there and ends in what was drawn is in `text`.
    """

    prompt: tuple[int, ...]
    ids: list[int]
    text: str = ""
    reason: str | None = None
    opening: str = ""


def has_text(tokenizer: Tokenizer) -> bool:
    """Whether the tokens stand for text (pretokenized ids do not)."""
    return tokenizer.kind != "pretokenized"


def output_format(wanted: str, tokenizer: Tokenizer) -> Output:
    """`text`, `ids` or `json` for a word of the configuration or the command; "auto" is text if there is any.

    Raises:
        ConfigError: text from a tokenizer that has none.
    """
    if wanted == "auto":
        return "text" if has_text(tokenizer) else "ids"
    output = _OUTPUTS.get(wanted, wanted)
    if output == "text" and not has_text(tokenizer):
        raise ConfigError("this run's tokenizer knows ids only: ask for the output ids or json")
    return output  # type: ignore[return-value]


def encode_prompt(
    tokenizer: Tokenizer, prompt: bytes | str, *, origin: str = "the prompt", start: bool = True
) -> Prompt:
    """A prompt as tokens. Pretokenized prompts are written as ids: `1 2 3`.

    An empty prompt starts from what stood before documents in training (see `start_token`). With
    `start = False`, where the prompt goes on from something, it stays empty, and the space that some vocabularies write
    before a text is left out where that can be.

    Raises:
        DataError: characters or ids outside the vocabulary (named, with their places).
    """
    if isinstance(prompt, bytes):
        prompt = prompt.removeprefix(codecs.BOM_UTF8)
        ids = _ids_of_bytes(tokenizer, prompt, origin, start)
    else:
        ids = _ids(tokenizer, prompt, origin, 0, start)
    if not ids and start:
        token, name = start_token(tokenizer)
        return Prompt((token,), given=False, note=f"{origin} is empty: starting from {name} (token {token})")
    unknown = ids.count(tokenizer.unk_id) if tokenizer.unk_id is not None else 0
    note = f"{origin}: {unknown} of {len(ids)} tokens are unknown to this run" if unknown else None
    return Prompt(ids, note=note)


def _ids_of_bytes(tokenizer: Tokenizer, data: bytes, origin: str, start: bool) -> tuple[int, ...]:
    """Parts of characters at the borders are read byte by byte where the tokenizer has ids for bytes."""
    first, last = cut_characters(data)
    parts = {*data[:first], *data[last:]}
    bytewise = tokenizer.byte_ids() if parts else {}
    if not bytewise.keys() >= parts:
        first, last = 0, len(data)  # the tokenizer says what is wrong, and where
    whole = _ids(tokenizer, data[first:last], origin, first, start and not first)
    return (*[bytewise[byte] for byte in data[:first]], *whole, *[bytewise[byte] for byte in data[last:]])


def _ids(tokenizer: Tokenizer, text: bytes | str, origin: str, offset: int, start: bool) -> tuple[int, ...]:
    """The ids of whole characters: of a text, or of one that goes on from another."""
    if not text:
        return ()
    ids = tokenizer.encode(text, origin=origin, offset=offset).tolist()
    if start or not has_text(tokenizer):
        return tuple(ids)
    wanted = text if isinstance(text, str) else text.decode("utf-8", "replace")
    for lead in ("", "\n", "."):  # behind a lead of its own, a vocabulary writes no space before the text
        try:
            before = tokenizer.encode(lead).tolist() if lead else ids
            both = tokenizer.encode(lead + wanted).tolist() if lead else [*ids, *ids]
        except DataError:  # the lead is not in the vocabulary
            continue
        rest, decoder = both[len(before) :], tokenizer.stream_decoder()
        decoder.read(before)
        if both[: len(before)] == before and decoder.read(rest) == wanted:
            return tuple(rest)
    return tuple(ids)


def start_token(tokenizer: Tokenizer) -> tuple[int, str]:
    """The token that stands in for an empty prompt, and what it is: as in training, before a document begins.

    Text: the token that ended the document before, else a newline. Pretokenized data brings its own token for
    the beginning, so that one is first there. Without any of these: the first token that is not special.
    """
    if tokenizer.bos_id is not None and not has_text(tokenizer):
        return tokenizer.bos_id, "the beginning of a document"
    if tokenizer.eos_id is not None:
        return tokenizer.eos_id, "the end of a document"
    special = {tokenizer.bos_id, tokenizer.pad_id, tokenizer.unk_id}
    if has_text(tokenizer):
        try:
            newline = tokenizer.encode("\n", origin="a newline").tolist()
        except DataError:
            newline = []
        if len(newline) == 1 and newline[0] not in special:
            return newline[0], "a newline"
    first = next((token for token in range(tokenizer.vocab_size) if token not in special), 0)
    return first, "the first token"


class TextGeneration:
    """A generation in progress as text: iterate for `Piece`s, read `results` at any time.

    Opening and text of a row are what all of its tokens decode to, those of a conversation before them included. With
    `keep_state` a character that is not complete at the end waits for what follows; else it becomes U+FFFD.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        tokenizer: Tokenizer,
        prompts: Sequence[Prompt],
        settings: GenerationSettings,
        *,
        conversation: Conversation | None = None,
        keep_state: bool = False,
        threads: int | None = None,
    ) -> None:
        if settings.max_chars is not None and not has_text(tokenizer):
            raise ConfigError("max_chars counts characters, this run's tokenizer has none: use max_tokens")
        self.results = [Continuation(prompt.ids, []) for prompt in prompts]
        self.notes = [prompt.note for prompt in prompts if prompt.note]
        self._limit, self._keep_state = settings.max_chars, keep_state
        self._decoders = [tokenizer.stream_decoder() for _ in prompts] if has_text(tokenizer) else None
        self._fresh: dict[int, str] = {}
        self._unshown = ["" for _ in prompts]
        self.tokens: Generation = generate(
            model,
            [prompt.ids for prompt in prompts],
            settings,
            state=None if conversation is None else conversation.state.to(next(model.parameters()).device),
            history=None if conversation is None else [conversation.tokens],
            eos_id=tokenizer.eos_id,
            vocab_size=tokenizer.vocab_size,
            stop=self._decode,
            keep_state=keep_state,
            threads=threads,
        )
        self.notes += self.tokens.notes
        self._history = () if conversation is None else conversation.tokens
        for prompt, result, decoder in zip(prompts, self.results, self._decoders or (), strict=False):
            decoder.read(self._history)  # shown before, all but a character that is not complete
            result.opening = "" if conversation is None else conversation.unshown
            if prompt.given:
                result.opening += decoder.read(prompt.ids)

    def __iter__(self) -> Iterator[Piece]:
        for step in self.tokens:
            for row, token in zip(step.rows, step.tokens, strict=True):
                reason = step.finished.get(row)
                text = self._fresh.pop(row, "")
                if reason is not None and self._decoders is not None and not self._keep_state:
                    text += self._take(row, self._decoders[row].finish())
                self.results[row].reason = reason
                yield Piece(row, token, text, reason)

    def finish(self) -> list[Continuation]:
        """Run to the end and return the results."""
        for _ in self:
            pass
        return self.results

    def conversation(self, row: int = 0) -> Conversation:
        """The finished row as a conversation that can be saved and continued (needs `keep_state`)."""
        result = self.tokens.results[row]
        if result.state is None:
            raise ValueError("the row has not finished, or its state was not kept")
        tokens = (*self._history, *result.prompt, *result.tokens)
        return Conversation(result.state, tokens, self._unshown[row])

    def _decode(self, row: int, token: int) -> str | None:
        self.results[row].ids.append(token)
        if self._decoders is None:
            return None
        self._fresh[row] = self._take(row, self._decoders[row].push(token))
        return "max_chars" if self._limit is not None and len(self.results[row].text) >= self._limit else None

    def _take(self, row: int, text: str) -> str:
        """Add text to the row's result, as far as the limit on characters allows."""
        result = self.results[row]
        if self._limit is not None:
            room = self._limit - len(result.text)
            text, self._unshown[row] = text[:room], text[room:]
        result.text += text
        return text


def generate_text(run: LoadedRun, prompt: str | bytes = "", **settings: Any) -> str:
    """The text that follows a prompt (without the prompt).

    Args:
        run: a loaded run; its `[generation]` table gives what `settings` does not.
        settings: fields of `GenerationSettings`, for instance `max_tokens=50, temperature=0.8, seed=1`.

    Raises:
        ConfigError: a setting that does not exist or is out of its range.
        DataError: a prompt with characters outside the vocabulary.
    """
    chosen = GenerationSettings.from_config(run.config.generation, settings)
    encoded = encode_prompt(run.tokenizer, prompt)
    with run.machine.settings():
        return TextGeneration(run.model, run.tokenizer, [encoded], chosen).finish()[0].text


def as_json(tokenizer: Tokenizer, result: Continuation, *, row: int, settings: GenerationSettings) -> str:
    """One line of JSON, in ASCII: the prompt and what followed, as text (null where there is none) and as ids."""
    readable = has_text(tokenizer)
    record: Mapping[str, Any] = {
        "row": row,
        "seed": settings.seed,
        "prompt": result.opening if readable else None,
        "text": result.text if readable else None,
        "prompt_ids": list(result.prompt),
        "ids": result.ids,
        "reason": result.reason,
    }
    return json.dumps(record)
