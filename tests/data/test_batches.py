"""Batches are what the windows say, in any grouping, from any step, in a thread or without one."""

from __future__ import annotations

import gc
import threading
import time
import traceback
from pathlib import Path

import numpy as np
import pytest
import torch
from data_fakes import FakeSource, FakeTokenizer
from hypothesis import given, settings
from hypothesis import strategies as st

from wyrmling.data.batches import Batch, BatchLoader
from wyrmling.data.building import build_store, store_in_memory
from wyrmling.data.format import HEADER_BYTES
from wyrmling.data.order import IGNORED, EpochWindows, Order, RandomWindows, Windows
from wyrmling.data.prefetch import Prefetcher
from wyrmling.data.store import Split
from wyrmling.data.streams import Documents, StreamingWindows
from wyrmling.errors import DataError


def split_of(tokens: np.ndarray, vocab_size: int = 70_000, before: int = 0, name: str = "train") -> Split:
    """A split of a store in memory that starts `before` tokens into it."""
    ids = np.concatenate([np.full(before, vocab_size - 1), tokens])
    store = store_in_memory(FakeSource([ids]).pieces(), FakeTokenizer(vocab_size))
    return Split(store, before, len(store), name)


class GivenWindows:
    """An order of fixed windows."""

    def __init__(self, starts: list[int], lengths: list[int]) -> None:
        self._windows = Windows(np.array(starts, dtype=np.int64), np.array(lengths, dtype=np.int64))

    def windows(self, step: int, rows: np.ndarray) -> Windows:
        return self._windows


def order_of(kind: str, n: int, block: int, rows: int) -> Order:
    if kind == "random":
        return RandomWindows(n, block, 3, "train")
    if kind == "epochs":
        return EpochWindows(n, block, rows, 3, "train")
    return StreamingWindows(Documents.cut(n, 2 * block), block, rows, 3, "train")


KINDS = st.sampled_from(["random", "epochs", "streaming"])


@given(KINDS, st.integers(1, 12), st.integers(0, 60), st.integers(1, 6), st.integers(0, 5), st.data())
def test_targets_are_the_inputs_shifted_by_one(
    kind: str, block: int, extra: int, rows: int, before: int, data: st.DataObject
) -> None:
    """D8: with distinct tokens, y is x shifted by one; the rest is padding and ignored."""
    n = block + 1 + extra
    order = order_of(kind, n, block, rows)
    step = data.draw(st.integers(0, 30))
    windows = order.windows(step, np.arange(rows))
    batch = BatchLoader(split_of(np.arange(n) + 1000, before=before), order, block).batch(step, range(rows))
    assert batch.tokens.shape == batch.targets.shape == (rows, block)
    assert batch.tokens.dtype == batch.targets.dtype == batch.rows.dtype == torch.int64
    assert batch.rows.tolist() == list(range(rows))
    for row in range(rows):
        start, length = int(windows.starts[row]), int(windows.lengths[row])
        inputs = list(range(start + 1000, start + length + 1000))
        empty = block - length
        assert batch.tokens[row].tolist() == inputs + [0] * empty
        assert batch.targets[row].tolist() == [token + 1 for token in inputs] + [IGNORED] * empty
    assert batch.target_count == int((batch.targets != IGNORED).sum())
    assert (batch.reset is None) == (kind != "streaming")
    if batch.reset is not None and windows.reset is not None:
        assert batch.reset.dtype == torch.bool
        assert batch.reset.tolist() == windows.reset.tolist()


@pytest.mark.parametrize("extra", [1, 2])
def test_a_corpus_of_one_or_two_windows_is_read_whole(extra: int) -> None:
    """D1: block + 1 tokens are exactly one window, block + 2 are two."""
    block = 16
    loader = BatchLoader(
        split_of(np.arange(block + extra)), order_of("random", block + extra, block, 4), block
    )
    rows = {tuple(row) for step in range(10) for row in loader.batch(step, range(4)).targets.tolist()}
    assert rows == {tuple(range(first + 1, first + block + 1)) for first in range(extra)}


