"""Ring of host batches that are being copied."""

from __future__ import annotations

import threading
from collections import deque
from typing import Protocol

SLOTS = 4


class CopyEvent(Protocol):
    """Event in a device's stream, after a copy.

    `torch.cuda.Event` is one.
    """

    def query(self) -> bool:
        """Whether the copy has ended."""
        ...

    def synchronize(self) -> None:
        """Wait until the copy has ended."""
        ...


class CopyRing:
    """Ring of host batches, held until they are copied.

    Keeps host memory from being reused before its copy has ended.

    A copy from page-locked memory returns before it is done, and the memory of a batch returns to its pool with the
    last reference to it. So the ring holds a reference until the event of the copy has completed.
    """

    def __init__(self, slots: int = SLOTS) -> None:
        self._slots = slots
        self._held: deque[tuple[CopyEvent, object]] = deque()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._held)

    def wait_for_slot(self) -> None:
        """Release what is copied.

        Asks the oldest copies, which mostly end first: each question hands the GIL over. Asks all if no slot is free,
        and then waits for the oldest copy.
        """
        with self._lock:
            while self._held and self._held[0][0].query():
                self._held.popleft()
            if len(self._held) >= self._slots:
                self._held = deque(slot for slot in self._held if not slot[0].query())
            while len(self._held) >= self._slots:
                self._held[0][0].synchronize()
                self._held.popleft()

    def hold(self, event: CopyEvent, host: object) -> None:
        """Keep `host` until `event` has completed."""
        with self._lock:
            self._held.append((event, host))


PROCESS_RING = CopyRing()
"""Ring of this process. It outlives every loader: one may be closed while its last copies run."""
