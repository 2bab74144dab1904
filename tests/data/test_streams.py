"""The streaming order: every target once per epoch, whole documents in order, resets where they begin."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wyrmling.data.streams import Documents, StreamingWindows

LENGTHS = st.lists(st.integers(1, 30), min_size=1, max_size=12).filter(lambda lengths: max(lengths) > 1)


def starts_of(lengths: list[int]) -> np.ndarray:
    return np.cumsum([0, *lengths[:-1]])


def stream(order: StreamingWindows, row: int, epoch: int) -> list[tuple[int, int, bool]]:
    """(start, length, reset) of every step of a row in an epoch."""
    found = []
    for step in range(epoch * order.steps_per_epoch, (epoch + 1) * order.steps_per_epoch):
        windows = order.windows(step, np.array([row]))
        assert windows.reset is not None
        found.append((int(windows.starts[0]), int(windows.lengths[0]), bool(windows.reset[0])))
    return found


@given(LENGTHS, st.integers(1, 9), st.integers(1, 6), st.integers(0, 10**9), st.integers(0, 3))
def test_every_target_once_per_epoch_and_states_follow_their_documents(
    lengths: list[int], block: int, rows: int, seed: int, epoch: int
) -> None:
    starts = starts_of(lengths)
    order = StreamingWindows(Documents.of(starts, sum(lengths)), block, rows, seed, "train")
    read: list[int] = []
    for row in range(rows):
        at: int | None = None
        for start, length, reset in stream(order, row, epoch):
            if not reset:  # goes on exactly where the row stood, and the row's last block was full
                assert start == at
            elif length and start not in starts:
                assert at is None, "a reset inside a document, other than where a share begins"
            at = start + length
            read += range(start + 1, start + length + 1)
    expected = [t for s, n in zip(starts.tolist(), lengths, strict=True) for t in range(s + 1, s + n)]
    assert sorted(read) == expected


@given(LENGTHS, st.integers(1, 9), st.integers(1, 6), st.integers(0, 10**6))
def test_rows_are_the_same_however_they_are_asked_for(
    lengths: list[int], block: int, rows: int, step: int
) -> None:
    documents = Documents.of(starts_of(lengths), sum(lengths))
    together = StreamingWindows(documents, block, rows, 5, "train").windows(step, np.arange(rows))
    again = StreamingWindows(documents, block, rows, 5, "train")
    for row in range(rows):
        alone = again.windows(step, np.array([row]))
        for name in ("starts", "lengths", "reset"):
            assert getattr(alone, name)[0] == getattr(together, name)[row]


@given(st.integers(2, 200), st.integers(1, 50))
def test_a_text_without_documents_is_cut_into_pieces_that_lose_no_target(tokens: int, piece: int) -> None:
    documents = Documents.of(np.zeros(1, dtype=np.int64), tokens, piece)
    reached = [
        t
        for start, n in zip(documents.starts.tolist(), documents.targets.tolist(), strict=True)
        for t in range(start + 1, start + n + 1)
    ]
    assert reached == list(range(1, tokens))
    assert (documents.targets[:-1] == piece).all()


@given(LENGTHS, st.integers(1, 40))
def test_short_documents_are_joined(lengths: list[int], shortest: int) -> None:
    if len(lengths) == 1:
        return
    documents = Documents.of(starts_of(lengths), sum(lengths), shortest)
    assert set(documents.starts.tolist()) <= set(starts_of(lengths).tolist())
    assert (documents.targets[:-1] + 1 >= shortest).all()


def test_rows_reset_apart() -> None:
    """The described loader has one flag for a batch; here each row has its own."""
    order = StreamingWindows(Documents.of(np.array([0, 9, 14]), 27), 4, 2, 1, "train")
    resets = np.array([order.windows(step, np.arange(2)).reset for step in range(order.steps_per_epoch)])
    assert resets[0].all()
    assert (resets[1:, 0] != resets[1:, 1]).any()


def test_the_described_loader_case() -> None:
    """65 tokens in pieces of 8, blocks of 4: every document is two blocks, so resets alternate in every row."""
    documents = Documents.of(np.zeros(1, dtype=np.int64), 65, 8)
    order = StreamingWindows(documents, 4, 2, 7, "train")
    resets = [order.windows(step, np.arange(2)).reset.tolist() for step in range(4)]  # type: ignore[union-attr]
    assert resets == [[True, True], [False, False], [True, True], [False, False]]
    other = StreamingWindows(documents, 4, 2, 8, "train")
    assert [order.windows(s, np.arange(2)).starts.tolist() for s in range(8)] != [
        other.windows(s, np.arange(2)).starts.tolist() for s in range(8)
    ]


def test_epochs_differ_and_a_given_seed_never_changes() -> None:
    order = StreamingWindows(Documents.of(np.arange(0, 100, 10), 100), 5, 2, 1337, "train")
    assert [s for s, _, _ in stream(order, 0, 0)] != [s for s, _, _ in stream(order, 0, 1)]
    assert order.windows(0, np.arange(2)).starts.tolist() == [30, 10]


def test_a_text_without_any_target_is_refused() -> None:
    with pytest.raises(ValueError, match="3 tokens hold no target"):
        Documents.of(np.array([0, 1, 2]), 3)
    with pytest.raises(ValueError, match="lie outside"):
        StreamingWindows(Documents.of(np.array([0]), 9), 2, 2, 1, "train").windows(0, np.array([2]))
