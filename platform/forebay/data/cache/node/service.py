"""Services of a node's cache, independent of the transport.

It builds blocks for its processes, and answers other nodes.
"""

from __future__ import annotations

import threading
import traceback
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Generic, TypeVar

from forebay.data.cache.block_key import KEY
from forebay.data.cache.builders.block_builder import BlockBuilder, BuildOptions, Peers
from forebay.data.cache.builders.block_pool import BlockPool
from forebay.data.cache.builders.data_workers import lower_thread_priority, processes_for
from forebay.data.cache.builders.registered_datasets import BuildFailed, RegisteredDatasets
from forebay.data.cache.builders.single_flight import SingleFlightPool
from forebay.data.cache.builders.worker_processes import DataProcesses
from forebay.data.cache.data_nodes.pool import DataNodes, RemoteBuild
from forebay.data.cache.disk.disk_cache import DiskCache
from forebay.data.cache.node.bloom_filter import BloomFilter
from forebay.data.cache.requests import InMemoryBlock, Reply, StoredBlock
from forebay.data.cache.spec import CacheSpec
from forebay.data.parquet.footer import FooterCache
from forebay.data.parquet.footer_store import FooterStore
from forebay.data.transform.block import Block
from forebay.data.transform.dataset import Dataset
from forebay.errors import CacheUnusable, Cancelled, ForebayError
from forebay.runtime.metrics import Counters

_MOST_INFLIGHT_BYTES = 512 << 20
_INFLIGHT_WAIT_S = 30.0


class NodeService:
    """Builds blocks for all jobs of a node.

    One set of data workers builds them. Simultaneous requests share one build.

    A block comes from the node's disk, else from one of `peers`, else from its source, which this node or one of
    `data_nodes` reads. Then it is stored. A block that
    does not fit leaves as `InMemoryBlock`. While 512 MiB of such blocks are in memory, no other block is built, for at
    most 30 s: the requester may have died. So their memory is bounded for any number of requesters.
    """

    def __init__(self, spec: CacheSpec, peers: Peers | None = None, data_nodes: DataNodes | None = None) -> None:
        self._spec = spec
        self._peers = peers
        self._data_nodes = data_nodes
        self.inflight_bytes = InFlightBytes()
        self.counters = Counters()
        self.cache = spec.open()
        self._datasets = RegisteredDatasets(self._make_builder)
        self.wait_for_registration = self._datasets.wait_for_registration
        self._footers = FooterCache(FooterStore(self.cache.path))
        self._processes = DataProcesses(processes_for(spec.data_workers.num_cores()))
        self._pool: BlockPool[tuple[str, int], _Outcome] = BlockPool(self._make, spec.requests)

    def apply_spec(self, spec: CacheSpec) -> None:
        """Apply the limits of `spec` from now on.

        The newest job's limits count.
        """
        if spec != self._spec:
            self.cache = spec.open()
            self._pool.apply(spec.requests)
            self._processes.resize(processes_for(spec.data_workers.num_cores()))
            self._spec = spec
            if self._data_nodes:
                self._data_nodes.apply_spec(spec)
            self._datasets.renew_builders()

    def register(self, dataset_id: str, payload: bytes) -> None:
        """Register `dataset_id`.

        Raises `TransformFailed` if its code cannot be loaded here.
        """
        self._datasets.register(dataset_id, payload)

    def request(self, dataset_id: str, index: int) -> Future[_Outcome] | None:
        """Request the build of block `index`.

        Returns None if the dataset is not registered.
        """
        if dataset_id not in self._datasets:
            return None
        return self._pool.submit((dataset_id, index))

    def measured(self) -> dict[str, float]:
        """Values of the gauges in `forebay.runtime.metrics.GAUGES`."""
        cache = self.cache
        return {
            "cache_used_bytes": cache.used_bytes,
            "cache_quota_bytes": cache.quota_bytes,
            "num_reads": self._pool.num_reads,
        }

    def close(self, timeout_s: float) -> None:
        """Stop the data workers."""
        if self._data_nodes:
            self._data_nodes.close(timeout_s)
        self.inflight_bytes.close()
        self._processes.close()
        self._pool.close(timeout_s)

    def _make(self, task: tuple[str, int]) -> _Outcome:
        dataset_id, index = task
        found = self._datasets.builder(dataset_id)
        if found is None:
            return _Outcome("unknown")
        builder, counters = found
        before = counters.as_dict()
        try:
            self.inflight_bytes.wait_below(_MOST_INFLIGHT_BYTES, _INFLIGHT_WAIT_S)
            block, origin, _ = self._pool.build(builder, index, counters)
        except ForebayError as error:
            trace = "".join(traceback.format_exception(error))
            return _Outcome(BuildFailed(error=error, trace=trace, sums=counters.since(before)))
        finally:
            self.counters.merge(counters.since(before))
        sums = counters.since(before)
        if origin == "bypass":
            self.inflight_bytes.count(block)
            return _Outcome(InMemoryBlock(sums=sums, rows=block.rows, arrays=dict(block.arrays)), block.nbytes)
        return _Outcome(StoredBlock(sums=sums), block.nbytes)

    def _make_builder(self, dataset_id: str, dataset: Dataset, counters: Counters) -> BlockBuilder:
        elsewhere = None
        if self._data_nodes and self._spec.data_nodes and (payload := self._datasets.payload(dataset_id)):
            elsewhere = RemoteBuild(self._data_nodes, dataset_id, payload)
        options = BuildOptions(
            footers=self._footers,
            cores=self._pool.cores,
            peers=self._peers,
            elsewhere=elsewhere,
            workers=self._processes.of(dataset_id, dataset, None if elsewhere else self.cache),
        )
        return BlockBuilder(dataset, self.cache, counters=counters, options=options)


