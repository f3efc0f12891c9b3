"""Block sources of a loader.

Threads of this process serve them, or the cache actor of its node.
"""

from __future__ import annotations

import os
import time
from bisect import bisect_right
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from itertools import accumulate
from types import ModuleType
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from forebay.data.cache.builders.block_builder import BlockBuilder, BuildOptions
from forebay.data.cache.builders.block_pool import BlockPool
from forebay.data.cache.builders.data_workers import DEFAULT_WORKERS, DataWorkers, processes_for
from forebay.data.cache.disk.disk_cache import DiskCache
from forebay.data.cache.spec import CacheSpec
from forebay.data.transform.block import Block
from forebay.data.transform.dataset import Dataset
from forebay.runtime.metrics import Counters
from forebay.storage.retry import DEFAULT_POLICY, ReadPolicy

if TYPE_CHECKING:
    from forebay.data.cache.builders.worker_processes import DataProcesses


class BlockSource(Protocol):
    """Blocks of one dataset, by index into its manifest.

    Laws:
    - Requests start in the order in which they are made.
    - Two open requests for one index share the work.
    - The future raises the errors of the work.
    - A block stays valid as long as it is referenced, also after `close`.
    """

    def request(self, index: int) -> Future[Block]:
        """Request the transformed row group `index`.

        Does not wait for storage. A cached block is mapped at once.
        """
        ...

    def close(self, timeout_s: float = 5.0) -> None:
        """Cancel pending requests (`CancelledError`).

        Returns within `timeout_s` seconds, even if a read is stuck.
        """
        ...


@runtime_checkable
class MappedBlocks(Protocol):
    """Part of a `BlockSource` that maps cached blocks."""

    def peek(self, index: int, counters: Counters) -> Block | None:
        """Map block `index` at once.

        Counts to `counters`. None if that takes a read, or is not known.
        """
        ...


class SourceProvider(Protocol):
    """Factory of block sources.

    Such as the cache actor of a node.
    """

    def source(self, dataset: Dataset, counters: Counters) -> BlockSource: ...


class LocalSource:
    """`BlockSource` served by threads of this process.

    Daemon threads look in `cache`, or read, transform and store.

    The threads start at the first request, also in a forked child, which starts without requests. While the source is
    open, the dataset is not evicted from the cache.

    Args:
        dataset: Row groups and their transform; `request(i)` returns the block of `dataset.manifest[i]`.
        cache: Cache of the blocks, or None to read the source each time.
        counters: Receives the counters.
        workers: Number of row groups that are read at once, and number of cores that decode them.
        policy: Deadlines and retries of reads.
    """

    def __init__(
        self,
        dataset: Dataset,
        cache: DiskCache | None,
        *,
        counters: Counters,
        workers: DataWorkers = DEFAULT_WORKERS,
        policy: ReadPolicy = DEFAULT_POLICY,
    ) -> None:
        self._facts = (dataset, cache, counters, workers, policy)
        self._threads = self._start_threads()

    def request(self, index: int) -> Future[Block]:
        """Request block `index`.

        The future raises the errors of reading and transforming.

        Raises `LoaderClosed` after `close`.
        """
        if self._threads.pid != os.getpid():
            self._threads = self._start_threads()  # threads and locks of the parent do not exist here
        return self._threads.pool.submit(index)

    def peek(self, index: int, counters: Counters) -> Block | None:
        """Map block `index` without reading it.

        None unless this process got it from the cache before.
        """
        return self._threads.peek(index, counters)

    def close(self, timeout_s: float = 5.0) -> None:
        """Cancel pending requests and end the threads.

        Returns within `timeout_s` seconds: a stuck read is abandoned. Blocks stay valid.
        """
        # A child must not close what it inherited: a release here would release the parent's lease.
        if self._threads.pid == os.getpid():
            self._threads.close(timeout_s)

    def _start_threads(self) -> _Threads:
        return _Threads(*self._facts)


