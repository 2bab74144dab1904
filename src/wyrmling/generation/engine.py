"""Tokens after prompts, for a batch of rows: prompts in chunks, then one token per row and round.

1. Prompts of unequal length are read in groups of equal length, in chunks of `prompt_chunk` tokens, and the
   states of the groups are joined by row.
2. Each round draws one token for every row that is still running; rows that have finished leave the batch. On the
   CPU a `Decoder` reads these single tokens; it gives the values of the model.
3. The state of a finished row has read all of its tokens but the last; that one is read when the row goes on.
4. Without a window the state carries everything since the beginning. It does not grow, so there is no limit.
5. A window of W tokens is a read of the last w tokens from an empty state. w follows from the number n of tokens
   before the next one (`window_length`): w = n up to W; then it falls to ceil(W / 2), climbs token by token to W,
   and falls again. So a new token costs about two tokens' reading, not W, and w is never below W / 2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..errors import DataError
from ..model.state import State
from ..numerics.settings import own_settings
from .mode import evaluating
from .reading import Group, Reader
from .sampling import draws, sample
from .settings import GenerationSettings

StopRule = Callable[[int, int], str | None]
"""Called with (row, token) after every draw; a reason ends the row."""


@dataclass(frozen=True)
class Step:
    """One round: the tokens drawn, and the rows that ended with them."""

    rows: tuple[int, ...]
    tokens: tuple[int, ...]
    finished: dict[int, str]


@dataclass
class Result:
    """One row: its prompt, what followed, and why it ended (None while it runs).

    `state` (if asked for) has read everything but the last token.
    """

    prompt: list[int]
    tokens: list[int] = field(default_factory=list)
    reason: str | None = None
    state: State | None = None


@dataclass
class _Row:
    index: int
    tokens: list[int]  # all that is known, from the history on
    unread: int  # of these, how many the state has not read
    seen: int  # tokens the state has read since it was empty
    position: int  # tokens before the next one, those from before a history included


class Generation:
    """A generation in progress: iterate over it for `Step`s, read `results` at any time.

    Between two steps the model is in the mode it was in before, the process has its own settings, and nothing
    but what the rows have read is held.
    Where a decoder reads, its weights are those that the model had when the first single token was read.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        rows: list[_Row],
        prompts: Sequence[Sequence[int]],
        settings: GenerationSettings,
        state: State | None,
        *,
        eos_id: int | None,
        vocab_size: int | None,
        stop: StopRule | None,
        keep_state: bool,
        threads: int | None,
    ) -> None:
        self.settings = settings
        self.results = [Result(list(prompt)) for prompt in prompts]
        self.notes = _window_notes(rows, settings.window)
        self._model = model
        self._reader = Reader(model, state, self.settings)
        self._live = rows
        self._eos_id = eos_id if settings.stop_at_eos else None
        self._vocab_size = vocab_size
        self._stop = stop
        self._keep_state = keep_state
        self._threads = threads

    def __iter__(self) -> Iterator[Step]:
        while self._live:
            with own_settings(self._threads), evaluating(self._model):
                tokens = self._next_tokens()
                step = self._accept(tokens)
            yield step

    def finish(self) -> list[Result]:
        """Run to the end and return the results."""
        for _ in self:
            pass
        return self.results

    def _next_tokens(self) -> list[int]:
        scores = self._read()[..., : self._vocab_size]
        assert self.settings.seed is not None
        uniform = draws(
            self.settings.seed, [row.index for row in self._live], [row.position for row in self._live]
        )
        return sample(scores.detach().cpu().to(torch.float64).numpy(), self.settings, uniform).tolist()

    def _accept(self, tokens: list[int]) -> Step:
        finished = {}
        for row, token in zip(self._live, tokens, strict=True):
            row.tokens.append(token)
            row.unread += 1
            row.position += 1
            result = self.results[row.index]
            result.tokens.append(token)
            reason = self._reason_to_stop(row.index, token)
            if reason is not None:
                result.reason = finished[row.index] = reason
        step = Step(tuple(row.index for row in self._live), tuple(tokens), finished)
        if finished:
            self._drop(finished)
        return step

    def _reason_to_stop(self, index: int, token: int) -> str | None:
        asked = None if self._stop is None else self._stop(index, token)
        if token == self._eos_id:
            return "eos"
        if asked is not None:
            return asked
        limit = self.settings.max_tokens
        return "max_tokens" if limit is not None and len(self.results[index].tokens) >= limit else None

    def _drop(self, finished: dict[int, str]) -> None:
        if self._keep_state:
            for place, row in enumerate(self._live):
                if row.index in finished:
                    self.results[row.index].state = self._reader.state(place)
        places = [place for place, row in enumerate(self._live) if row.index not in finished]
        self._live = [self._live[place] for place in places]
        self._reader.keep(places)

    def _read(self) -> Tensor:
        """Let every live row read its unread tokens; return the scores that follow, [R, V].

        Rows that read the same number of tokens, from what they have read or from nothing, go together; the
        live rows are put in the order of the groups.
        """
        plans: dict[tuple[bool, int], list[int]] = {}
        for place, row in enumerate(self._live):
            plans.setdefault(self._plan(row), []).append(place)
        groups = []
        for (fresh, count), places in plans.items():
            members = [self._live[place] for place in places]
            tokens = torch.tensor([row.tokens[-count:] for row in members], dtype=torch.int64)
            groups.append(Group(fresh, places, tokens))
        scores = self._reader.read(groups)
        for group in groups:
            count = group.tokens.shape[1]
            for row in (self._live[place] for place in group.places):
                row.seen = count if group.fresh else row.seen + count
                row.unread = 0
        self._live = [self._live[place] for group in groups for place in group.places]
        return scores

    def _plan(self, row: _Row) -> tuple[bool, int]:
        """(whether to start from an empty state, how many of the row's last tokens to read)."""
        window = self.settings.window
        wanted = row.position if window is None else window_length(row.position, window)
        if row.seen + row.unread != wanted:
            return True, wanted
        return row.seen == 0, row.unread


