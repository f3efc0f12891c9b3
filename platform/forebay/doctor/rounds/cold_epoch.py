"""Progress within a cold epoch.

An epoch is longer than a round: each round goes on where the last one stopped.
"""

from __future__ import annotations

from dataclasses import dataclass

from forebay.data.cache.builders.reads_in_flight import ReadsInFlight


@dataclass(slots=True)
class ColdEpoch:
    """Progress in an epoch of `num_blocks`, with its read controller.

    A controller of None begins as a job does.

    A job with few row groups ends before its reads are as many as the line needs. One with many hardly notices.
    """

    num_blocks: int
    position: int = 0
    reads: ReadsInFlight | None = None

    @property
    def remaining(self) -> range:
        """Numbers of the blocks that are not made."""
        return range(self.position, self.num_blocks)

    def advance(self, num_made: int, reads: ReadsInFlight) -> None:
        """Count blocks made with `reads`.

        After the last one, another epoch begins.
        """
        self.position, self.reads = self.position + num_made, reads
        if self.position >= self.num_blocks:
            self.position, self.reads = 0, None
