"""How much memory blocks take that are on their way out of this process."""

from __future__ import annotations

import threading
import weakref

from forebay.errors import Cancelled
from forebay.transform.block import Block


class InFlightBytes:
    """Counts the bytes of blocks for as long as one of their arrays is alive. Safe for threads."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._closed = False
        self.now = 0
        """Bytes that are alive."""
        self.most = 0
        """The most there ever were."""

    def count(self, block: Block) -> None:
        """From now until its arrays are gone, `block` counts."""
        nbytes = block.nbytes  # before the lock: what it runs may collect garbage, and call `_gone` in between
        with self._changed:
            self.now += nbytes
            self.most = max(self.most, self.now)
        for array in block.arrays.values():
            weakref.finalize(array, self._gone, array.nbytes).atexit = False

    def wait(self, most_bytes: int, deadline_s: float) -> None:
        """Until no more than `most_bytes` are alive, or `deadline_s` is over.

        Raises `Cancelled` once closed.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self.now <= most_bytes, deadline_s)
            if self._closed:
                raise Cancelled("the data workers were told to end")

    def close(self) -> None:
        """End the waiting."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _gone(self, nbytes: int) -> None:
        with self._changed:
            self.now -= nbytes
            self._changed.notify_all()
