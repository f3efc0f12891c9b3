"""Memory of blocks on their way out of this process."""

from __future__ import annotations

import threading
import weakref

from forebay.data.transform.block import Block
from forebay.errors import Cancelled


class InFlightBytes:
    """Counts the bytes of blocks until their arrays are freed. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._closed = False
        self.current = 0
        """Bytes in memory now."""
        self.peak = 0
        """Largest value of `current`."""

    def count(self, block: Block) -> None:
        """Count `block` until its arrays are freed."""
        nbytes = block.nbytes  # before the lock: it may trigger a garbage collection that calls `_subtract`
        with self._changed:
            self.current += nbytes
            self.peak = max(self.peak, self.current)
        for array in block.arrays.values():
            weakref.finalize(array, self._subtract, array.nbytes).atexit = False

    def wait_below(self, most_bytes: int, deadline_s: float) -> None:
        """Wait at most `deadline_s` until no more than `most_bytes` are in memory. Raises `Cancelled` once closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self.current <= most_bytes, deadline_s)
            if self._closed:
                raise Cancelled("the data workers were closed")

    def close(self) -> None:
        """End all waits with `Cancelled`."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _subtract(self, nbytes: int) -> None:
        with self._changed:
            self.current -= nbytes
            self._changed.notify_all()