@given(KINDS, st.integers(1, 8), st.integers(1, 8), st.integers(0, 3), st.data())
def test_any_accumulation_gives_the_same_global_batch(
    kind: str, rows: int, block: int, step: int, data: st.DataObject
) -> None:
    """R1: the rows of a step do not depend on how they are grouped, or on which step was asked for before."""
    n = 4 * rows * block + 3
    split = split_of(np.arange(n))
    whole = BatchLoader(split, order_of(kind, n, block, rows), block).batch(step, range(rows))
    cuts = sorted(data.draw(st.sets(st.integers(1, rows - 1)))) if rows > 1 else []
    groups = [range(a, b) for a, b in zip([0, *cuts], [*cuts, rows], strict=True)]
    loader = BatchLoader(split, order_of(kind, n, block, rows), block)
    with loader.prefetching(step, groups, 0) as batches:
        parts = next(batches)
    assert torch.equal(torch.cat([part.tokens for part in parts]), whole.tokens)
    assert torch.equal(torch.cat([part.targets for part in parts]), whole.targets)
    assert torch.equal(torch.cat([part.rows for part in parts]), whole.rows)
    assert sum(part.target_count for part in parts) == whole.target_count


@pytest.mark.parametrize("kind", ["random", "epochs"])
@pytest.mark.parametrize("depth", [0, 1, 3])
def test_starting_at_any_step_continues_the_same_batches(kind: str, depth: int) -> None:
    """R1: 12 steps in one go equal 5 and then 7 more, beyond an epoch's end too; digests tell them apart."""
    split = split_of(np.arange(100))
    groups = [range(2), range(2, 3)]

    def digests(first: int, stop: int) -> list[list[str]]:
        loader = BatchLoader(split, order_of(kind, 100, 9, 3), 9)
        with loader.prefetching(first, groups, depth, stop=stop) as batches:
            return [[batch.digest() for batch in step] for step in batches]

    whole = digests(0, 12)
    assert whole == digests(0, 5) + digests(5, 12)
    assert len({digest for step in whole for digest in step}) == 24


def test_a_digest_depends_on_everything_in_the_batch() -> None:
    def batch() -> Batch:
        tokens = torch.arange(6).reshape(2, 3)
        return Batch(4, torch.arange(2), tokens.clone(), tokens + 1, 6, torch.tensor([True, False]))

    def altered(name: str) -> str:
        other = batch()
        if name == "step":
            other.step = 5
        elif name == "no reset":
            other.reset = None
        else:
            tensor = getattr(other, name)
            tensor.view(-1)[0] = ~tensor.view(-1)[0]
        return other.digest()

    digests = {batch().digest(), *map(altered, ["step", "rows", "tokens", "targets", "reset", "no reset"])}
    assert batch().digest() == batch().digest()
    assert len(digests) == 7
    assert len(batch().digest()) == 16
    transposed = batch()
    transposed.tokens = transposed.tokens.reshape(3, 2)
    assert transposed.digest() not in digests


@pytest.mark.parametrize("vocab_size", [200, 300, 70_000, (1 << 32) + 5])
def test_tokens_of_every_width_come_as_int64(tmp_path: Path, vocab_size: int) -> None:
    ids = np.array([0, vocab_size - 1, 1, vocab_size - 2, 2])
    store = build_store(tmp_path / "a.tokens", FakeSource([ids]), FakeTokenizer(vocab_size))
    batch = BatchLoader(Split(store, 0, 5, "train"), GivenWindows([0], [4]), 4).batch(0, [0])
    assert batch.tokens[0].tolist() == ids[:4].tolist()
    assert batch.targets[0].tolist() == ids[1:].tolist()


def test_a_batch_can_be_changed_without_changing_the_store(tmp_path: Path) -> None:
    store = build_store(tmp_path / "a.tokens", FakeSource([b"abcdef"]), FakeTokenizer())
    loader = BatchLoader(Split(store, 0, 6, "train"), GivenWindows([0], [5]), 5)
    before = loader.batch(0, [0]).digest()
    changed = loader.batch(0, [0])
    changed.tokens[:] = 7
    assert changed.targets[0].tolist() == [ord(c) for c in "bcdef"], "inputs and targets share no memory"
    assert loader.batch(0, [0]).digest() == before


@pytest.mark.parametrize(
    ("starts", "lengths", "message"),
    [
        ([3], [5], "the split has 8 tokens"),
        ([-1], [3], "windows reach"),
        ([0], [6], "do not fit blocks of 5"),
    ],
)
def test_windows_that_leave_the_split_or_the_block_are_refused(
    starts: list[int], lengths: list[int], message: str
) -> None:
    """A slice at the end of an array would silently be short."""
    with pytest.raises(ValueError, match=message):
        BatchLoader(split_of(np.arange(8)), GivenWindows(starts, lengths), 5).batch(0, [0])