def generate(
    model: torch.nn.Module,
    prompts: Sequence[Sequence[int]],
    settings: GenerationSettings,
    *,
    state: State | None = None,
    history: Sequence[Sequence[int]] | None = None,
    eos_id: int | None = None,
    vocab_size: int | None = None,
    stop: StopRule | None = None,
    keep_state: bool = False,
    threads: int | None = None,
) -> Generation:
    """Continue prompts.

    Args:
        model: `model(tokens, state) -> (hidden, state)` and `model.logits(hidden)`.
        prompts: token ids of each row; a prompt may be empty only where there is a history.
        state: what the rows have read before; None is nothing. It is never changed.
        history: with `state`, the tokens of each row before its prompt, of which the state has read all but
            the last. Without it the prompts follow directly on what the state has read.
        eos_id: the token that ends a document; None if there is none.
        vocab_size: draw only ids below it (a model may score more tokens than its tokenizer has).
        stop: a further reason to end a row.
        keep_state: keep the final state of every row in its result.
        threads: that compute; None: as many as the process has set.

    Returns: an iterator over `Step`s; nothing is computed before the first is asked for.

    Raises:
        DataError: an empty prompt, or a token id outside the vocabulary.
        ValueError: numbers of rows that disagree, or a window over a state whose history is not known.
    """
    if state is not None and state.rows != len(prompts):
        raise ValueError(f"the state has {state.rows} rows for {len(prompts)} prompts")
    if history is not None and (state is None or len(history) != len(prompts) or not all(history)):
        raise ValueError("a history needs a state and at least one token for every prompt")
    if settings.window is not None and state is not None and history is None:
        raise ValueError("a sliding window over a state needs the history that the state has read")
    rows = []
    for index, prompt in enumerate(prompts):
        before = [] if history is None else list(history[index])
        seen = 0 if state is None else int(state.position[index])
        unread = len(prompt) + (1 if before else 0)
        if unread == 0:
            raise DataError(f"prompt {index + 1} is empty: there is no token to start from")
        _check_ids(prompt, index, vocab_size)
        position = len(before) + len(prompt) if before else seen + len(prompt)
        rows.append(_Row(index, [*before, *prompt], unread, seen, position))
    return Generation(
        model,
        rows,
        prompts,
        settings.seeded(),
        state,
        eos_id=eos_id,
        vocab_size=vocab_size,
        stop=stop,
        keep_state=keep_state,
        threads=threads,
    )


def window_length(n: int, window: int) -> int:
    """How many of n >= 1 tokens the state has read when the window is `window` tokens.

    n up to the window; beyond it, from ceil(window / 2) to the window, one more with every token, and again.
    """
    if n <= window:
        return n
    half = -(-window // 2)
    return half + (n - window - 1) % (window - half + 1)


def _window_notes(rows: list[_Row], window: int | None) -> list[str]:
    if window is None:
        return []
    return [
        f"prompt {row.index + 1} has {row.position} tokens, the window {window}: "
        f"its last {window_length(row.position, window)} are read"
        for row in rows
        if row.position > window
    ]


def _check_ids(prompt: Sequence[int], index: int, vocab_size: int | None) -> None:
    for place, token in enumerate(prompt):
        if token < 0 or (vocab_size is not None and token >= vocab_size):
            limit = "" if vocab_size is None else f" and below {vocab_size}"
            raise DataError(f"prompt {index + 1}: token {place + 1} is {token}, it must be at least 0{limit}")
