"""Blocks made in this process."""

from __future__ import annotations

import os
import threading
from concurrent.futures import Future

from forebay.cache.block_builder import BlockBuilder, BuildOptions
from forebay.cache.cpu_share import DEFAULT_WORKERS, CpuShare, DataWorkers, keep_off_trainer
from forebay.cache.disk.disk_cache import DiskCache
from forebay.cache.single_flight import SingleFlightPool
from forebay.cache.spec import CacheSpec
from forebay.metrics import Counters
from forebay.storage.retry import DEFAULT_POLICY, ReadPolicy
from forebay.transform.block import Block
from forebay.transform.dataset import Dataset


class LocalSource:
    """A `BlockSource`: daemon threads of this process look in `cache`, or read, transform and store.

    The threads start at the first request, also in a forked child, which begins with no requests of its own. While it
    is open, the data set is not evicted from the cache.

    Args:
        manifest: The row groups; `request(i)` is about `manifest[i]`.
        transform: What makes a block of a row group.
        cache: Where blocks are kept, or None to read the source each time.
        tally: What is counted goes here.
        workers: How many row groups are read at once, and on how many cores they are decoded.
        policy: Deadlines and retries of reads.
    """

    def __init__(
        self,
        dataset: Dataset,
        cache: DiskCache | None,
        *,
        tally: Counters,
        workers: DataWorkers = DEFAULT_WORKERS,
        policy: ReadPolicy = DEFAULT_POLICY,
    ) -> None:
        self._facts = (dataset, cache, tally, workers, policy)
        self._crew = self._new_crew()

    def request(self, index: int) -> Future[Block]:
        """Ask for block `index`; the future raises what reading or transforming raises.

        Raises `LoaderClosed` after `close`.
        """
        if self._crew.pid != os.getpid():
            self._crew = self._new_crew()  # threads and locks of the parent mean nothing here
        return self._crew.workers.submit(index)

    def close(self, timeout_s: float = 5.0) -> None:
        """Cancel what is pending and return within `timeout_s`; a stuck read is abandoned. Blocks stay valid."""
        # What a child inherited is its parent's to close: releasing the lease here would release it there.
        if self._crew.pid == os.getpid():
            self._crew.close(timeout_s)

    def _new_crew(self) -> _Crew:
        return _Crew(*self._facts)


class _Crew:
    """The threads of one process, and what they hold."""

    def __init__(
        self,
        dataset: Dataset,
        cache: DiskCache | None,
        tally: Counters,
        workers: DataWorkers,
        policy: ReadPolicy,
    ) -> None:
        self.pid = os.getpid()
        self._cancelled = threading.Event()
        self._cores = CpuShare(workers.num_cores())
        conditions = BuildOptions(policy=policy, cancelled=self._cancelled, cores=self._cores)
        maker = BlockBuilder(dataset, cache, tally=tally, conditions=conditions)
        self._lease = cache.hold(maker.names.dataset) if cache else None

        def make(index: int) -> Block:
            self._cores.line_up()
            return maker.make(index)[0]

        self.workers = SingleFlightPool(
            make, num_threads=workers.num_reads, on_start=keep_off_trainer, at_hand=maker.peek
        )

    def close(self, timeout_s: float) -> None:
        self._cancelled.set()
        self._cores.close()
        self.workers.close(timeout_s)
        if self._lease:
            self._lease.release()


class LocalCache:
    """A `SourceProvider`: the cache of `spec`, filled by threads of this process. Works in forked and spawned children.

    `num_processes` that do this side by side on one machine share what `spec` grants to its data workers.

    Raises `CacheUnusable` if the directory cannot be used here.
    """

    def __init__(self, spec: CacheSpec, num_processes: int = 1) -> None:
        self.disk = spec.open()
        self._workers = spec.data_workers.among(num_processes)

    def source(self, dataset: Dataset, tally: Counters) -> LocalSource:
        """Blocks by way of this cache."""
        return LocalSource(dataset, self.disk, tally=tally, workers=self._workers)
