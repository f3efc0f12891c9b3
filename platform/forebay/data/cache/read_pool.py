"""Thread pool of data workers whose number of reads in flight follows what its builds take."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from forebay.data.cache.cpu_share import DataWorkers, lower_thread_priority
from forebay.data.cache.reads_in_flight import FinishedRead, ReadsInFlight
from forebay.data.cache.single_flight import K, SingleFlightPool, T


class ReadPool(SingleFlightPool[K, T]):
    """`SingleFlightPool` of `workers.num_reads` threads of low priority, which build blocks, one at a time each.

    `work` reports each read with `record_read`. With `num_reads="auto"` that may resize the pool. `reads` of an earlier
    pool lets this one go on with its number.
    """

    def __init__(
        self,
        work: Callable[[K], T],
        workers: DataWorkers,
        *,
        peek: Callable[[K], T | None] = lambda _: None,
        reads: ReadsInFlight | None = None,
    ) -> None:
        self._reads = reads or ReadsInFlight(workers.read_bounds, workers.num_cores())
        self._guard = threading.Lock()
        super().__init__(work, num_threads=self._reads.number, on_start=lower_thread_priority, peek=peek)

    @property
    def reads(self) -> ReadsInFlight:
        """Controller of the number of reads."""
        return self._reads

    @property
    def num_reads(self) -> int:
        """Number of row groups that may be read at once now."""
        return self._reads.number

    def apply(self, workers: DataWorkers) -> None:
        """Apply the limits of `workers` from now on."""
        with self._guard:
            self._reads = ReadsInFlight(workers.read_bounds, workers.num_cores())
            self.resize(self._reads.number)

    def record_read(self, began_s: float, core_s: float, nbytes: int) -> None:
        """Count a block of `nbytes` that was read and built since `began_s`, by `time.monotonic`.

        `core_s` of these seconds it waited for a core or used it.
        """
        held_s, is_limited = time.monotonic() - began_s, self.has_queue
        with self._guard:
            before = self._reads.number
            self._reads.record(
                FinishedRead(began_s=began_s, held_s=held_s, core_s=core_s, nbytes=nbytes), is_limited=is_limited
            )
            if self._reads.number != before:
                self.resize(self._reads.number)