def test_a_token_file_altered_under_the_run_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a.tokens"
    store = build_store(path, FakeSource([b"abcdef"]), FakeTokenizer(200))
    with path.open("r+b") as file:
        file.seek(HEADER_BYTES)
        file.write(b"\xff")
    loader = BatchLoader(Split(store, 0, 6, "train", "a.txt"), GivenWindows([0], [5]), 5)
    with pytest.raises(DataError, match=r"a\.txt: .*token 255"):
        loader.batch(0, [0])


def test_no_rows_are_an_empty_batch() -> None:
    batch = BatchLoader(split_of(np.arange(30)), order_of("epochs", 30, 4, 2), 4).batch(0, range(0))
    assert batch.tokens.shape == batch.targets.shape == (0, 4)
    assert batch.target_count == 0
    assert len(batch.digest()) == 16


@settings(max_examples=30)
@given(st.integers(0, 9), st.integers(0, 12), st.integers(0, 5))
def test_prefetching_gives_every_step_in_order(first: int, count: int, depth: int) -> None:
    with Prefetcher(lambda step: step * step, first, first + count, depth) as values:
        assert list(values) == [step * step for step in range(first, first + count)]
        assert list(values) == []


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_no_more_than_depth_values_are_made_ahead(depth: int) -> None:
    made: list[int] = []

    def make(step: int) -> int:
        made.append(step)
        return step

    with Prefetcher(make, 0, None, depth) as values:
        for taken in range(1, 20):
            next(values)
            assert len(made) <= taken + depth
        deadline = time.monotonic() + 10
        while len(made) < taken + depth and time.monotonic() < deadline:
            time.sleep(0.001)
        assert len(made) == taken + depth


@pytest.mark.parametrize("depth", [0, 1, 4])
def test_an_error_reaches_the_consumer_after_the_values_before_it(depth: int) -> None:
    """With the line that failed in its traceback; asking again gives the error again, not silence."""

    def make_or_fail(step: int) -> int:
        if step == 3:
            raise ValueError("step 3 is bad")
        return step

    with Prefetcher(make_or_fail, 0, None, depth) as values:
        assert [next(values) for _ in range(3)] == [0, 1, 2]
        for _ in range(2):
            with pytest.raises(ValueError, match="step 3 is bad") as caught:
                next(values)
        assert "make_or_fail" in "".join(traceback.format_exception(caught.value))


def prefetch_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "prefetch"]


@pytest.mark.parametrize("taken", [0, 1, 5])
def test_a_consumer_may_stop_early(taken: int) -> None:
    """Leaving the block ends the thread, whether it waits for room or not; closing again does nothing."""
    with Prefetcher(lambda step: step, 0, None, 2) as values:
        for _ in range(taken):
            next(values)
    assert prefetch_threads() == []
    values.close()
    with pytest.raises(StopIteration):
        next(values)


def test_dropping_the_iterator_ends_the_thread() -> None:
    values = Prefetcher(lambda step: step, 0, None, 2)
    assert next(values) == 0
    assert len(prefetch_threads()) == 1
    thread = prefetch_threads()[0]
    del values
    gc.collect()
    thread.join(10)
    assert not thread.is_alive()


def test_an_error_in_the_consumer_is_not_hidden_by_closing() -> None:
    def consume() -> None:
        with Prefetcher(lambda step: step, 0, None, 3) as values:
            next(values)
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        consume()
    assert prefetch_threads() == []


def test_closing_wakes_a_consumer_in_another_thread() -> None:
    release = threading.Event()
    values = Prefetcher(lambda step: release.wait(30), 0, None, 1)
    seen: list[object] = []
    consumer = threading.Thread(target=lambda: seen.extend(values))
    consumer.start()
    closer = threading.Thread(target=values.close)
    closer.start()
    consumer.join(10)
    assert not consumer.is_alive()
    assert seen == []
    release.set()
    closer.join(10)
    assert not closer.is_alive()


def test_a_negative_depth_is_refused() -> None:
    with pytest.raises(ValueError, match="depth"):
        Prefetcher(lambda step: step, 0, None, -1)
