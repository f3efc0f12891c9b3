"""Copies of finished batches to a device.

The gathering thread starts them, and the trainer only lets its stream wait for them.
"""

from __future__ import annotations

from forebay.data.loader.batch import Batch
from forebay.data.loader.device.copies import DeviceCopies
from forebay.data.loader.device.in_flight import PROCESS_RING, CopyRing


class DeviceFeed:
    """Starts copies in one thread, and hands batches out in another.

    Args:
        copies: Device to copy batches to.
        ring: Holds host batches until they are copied.
    """

    def __init__(self, copies: DeviceCopies, ring: CopyRing = PROCESS_RING) -> None:
        self._copies, self._ring = copies, ring

    def start(self, host: Batch) -> Batch:
        """Start a copy. Returns the batch on the device.

        Waits for an earlier copy where the ring is full.
        """
        self._ring.wait_for_slot()
        batch = self._copies.start(host)
        if batch.copied is not None:
            self._ring.hold(batch.copied, host)
        return batch

    def hand_out(self, batch: Batch) -> Batch:
        """Make the consumer's later work wait for the copy.

        The consumer's thread does not wait.
        """
        return self._copies.hand_out(batch)
