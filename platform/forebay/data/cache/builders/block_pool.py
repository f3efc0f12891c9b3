"""Pool of threads that build blocks."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic

from forebay.data.cache.builders.block_builder import BlockBuilder, Built
from forebay.data.cache.builders.data_workers import DataWorkers, lower_thread_priority
from forebay.data.cache.builders.reads_in_flight import FinishedRead, ReadsInFlight
from forebay.data.cache.builders.single_flight import K, SingleFlightPool, T
from forebay.errors import Cancelled
from forebay.runtime.metrics import Counters
from forebay.storage.deadline import Cancellation


class BlockPool(Generic[K, T]):
    """Data workers of one process.

    Threads of low priority run `work(task)`, one block at a time each.

    Open requests for one task share its run. Tasks start in the order of their requests, as many at once as
    `num_reads` allows. `work` builds its block by `build`, with a builder that has the `cores` of the pool: few of
    the threads decode and transform at once, the earliest task first. `build` records what the read took, and with
    `num_reads="auto"` that may change the number of reads.

    Args:
        work: Called for each task in a thread of the pool.
        workers: Number of row groups that are read at once, and number of cores.
        num_cores: Number of cores that may be busy at once. By default `workers.num_cores()`.
        peek: Called by `submit` in its thread. A value is the result at once. Must not block.
        reads: Controller of an earlier pool, to continue with its number of reads.
    """

    def __init__(
        self,
        work: Callable[[K], T],
        workers: DataWorkers,
        *,
        num_cores: int | None = None,
        peek: Callable[[K], T | None] = lambda _: None,
        reads: ReadsInFlight | None = None,
    ) -> None:
        num_cores = workers.num_cores() if num_cores is None else num_cores
        self._work = work
        self._reads = reads or ReadsInFlight(workers.read_bounds, num_cores)
        self._guard = threading.Lock()
        self.cores = CpuShare(num_cores)
        """Entered for work that takes a core."""
        self.cancelled = Cancellation()
        """Set by `close`, to end reads."""
        self._threads: SingleFlightPool[K, T] = SingleFlightPool(
            self._run, num_threads=self._reads.number, on_start=lower_thread_priority, peek=peek
        )

    @property
    def reads(self) -> ReadsInFlight:
        """Controller of the number of reads."""
        return self._reads

    @property
    def num_reads(self) -> int:
        """Number of row groups that may be read now."""
        return self._reads.number

    def submit(self, task: K) -> Future[T]:
        """Return the result of `work(task)`.

        Joins its queued or current run, if there is one.

        Raises `LoaderClosed` after `close`, and `ReadFailed` if no thread can be started.
        """
        return self._threads.submit(task)

    def build(self, builder: BlockBuilder, index: int, counters: Counters) -> Built:
        """Build a block in a thread of this pool.

        Records its read if it came from its source.

        Raises the errors of `BlockBuilder.build`.
        """
        began_s, allowed = time.monotonic(), self.num_reads
        built = builder.build(index)
        if built.core_s is not None:
            counters.add("reads_allowed", allowed)
            self.record_read(began_s, built.core_s, built.block.nbytes)
        return built

    def record_read(self, began_s: float, core_s: float, nbytes: int) -> None:
        """Record a read that ended now.

        It began at `began_s`, by `time.monotonic`, and made a block of `nbytes`.

        `core_s`: seconds in which it waited for a core or used it.
        """
        held_s, is_limited = time.monotonic() - began_s, self._threads.has_queue
        with self._guard:
            before = self._reads.number
            self._reads.record(
                FinishedRead(began_s=began_s, held_s=held_s, core_s=core_s, nbytes=nbytes), is_limited=is_limited
            )
            if self._reads.number != before:
                self._threads.resize(self._reads.number)

    def apply(self, workers: DataWorkers) -> None:
        """Apply the limits of `workers` from now on."""
        with self._guard:
            self._reads = ReadsInFlight(workers.read_bounds, workers.num_cores())
            self._threads.resize(self._reads.number)
        self.cores.resize(workers.num_cores())

    def close(self, timeout_s: float) -> None:
        """Cancel unfinished tasks and stop the threads.

        Waits for them at most `timeout_s`. A stuck thread is abandoned.
        """
        self.cancelled.set()
        self.cores.close()
        self._threads.close(timeout_s)

    def _run(self, task: K) -> T:
        self.cores.take_ticket()
        return self._work(task)


class CpuShare:
    """Context manager that admits at most `count` threads at once.

    Of the waiting ones, the lowest ticket enters first.

    A thread takes a ticket when it starts a task and keeps it until it takes another. So the earliest request finishes
    first.
    """

    def __init__(self, count: int) -> None:
        self._changed = threading.Condition()
        self._count = count
        self._num_inside = 0
        self._waiting: list[int] = []
        self._tickets = itertools.count()
        self._mine = threading.local()
        self._closed = False

    def take_ticket(self) -> None:
        """Move the calling thread to the end of the queue."""
        self._mine.ticket = next(self._tickets)

    def resize(self, count: int) -> None:
        """Admit `count` threads from now on. Admitted ones stay."""
        with self._changed:
            self._count = count
            self._changed.notify_all()

    def close(self) -> None:
        """Admit no further threads: waiting and later ones raise `Cancelled`."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def __enter__(self) -> None:
        if not hasattr(self._mine, "ticket"):
            self.take_ticket()
        ticket = self._mine.ticket
        with self._changed:
            heapq.heappush(self._waiting, ticket)
            self._changed.wait_for(
                lambda: self._closed or (self._num_inside < self._count and self._waiting[0] == ticket)
            )
            if self._closed:
                raise Cancelled("the data workers were closed")
            heapq.heappop(self._waiting)
            self._num_inside += 1
            self._changed.notify_all()  # the next one may fit as well

    def __exit__(self, *error: object) -> None:
        with self._changed:
            self._num_inside -= 1
            self._changed.notify_all()
