"""Blocks through a node's cache actor.

Requests and replies, independent of the transport.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any, Protocol

from forebay.data.cache.block_key import BlockNames
from forebay.data.cache.builders.registered_datasets import BuildFailed, pack
from forebay.data.cache.builders.single_flight import SingleFlightPool
from forebay.data.cache.disk.disk_cache import DiskCache
from forebay.data.cache.requests import InMemoryBlock, Reply, StoredBlock
from forebay.data.cache.spec import CacheSpec
from forebay.data.transform.block import Block
from forebay.data.transform.dataset import Dataset
from forebay.data.transform.rejected_rows import usable
from forebay.errors import CacheUnusable
from forebay.runtime.metrics import Counters
from forebay.storage.credentials import Access

_OPEN_REQUESTS = 8
"""Enough to keep the data workers of a node busy, few enough to bound the bytes in the object store."""
_MOST_TRIES = 3
_MOST_DEATHS = 5
"""Limit of actors that die during one request: each new actor needs the dataset registered again."""


class NodeTransport(Protocol):
    """Transport of requests to the cache actor of one node."""

    spec: CacheSpec
    is_here: bool

    def disk(self) -> DiskCache:
        """Open the directory in this process.

        Once, so that a block is verified once. Raises `CacheUnusable`.
        """
        ...

    def call(self, cancelled: threading.Event, method: str, *arguments: Any) -> Any:
        """Call `method` of the actor and return its answer.

        Raises `Cancelled` soon after `cancelled` is set.
        """
        ...


class NodeSource:
    """`BlockSource` over the cache actor of a node.

    Maps blocks from this node's disk, and requests missing ones from the actor.

    Blocks of another node come without arrays: they are only built and stored there.
    """

    def __init__(self, transport: NodeTransport, dataset: Dataset, counters: Counters) -> None:
        self._transport = transport
        self._dataset = dataset
        self._counters = counters
        self._names = BlockNames(dataset)
        # Renewed credentials must reach an actor that knows the dataset with the old ones.
        access = dataset.manifest.access
        digest = access.digest if isinstance(access, Access) else ""
        self._id = f"{self._names.id}-{digest}"
        self._cache = transport.disk() if transport.is_here else None
        self._lease = self._cache.lease(self._names.dataset) if self._cache else None
        self._cancelled = threading.Event()
        self._registering = threading.Lock()
        self._num_registered = 0
        self._workers: SingleFlightPool[int, Block] = SingleFlightPool(
            self._fetch,
            num_threads=max(_OPEN_REQUESTS, transport.spec.requests.read_bounds.most),
            peek=self._peek_counted,
        )

    def request(self, index: int) -> Future[Block]:
        """Request block `index`.

        The future raises the errors of building it. Raises `LoaderClosed` after `close`.
        """
        return self._workers.submit(index)

    def peek(self, index: int, counters: Counters) -> Block | None:
        """Map block `index` without reading it.

        None unless this process got it from the node's disk before.
        """
        if self._cache is None:
            return None
        return self._usable(index, self._cache.peek(self._names.key(index), counters, dataset=self._names.dataset))

    def close(self, timeout_s: float = 5.0) -> None:
        """Cancel pending requests.

        Returns within `timeout_s` seconds. Blocks stay valid.
        """
        self._cancelled.set()
        self._workers.close(timeout_s)
        if self._lease:
            self._lease.release()

    def _peek_counted(self, index: int) -> Block | None:
        return self.peek(index, self._counters)

    def _usable(self, index: int, block: Block | None) -> Block | None:
        return usable(block, self._dataset.manifest, index)

    def _fetch(self, index: int) -> Block:
        key = self._names.key(index)
        if self._cache:
            found = self._cache.get(key, self._counters, dataset=self._names.dataset)
            if block := self._usable(index, found):
                return block
        for _ in range(_MOST_TRIES):
            reply = self._request_build(index)
            self._counters.merge(reply.sums)
            if isinstance(reply, BuildFailed):
                reply.throw()
            if isinstance(reply, InMemoryBlock):
                return Block(reply.rows, reply.arrays)
            if self._cache is None:
                return Block(self._dataset.manifest[index].rows, {})
            # None if the block was damaged, evicted or cleared meanwhile: then it is built again.
            if block := self._usable(index, self._cache.load(key, self._counters)):
                return block
        raise CacheUnusable(
            f"block {key} was stored in {self._transport.spec.directory} {_MOST_TRIES} times but cannot be read there. "
            "Check that this process sees the same disk as the cache's actor, not the disk of another container.",
            key=key,
        )

    def _request_build(self, index: int) -> StoredBlock | InMemoryBlock | BuildFailed:
        for _ in range(1 + _MOST_DEATHS):
            seen = self._num_registered
            reply: Reply = self._transport.call(self._cancelled, "fetch", self._id, index, self._transport.is_here)
            if reply != "unknown":
                return reply
            with self._registering:
                if self._num_registered == seen:
                    self._register()
                    self._num_registered += 1
        row_group = self._dataset.manifest[index]
        raise CacheUnusable(
            f"the cache actor for {self._transport.spec.directory} died {_MOST_DEATHS} times while row group "
            f"{row_group.index} of {row_group.uri} was requested. Look in its log whether building this block ends "
            "its process (out of memory, native crash), or set cache=None to reproduce it in the trainer.",
            uri=row_group.uri,
            row_group=row_group.index,
        )

    def _register(self) -> None:
        payload = pack(self._dataset)
        problem = self._transport.call(self._cancelled, "register", self._id, payload, self._transport.spec)
        if problem:
            raise problem