class _Threads:
    """Data workers of one process, with their lease."""

    def __init__(
        self,
        dataset: Dataset,
        cache: DiskCache | None,
        counters: Counters,
        workers: DataWorkers,
        policy: ReadPolicy,
    ) -> None:
        self.pid = os.getpid()
        self._counters = counters
        limits = workers.for_files_of(dataset)
        self.pool: BlockPool[int, Block] = BlockPool(self._build, limits, peek=self.peek)
        self._processes = _processes(processes_for(limits.num_cores()))
        options = BuildOptions(
            policy=policy,
            cancelled=self.pool.cancelled,
            cores=self.pool.cores,
            workers=self._processes.of("", dataset, cache, policy) if self._processes else None,
        )
        with ExitStack() as undo:
            if self._processes:
                undo.callback(self._processes.close)
            self._builder = BlockBuilder(dataset, cache, counters=counters, options=options)
            self._lease = cache.lease(self._builder.names.dataset) if cache else None
            undo.pop_all()

    def peek(self, index: int, counters: Counters | None = None) -> Block | None:
        return self._builder.peek(index, counters)

    def close(self, timeout_s: float) -> None:
        if self._processes:
            self._processes.close()
        self.pool.close(timeout_s)
        if self._lease:
            self._lease.release()

    def _build(self, index: int) -> Block:
        return self.pool.build(self._builder, index, self._counters).block


def _processes(number: int) -> DataProcesses | None:
    return _worker_processes().DataProcesses(number) if number else None


def _worker_processes() -> ModuleType:
    from forebay.data.cache.builders import worker_processes  # noqa: PLC0415 - not on two cores

    return worker_processes


class LocalCache:
    """`SourceProvider` over the cache of `spec`.

    Threads of this process fill it. Works in forked and spawned children.

    `num_processes` such processes on one machine divide the data workers of `spec` among themselves.

    Raises `CacheUnusable` if the directory cannot be used here.
    """

    def __init__(self, spec: CacheSpec, num_processes: int = 1) -> None:
        self.disk = spec.open()
        self._workers = spec.data_workers.divided_by(num_processes)
        if processes_for(self._workers.num_cores()):
            _worker_processes().prepare()

    def source(self, dataset: Dataset, counters: Counters) -> LocalSource:
        """Blocks of `dataset` through this cache."""
        return LocalSource(dataset, self.disk, counters=counters, workers=self._workers)


def open_source(cache: DiskCache | SourceProvider | None, dataset: Dataset, counters: Counters) -> BlockSource:
    """Open the blocks of `dataset` through `cache`.

    Counters go to `counters`.

    Threads of this process serve a `DiskCache`, or None for no cache, within the default limits of `CacheSpec`. A
    `SourceProvider` serves its blocks itself.
    """
    if cache is None or isinstance(cache, DiskCache):
        return LocalSource(dataset, cache, counters=counters)
    return cache.source(dataset, counters)


class JoinedSource:
    """`BlockSource` of several datasets.

    Blocks are numbered one dataset after the other.

    Args:
        sources: Source of each dataset.
        num_blocks: Number of blocks of each dataset.
    """

    def __init__(self, sources: Sequence[BlockSource], num_blocks: Sequence[int]) -> None:
        self._sources = sources
        self._first_blocks = [0, *accumulate(num_blocks)]

    def request(self, index: int) -> Future[Block]:
        number = bisect_right(self._first_blocks, index) - 1
        return self._sources[number].request(index - self._first_blocks[number])

    def peek(self, index: int, counters: Counters) -> Block | None:
        """Map block `index`, without a read.

        Counts to `counters`. None if its source cannot do so.
        """
        number = bisect_right(self._first_blocks, index) - 1
        source = self._sources[number]
        return source.peek(index - self._first_blocks[number], counters) if isinstance(source, MappedBlocks) else None

    def close(self, timeout_s: float = 5.0) -> None:
        give_up = time.monotonic() + timeout_s
        for source in self._sources:
            source.close(max(give_up - time.monotonic(), 0.0))
