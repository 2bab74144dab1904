"""The part of a source that a vocabulary may be built from: the text that training will see, and no more.

A split by ratio cuts the stream of tokens, which does not exist before there is a vocabulary. So the cut is
made in characters (with one more for each document's EOS, where the vocabulary will have one): for a
vocabulary of characters that is the very cut that the tokens get (exactly so without `normalize`, which can
change how many characters there are); for byte pairs it is close to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from ..errors import DataError
from ..text.sources import Piece, Source


def between_documents(split: str, documents: int) -> bool:
    """Whether `[dataset]` with this `split` and so many documents is cut between two of them."""
    return split == "documents" or (split == "auto" and documents > 1)


def documents_for_training(documents: int, ratio: float, where: str) -> int:
    """How many of `documents` train: round(documents x ratio), with at least one on either side of the cut.

    Raises:
        DataError: a single document cannot be split.
    """
    if ratio >= 1:
        return documents
    if documents < 2:
        raise DataError(
            f'{where}: dataset.split = "documents" needs two documents or more, found {documents}; '
            'use split = "ratio", or train_split_ratio = 1.0'
        )
    return min(max(round(documents * ratio), 1), documents - 1)


def tokens_for_training(tokens: int, ratio: float) -> int:
    """How many of `tokens` train: round(tokens x ratio)."""
    return round(tokens * ratio)


def training_pieces(
    source: Source, *, split: str, ratio: float, has_eos: bool, where: str
) -> Iterator[Piece]:
    """The pieces of the training part, in two passes over the source: one counts, one gives.

    Args:
        split: as in `[dataset]`.
        has_eos: whether every document will be followed by one more token.

    Raises:
        DataError: the split is impossible (see `documents_for_training`), or the source refuses.
    """
    documents = characters = 0
    for piece in source.pieces():
        documents += piece.documents
        characters += _characters(piece)
    if between_documents(split, documents):
        yield from _first_documents(source, documents_for_training(documents, ratio, where))
    else:
        total = characters + documents * has_eos
        yield from _first_characters(source, tokens_for_training(total, ratio), has_eos)


def _first_documents(source: Source, wanted: int) -> Iterator[Piece]:
    left = wanted
    for piece in source.pieces():
        for part in [piece] if piece.documents <= left else piece.alone():
            left -= part.documents
            if left < 0:
                return
            yield part


def _first_characters(source: Source, wanted: int, has_eos: bool) -> Iterator[Piece]:
    left = wanted + has_eos  # the first document has none before it
    for piece in source.pieces():
        fits = _characters(piece) + piece.documents * has_eos <= left
        for part in [piece] if fits else piece.alone():
            left -= part.documents * has_eos
            if left <= 0:
                return
            starts = _character_starts(part)
            if len(starts) > left:
                yield replace(part, data=part.data[: starts[left]])
                return
            left -= len(starts)
            yield part


def _characters(piece: Piece) -> int:
    data = np.frombuffer(piece.data, dtype=np.uint8)
    return int(np.count_nonzero((data & 0xC0) != 0x80))


def _character_starts(piece: Piece) -> npt.NDArray[np.int64]:
    """Offsets of the bytes that begin a UTF-8 character (every byte that does not continue one)."""
    data = np.frombuffer(piece.data, dtype=np.uint8)
    return np.flatnonzero((data & 0xC0) != 0x80)
