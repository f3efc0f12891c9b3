"""Blocks made as fast as the data workers of a job can, and discarded: the speed of a cold epoch's other half."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass

from forebay.cache.block_builder import BlockBuilder, BuildOptions
from forebay.cache.cpu_share import CpuShare, DataWorkers, lower_thread_priority
from forebay.cache.disk.disk_cache import DiskCache
from forebay.cache.single_flight import SingleFlightPool
from forebay.doctor.rounds.sample import HeldPagesReader, Sample, datasets_in, forget_pages
from forebay.metrics import Counters
from forebay.storage.deadline import Cancellation
from forebay.transform.block import Block

_POLL_S = 0.05
_CLOSE_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Produced:
    """Result of a production: blocks and rows made in `seconds`, and the seconds of each step over all threads.

    `read_s` is the time in which as many reads at once fetch these rows, `make_s` that in which as many cores decode
    and transform them.
    """

    blocks: int
    rows: int
    nbytes: int
    seconds: float
    read_s: float
    make_s: float
    sums: Mapping[str, float]


class BlockProduction:
    """Makes the blocks of `sample`, again and again, in the order of need, from `start` to `stop`.

    Args:
        sample: Row groups. Between two passes over them, what was made is discarded.
        workers: Limits of the data workers.
        cache: Cache directory that the blocks are written to, or None to write none.
        from_source: Whether every pass reads the source. Else pages come from memory.
    """

    def __init__(self, sample: Sample, workers: DataWorkers, cache: DiskCache | None, *, from_source: bool) -> None:
        self._sample, self._workers, self._cache, self._from_source = sample, workers, cache, from_source
        self._tally = Counters()
        self._ends = threading.Event()
        self._lock = threading.Lock()
        self._blocks = self._rows = self._nbytes = 0
        self._seconds = self._last = 0.0
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="forebay-doctor", daemon=True)

    def has_made(self, least: int) -> bool:
        """Whether `least` blocks are made. Also after an error, which `stop` raises."""
        return self._blocks >= least or self._error is not None

    def start(self) -> None:
        """Start making blocks."""
        self._thread.start()

    def stop(self) -> Produced:
        """End all threads. Blocks that are not finished do not count. Raises the error of a block that failed."""
        self._ends.set()
        self._thread.join()
        if self._error is not None:
            raise self._error
        in_cores = self._tally["decode_s"] + self._tally["transform_s"]
        return Produced(
            blocks=self._blocks,
            rows=self._rows,
            nbytes=self._nbytes,
            seconds=self._seconds,
            read_s=self._tally["remote_read_s"] / self._workers.read_bounds.start,
            make_s=in_cores / self._workers.num_cores(),
            sums=self._tally.as_dict(),
        )

    def _run(self) -> None:
        while not self._ends.is_set() and self._error is None:
            if self._cache is not None:
                self._cache.clear()
            if self._from_source:
                forget_pages(self._sample)
            self._one_pass()

    def _one_pass(self) -> None:
        room = threading.Semaphore(self._workers.read_bounds.start)
        cancelled, cores = Cancellation(), CpuShare(self._workers.num_cores())
        make = self._maker(cancelled, cores)
        pool = SingleFlightPool(make, num_threads=self._workers.read_bounds.start, on_start=lower_thread_priority)
        began = self._last = time.perf_counter()
        try:
            for number in range(len(self._sample)):
                if not self._acquire(room):
                    return
                pool.submit(number).add_done_callback(lambda done: self._count(done, room))
            for _ in range(self._workers.read_bounds.start):
                if not self._acquire(room):
                    return
        finally:
            with self._lock:
                self._seconds += self._last - began
                self._last = float("inf")  # blocks that end from here on do not count
            cancelled.set()
            cores.close()
            pool.close(_CLOSE_S)

    def _maker(self, cancelled: Cancellation, cores: CpuShare) -> Callable[[int], Block]:
        options = BuildOptions(cancelled=cancelled, cores=cores)
        builders = {
            key: BlockBuilder(
                dataset,
                self._cache,
                tally=self._tally,
                options=options,
                reader=None if self._from_source else HeldPagesReader(dataset, self._sample, self._tally),
            )
            for key, dataset in datasets_in(self._sample).items()
        }

        def make(number: int) -> Block:
            each = self._sample[number]
            cores.take_ticket()
            return builders[id(each.dataset)].build(each.index)[0]

        return make

    def _acquire(self, room: threading.Semaphore) -> bool:
        while not self._ends.is_set() and self._error is None:
            if room.acquire(timeout=_POLL_S):
                return True
        return False

    def _count(self, done: Future[Block], room: threading.Semaphore) -> None:
        error = None if done.cancelled() else done.exception()
        with self._lock:
            if self._last == float("inf") or done.cancelled():
                return
            if error is not None:
                self._error = self._error or error
                return
            block = done.result()
            self._blocks += 1
            self._rows += block.rows
            self._nbytes += block.nbytes
            self._last = time.perf_counter()
        room.release()
