"""Copies of finished batches to a device.

The gathering thread starts them, and the trainer only lets its stream wait for them.
"""

from __future__ import annotations

from dataclasses import dataclass

from forebay.data.loader.batch import Batch
from forebay.data.loader.device.copies import DeviceCopies
from forebay.data.loader.device.in_flight import PROCESS_RING, CopyRing


@dataclass(slots=True)
class JoinedBatches:
    """Equal batches that follow each other, gathered and copied as one.

    `whole` holds the rows of all of them, in main memory, or on the device from the start of their copy on.
    """

    whole: Batch
    is_started: bool = False


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

        Waits for an earlier copy where the ring is full. The first of joined batches starts the copy of all.
        """
        if host.joined is not None:
            joined, _ = host.joined
            if not joined.is_started:
                joined.whole, joined.is_started = self._started(joined.whole), True
            return host
        return self._started(host)

    def hand_out(self, batch: Batch) -> Batch:
        """Make the consumer's later work wait for the copy.

        The consumer's thread does not wait.
        """
        if batch.joined is None:
            return self._copies.hand_out(batch)
        joined, rows = batch.joined
        # Views are made here: torch hands the GIL over for each, and the gathering thread would wait for it again.
        batch.show(self._copies.hand_out(joined.whole), rows)
        batch.joined = None
        return batch

    def _started(self, host: Batch) -> Batch:
        self._ring.wait_for_slot()
        batch = self._copies.start(host)
        if batch.copied is not None:
            self._ring.hold(batch.copied, host)
        return batch