class _Outcome:
    """Reply to simultaneous requests for one block.

    The first gets the counters of the build, the others a hit.
    """

    def __init__(self, reply: Reply, nbytes: int = 0) -> None:
        self._reply = reply
        self._nbytes = nbytes
        self._is_counted = threading.Lock()

    def next_reply(self) -> Reply:
        """Return the reply for one of the requesters."""
        if isinstance(self._reply, str) or self._is_counted.acquire(blocking=False):
            return self._reply
        name, size = ("hits", "hit_bytes") if isinstance(self._reply, StoredBlock) else ("bypasses", "bypass_bytes")
        return replace(self._reply, sums={} if isinstance(self._reply, BuildFailed) else {name: 1, size: self._nbytes})


class InFlightBytes:
    """Counter of the bytes of blocks in memory.

    A block counts until its arrays are freed. Thread-safe.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._closed = False
        self.current = 0
        """Bytes in memory now."""
        self.peak = 0
        """Largest value of `current`."""

    def count(self, block: Block) -> None:
        """Count `block` until its arrays are freed."""
        nbytes = block.nbytes  # before the lock: it may trigger a garbage collection that calls `_subtract`
        with self._changed:
            self.current += nbytes
            self.peak = max(self.peak, self.current)
        for array in block.arrays.values():
            weakref.finalize(array, self._subtract, array.nbytes).atexit = False

    def wait_below(self, most_bytes: int, deadline_s: float) -> None:
        """Wait until at most `most_bytes` are in memory.

        At most `deadline_s`. Raises `Cancelled` once closed.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self.current <= most_bytes, deadline_s)
            if self._closed:
                raise Cancelled("the data workers were closed")

    def close(self) -> None:
        """End all waits with `Cancelled`."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _subtract(self, nbytes: int) -> None:
        with self._changed:
            self.current -= nbytes
            self._changed.notify_all()


T = TypeVar("T")

NUM_THREADS = 4
MOST_OPEN, OPEN_BYTES, MOST_OF_ANY_SIZE = 32, 2 << 30, 512
_ONLY_TASK = ""


def open_requests(block_bytes: float) -> int:
    """Requests that a node accepts at once: 2 GiB of blocks, 32 to 512 of them.

    With 32, nodes of 64 reads of 16 MB were refused a third of their blocks, and all went to the source at once.
    """
    return min(max(MOST_OPEN, int(OPEN_BYTES // max(block_bytes, 1))), MOST_OF_ANY_SIZE)


class PeerServer(Generic[T]):
    """Looks up blocks for other nodes.

    It never builds one, so no two nodes can wait for each other.

    Args:
        cache: Returns the node's current disk cache.
        send: Called with the block in the thread that looked it up; it may copy the block.
    """

    def __init__(self, cache: Callable[[], DiskCache], send: Callable[[Block], T]) -> None:
        self._cache = cache
        self._send = send
        self._counting = threading.Lock()
        self._num_open, self._most_open = 0, MOST_OPEN
        self._filter_workers: SingleFlightPool[str, BloomFilter] = SingleFlightPool(
            self._build_filter, num_threads=1, on_start=lower_thread_priority
        )
        self._blocks: SingleFlightPool[str, T | None] = SingleFlightPool(
            self._block, num_threads=NUM_THREADS, on_start=lower_thread_priority
        )

    def bloom_filter(self) -> Future[BloomFilter]:
        """Build the Bloom filter of the blocks on disk."""
        return self._filter_workers.submit(_ONLY_TASK)

    def block(self, key: str) -> Future[T | None]:
        """Look up and send the block `key`.

        None if it is missing on disk, or if too many lookups are open already: `open_requests`.
        """
        with self._counting:
            is_busy = self._num_open >= self._most_open
            self._num_open += not is_busy
        if is_busy:
            rejected: Future[T | None] = Future()
            rejected.set_result(None)
            return rejected
        future = self._blocks.submit(key)
        future.add_done_callback(self._done)
        return future

    def close(self, timeout_s: float) -> None:
        """Stop the threads."""
        self._filter_workers.close(timeout_s)
        self._blocks.close(timeout_s)

    def _done(self, _: Future[T | None]) -> None:
        with self._counting:
            self._num_open -= 1

    def _build_filter(self, _: str) -> BloomFilter:
        cache = self._cache()
        keys = cache.keys()
        if keys:  # a node asks for this filter before it asks for a block
            self._most_open = open_requests(cache.used_bytes / len(keys))
        return BloomFilter.of(keys)

    def _block(self, key: str) -> T | None:
        # The request comes from another process, and the key becomes a file name.
        if not KEY.fullmatch(key):
            return None
        try:
            block = self._cache().load(key, Counters())
        except CacheUnusable:
            return None
        return self._send(block) if block else None
