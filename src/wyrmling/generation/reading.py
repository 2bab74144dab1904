"""What the live rows have read: a `State` while several tokens are read at a time, a `Decoder` while it is one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..model.dragon import Model
from ..model.state import State
from .decoding import Decoder, can_decode
from .settings import GenerationSettings


class Group(NamedTuple):
    """Rows that read equally many tokens, from what they have read before or from nothing.

    Attributes:
        fresh: whether they start from nothing.
        places: where the rows stand among the live ones.
        tokens: int64 [R, T], T >= 1.
    """

    fresh: bool
    places: list[int]
    tokens: Tensor


class Reader:
    """Reads tokens for the live rows and holds what they have read.

    Rows that all read one token go through a `Decoder` where there is one for the model; everything else goes
    through the model, in chunks. A state that was handed in is never written to.
    """

    def __init__(self, model: torch.nn.Module, state: State | None, settings: GenerationSettings) -> None:
        self._model, self._settings = model, settings
        self._device = next(model.parameters()).device
        self._state = state
        self._own = False  # whether the state may be written to
        self._decoder: Decoder | None = None
        self._decoding = False  # where the rows' past is: in the decoder, or in the state

    def read(self, groups: Sequence[Group]) -> Tensor:
        """Let every group read its tokens; the rows then stand in the order of the groups.

        Returns: scores of the next token of every row, [R, V].
        """
        if len(groups) == 1 and groups[0].tokens.shape[1] == 1 and can_decode(self._model):
            return self._decode(groups[0])
        before = self._as_state()
        hiddens, states = [], []
        for group in groups:
            state = None if group.fresh else before
            if state is not None and len(groups) > 1:
                state = state.select(group.places)
            for chunk in group.tokens.split(self._settings.prompt_chunk, dim=1):
                hidden, state = self._model(chunk.to(self._device), state)
            assert state is not None
            hiddens.append(hidden[:, -1])
            states.append(state)
        self._state, self._own = states[0] if len(states) == 1 else State.cat(states), True
        hidden = hiddens[0] if len(hiddens) == 1 else torch.cat(hiddens)
        scores: Tensor = self._model.logits(hidden)  # type: ignore[operator]
        return scores

    def state(self, place: int) -> State:
        """The state of one row, a value of its own."""
        if self._decoding and self._decoder is not None:
            return self._decoder.state([place])
        assert self._state is not None
        return self._state.select([place])

    def keep(self, places: Sequence[int]) -> None:
        """Let all rows but these leave."""
        if self._decoding and self._decoder is not None:
            self._decoder.select(places)
        elif self._state is not None:
            self._state, self._own = self._state.select(places) if places else None, True

    def _decode(self, group: Group) -> Tensor:
        decoder = self._decoder
        if decoder is None:
            assert isinstance(self._model, Model)
            decoder = self._decoder = Decoder(
                self._model, weights=self._settings.weight_dtype, state=self._settings.state_dtype
            )
        if group.fresh:
            decoder.start(len(group.places))
        elif not self._decoding:
            assert self._state is not None
            decoder.load(self._state, copy=not self._own)
        self._decoding, self._state = True, None
        return decoder.logits(decoder.step(group.tokens[:, 0]))

    def _as_state(self) -> State | None:
        if self._decoding and self._decoder is not None:
            self._state, self._own = self._decoder.state(), True
            self._decoder.start(0)  # lets go of what it held
        self._decoding = False
        return self._state
