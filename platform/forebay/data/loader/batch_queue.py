"""Queue of finished batches, bounded by bytes.

Between the gathering thread and the trainer.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from forebay.data.loader.batch import Batch
from forebay.errors import LoaderClosed


class BatchQueue:
    """First-in-first-out queue of batches.

    Holds at most `limit_bytes`, or one batch that is larger.

    A full queue wakes its producer once a quarter of it is free: a thread woken for each batch costs the trainer more
    than everything else in `get`.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        # Taken without the condition where no side waits: methods of the condition are written in Python, and a trainer
        # that comes back from its step has none of their code in the CPU's cache.
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._num_waiting = 0
        self._room_below = 0
        """Held bytes from which on the producer need not be woken."""
        self._items: deque[tuple[Batch | BaseException | None, int]] = deque()
        self._closed = False
        self.held_bytes = 0

    def __len__(self) -> int:
        """Batches that the trainer can take now."""
        return len(self._items)

    @property
    def closed(self) -> bool:
        return self._closed

    def put(self, item: Batch | BaseException | None, num_bytes: int = 0) -> None:
        """Wait for room and append a batch.

        Or the error that ended the epoch early, or None at its end.
        """
        with self._lock:
            if self.held_bytes and self.held_bytes + num_bytes > self._limit_bytes:
                self._room_below = max(self._limit_bytes - max(num_bytes, self._limit_bytes // 4), 0)
                self._wait(lambda: self.held_bytes <= self._room_below)
            if self._closed:
                raise LoaderClosed("The loader was closed while it prepared a batch.")
            self._items.append((item, num_bytes))
            self.held_bytes += num_bytes
            self._wake()

    def get(self) -> Batch | None:
        """Return the next batch, or None after the last.

        Raises the error that ended the epoch, or `LoaderClosed`.
        """
        with self._lock:
            if not self._items:
                self._wait(lambda: bool(self._items))
            if not self._items:
                raise LoaderClosed(
                    "The loader was closed, or moved by seek(), during this iteration. Start a new iteration."
                )
            item, num_bytes = self._items.popleft()
            self.held_bytes -= num_bytes
            if self.held_bytes <= self._room_below:
                self._wake()
        if isinstance(item, BaseException):
            raise item
        return item

    def wait_until_taken(self, timeout_s: float) -> bool:
        """Wait until the queue is empty or closed.

        Returns False after `timeout_s` seconds.
        """
        with self._lock:
            self._room_below = 0
            self._wait(lambda: not self._items, timeout_s)
            return self._closed or not self._items

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._items.clear()
            self.held_bytes = 0
            self._wake()

    def _wait(self, condition: Callable[[], bool], timeout_s: float | None = None) -> None:
        self._num_waiting += 1
        try:
            self._changed.wait_for(lambda: self._closed or condition(), timeout_s)
        finally:
            self._num_waiting -= 1

    def _wake(self) -> None:
        if self._num_waiting:
            self._changed.notify_all()
