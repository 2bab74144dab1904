"""Values made ahead of time by one thread, in order, never more than a few."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Generic, Self, TypeVar

T = TypeVar("T")

_PATIENCE = 5.0
"""Seconds that closing waits for a value that is being made; a slower thread dies with the process."""


class Prefetcher(Generic[T]):
    """Iterates over make(first), make(first + 1), ... before `stop`, made by a thread at most `depth` ahead.

    What `make` raises is raised in the consumer, with its traceback, after the values before it. Closing
    (by `close`, by leaving a `with` block, or by dropping the last reference) ends the thread; a consumer
    may stop at any time. With depth 0 there is no thread.
    """

    def __init__(self, make: Callable[[int], T], first: int, stop: int | None, depth: int) -> None:
        if depth < 0:
            raise ValueError(f"depth must be at least 0, got {depth}")
        self._make = make
        self._next = first
        self._stop = stop
        self._channel: _Channel[T] | None = None
        self._closed = False
        if depth:
            # The thread knows the channel and not this object, so that dropping this object ends the thread.
            self._channel = channel = _Channel[T](depth)
            self._thread = threading.Thread(
                target=_fill, args=(channel, make, first, stop), name="prefetch", daemon=True
            )
            weakref.finalize(self, channel.close)
            self._thread.start()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        if self._closed or (self._stop is not None and self._next >= self._stop):
            raise StopIteration
        value = self._make(self._next) if self._channel is None else self._channel.take()
        self._next += 1
        return value

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the iteration and the thread. Idempotent."""
        self._closed = True
        if self._channel is not None:
            self._channel.close()
            if self._thread is not threading.current_thread():
                self._thread.join(_PATIENCE)


class _Channel(Generic[T]):
    """A bounded queue from one producer to one consumer that either side can end."""

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._values: deque[T] = deque()
        self._error: BaseException | None = None
        self._closed = False
        self._changed = threading.Condition()

    def wait_for_room(self) -> bool:
        """Wait until another value is wanted; False when nobody wants more."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or len(self._values) < self._depth)
            return not self._closed

    def put(self, value: T) -> None:
        """Append a value that there is room for."""
        with self._changed:
            if not self._closed:
                self._values.append(value)
            self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """Raise `error` in the consumer once it has taken everything before it."""
        with self._changed:
            self._error = error
            self._changed.notify_all()

    def take(self) -> T:
        """Wait for the next value."""
        with self._changed:
            self._changed.wait_for(lambda: self._values or self._error is not None or self._closed)
            if self._values:
                value = self._values.popleft()
                self._changed.notify_all()
                return value
            if self._error is not None:
                raise self._error
            raise StopIteration

    def close(self) -> None:
        """Drop what is waiting and let both sides go."""
        with self._changed:
            self._closed = True
            self._values.clear()
            self._changed.notify_all()


def _fill(channel: _Channel[T], make: Callable[[int], T], first: int, stop: int | None) -> None:
    step = first
    try:
        while (stop is None or step < stop) and channel.wait_for_room():
            channel.put(make(step))
            step += 1
    except BaseException as error:
        channel.fail(error)
