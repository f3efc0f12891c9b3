"""Batches on a device, copied one ahead.

The copy of the next one runs while the trainer uses this one.
"""

from __future__ import annotations

from typing import Protocol

from forebay.data.loader.batch import Batch
from forebay.data.loader.device.copies import DeviceCopies
from forebay.data.loader.device.in_flight import PROCESS_RING, CopyRing
from forebay.runtime.metrics import Counters


class HostBatches(Protocol):
    """Finished batches in main memory. `BatchQueue` is one."""

    def get(self) -> Batch | None:
        """Wait for the next batch. None after the last."""
        ...

    def get_if_ready(self) -> Batch | None:
        """Next batch if it is finished.

        Else None, also at the end and before an error.
        """
        ...


class DeviceFeed:
    """Copies finished batches to a device, one batch ahead.

    Waits for no copy but where the ring is full.

    Args:
        host: Batches to copy.
        copies: Device to copy them to.
        counters: Receives `copy_s` and `wait_s`.
        ring: Holds host batches until they are copied.
    """

    def __init__(
        self, host: HostBatches, copies: DeviceCopies, counters: Counters, ring: CopyRing = PROCESS_RING
    ) -> None:
        self._host, self._copies, self._counters, self._ring = host, copies, counters, ring
        self._ahead: Batch | None = None

    def next(self) -> Batch | None:
        """Return the next batch on the device.

        None after the last. Raises the error that ended the epoch early.
        """
        batch, self._ahead = self._ahead, None
        if batch is None:
            with self._counters.timed("wait_s"):
                host = self._host.get()
            if host is None:
                return None
            batch = self._start(host)
        # Never waited for: a trainer that is faster than the data must get its batch at once.
        ahead = self._host.get_if_ready()
        if ahead is not None:
            self._ahead = self._start(ahead)
        with self._counters.timed("copy_s"):
            return self._copies.hand_out(batch)

    def _start(self, host: Batch) -> Batch:
        with self._counters.timed("copy_s"):
            self._ring.wait_for_slot()
            batch = self._copies.start(host)
            if batch.copied is not None:
                self._ring.hold(batch.copied, host)
            return batch
