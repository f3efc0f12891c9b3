"""Blocks by way of a node's cache actor; knows what is asked and answered, and not what carries it."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any, Protocol

from forebay.cache.block_key import BlockNames
from forebay.cache.disk.disk_cache import DiskCache
from forebay.cache.node.payload import pack
from forebay.cache.node.service import BuildFailed, InMemoryBlock, Reply, StoredBlock
from forebay.cache.single_flight import SingleFlightPool
from forebay.cache.spec import CacheSpec
from forebay.errors import CacheUnusable
from forebay.metrics import Counters
from forebay.storage.credentials import Access
from forebay.transform.block import Block
from forebay.transform.dataset import Dataset

_OPEN_REQUESTS = 8
"""Enough to keep the data workers of a node busy, few enough to bound what lies in the object store."""
_MOST_TRIES = 3
_MOST_DEATHS = 5
"""A new actor knows no data set: so often may one have to be told about it before a block that was asked for comes."""


class NodeTransport(Protocol):
    """The line to the actor of one node."""

    spec: CacheSpec
    is_here: bool

    def disk(self) -> DiskCache:
        """The directory in this process: one object, so that a block is verified once. Raises `CacheUnusable`."""
        ...

    def call(self, cancelled: threading.Event, method: str, *arguments: Any) -> Any:
        """What the actor answers to `method`. Raises `Cancelled` soon after `cancelled` is set."""
        ...


class NodeSource:
    """A `BlockSource`: a block is on this node's disk, or the actor is asked to make it.

    Blocks of another node come without arrays: they are only made and stored there.
    """

    def __init__(self, line: NodeTransport, dataset: Dataset, tally: Counters) -> None:
        self._line = line
        self._dataset = dataset
        self._tally = tally
        self._names = BlockNames(dataset)
        # Renewed credentials must reach an actor that knows the data set with the old ones.
        access = dataset.manifest.access
        digest = access.digest if isinstance(access, Access) else ""
        self._id = f"{self._names.id}-{digest}"
        self._cache = line.disk() if line.is_here else None
        self._lease = self._cache.hold(self._names.dataset) if self._cache else None
        self._cancelled = threading.Event()
        self._registering = threading.Lock()
        self._num_registered = 0
        self._workers: SingleFlightPool[int, Block] = SingleFlightPool(
            self._fetch, num_threads=_OPEN_REQUESTS, at_hand=self._peek
        )

    def request(self, index: int) -> Future[Block]:
        """Ask for block `index`; the future raises what making it raises. `LoaderClosed` after `close`."""
        return self._workers.submit(index)

    def close(self, timeout_s: float = 5.0) -> None:
        """Cancel what is pending and return within `timeout_s`. Blocks stay valid."""
        self._cancelled.set()
        self._workers.close(timeout_s)
        if self._lease:
            self._lease.release()

    def _peek(self, index: int) -> Block | None:
        return self._cache.peek(self._names.key(index), self._tally) if self._cache else None

    def _fetch(self, index: int) -> Block:
        key = self._names.key(index)
        if self._cache and (block := self._cache.get(key, self._tally)):
            return block
        for _ in range(_MOST_TRIES):
            reply = self._ask(index)
            self._tally.merge(reply.sums)
            if isinstance(reply, BuildFailed):
                raise reply.error from _InActor(reply.trace)
            if isinstance(reply, InMemoryBlock):
                return Block(reply.rows, reply.arrays)
            if self._cache is None:
                return Block(self._dataset.manifest[index].rows, {})
            # None if it was damaged, evicted or cleared since: then it is made again.
            if block := self._cache.load(key, self._tally):
                return block
        raise CacheUnusable(
            f"block {key} was stored in {self._line.spec.directory} {_MOST_TRIES} times, and cannot be read there. "
            "Does this process see the same disk as the cache's actor, or is it in another container?",
            key=key,
        )

    def _ask(self, index: int) -> StoredBlock | InMemoryBlock | BuildFailed:
        for _ in range(1 + _MOST_DEATHS):
            seen = self._num_registered
            reply: Reply = self._line.call(self._cancelled, "fetch", self._id, index, self._line.is_here)
            if reply != "unknown":
                return reply
            with self._registering:
                if self._num_registered == seen:
                    self._register()
                    self._num_registered += 1
        row_group = self._dataset.manifest[index]
        raise CacheUnusable(
            f"the cache actor for {self._line.spec.directory} died {_MOST_DEATHS} times while row group "
            f"{row_group.index} of {row_group.uri} was asked for. If making this block is what ends its process (out "
            "of memory, a crash in native code), its log says so; set cache=None to see it happen in the trainer.",
            uri=row_group.uri,
            row_group=row_group.index,
        )

    def _register(self) -> None:
        payload = pack(self._dataset)
        problem = self._line.call(self._cancelled, "register", self._id, payload, self._line.spec)
        if problem:
            raise problem


class _InActor(Exception):
    """Where in the actor an error was raised; the cause of the error that is raised here."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"
