"""Builder of blocks, from the cheapest source that has them.

The cache, a build in progress in another process, another node, or the source.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, NamedTuple, Protocol

from forebay.data.cache.block_key import BlockNames
from forebay.data.cache.disk.disk_cache import DiskCache
from forebay.data.parquet import page_kernels
from forebay.data.parquet.footer import FooterCache
from forebay.data.parquet.footer_store import FooterStore
from forebay.data.parquet.reading import RowGroupReader, out_of_memory
from forebay.data.transform.block import Block
from forebay.data.transform.dataset import Dataset
from forebay.data.transform.rejected_rows import apply_to_kept, usable
from forebay.errors import Cancelled, CorruptFile, LimitReached
from forebay.runtime.foreign_code import replaced_errors
from forebay.runtime.metrics import Counters
from forebay.storage.deadline import Cancellation
from forebay.storage.retry import DEFAULT_POLICY, ReadPolicy

Origin = Literal["hit", "store", "bypass"]
"""Hit: found in the cache. Store: built and stored. Bypass: built, but not stored because it does not fit."""


class Built(NamedTuple):
    """A block and its origin.

    `core_s`: seconds in which it waited for a core and used it. None if its source was not read for it.
    """

    block: Block
    origin: Origin
    core_s: float | None = None


class FromWorker(NamedTuple):
    """A block that a worker process has built.

    `state` is the one of its file in the cache, and `block` None. Without a state it was not stored.
    """

    block: Block | None
    core_s: float
    state: tuple[int, int, int] | None


class Workers(Protocol):
    """Processes that build blocks of one dataset."""

    def build(self, index: int, counters: Counters) -> FromWorker | None:
        """Build block `index`, and store it if it fits.

        None: the caller builds it. Raises the errors of the build.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildOptions:
    """Options of building blocks.

    Attributes:
        policy: Deadlines and retries of reads.
        footers: Parquet footers. None keeps them in memory, and beside the blocks of the cache.
        cancelled: Set to end reads and waits.
        cores: Entered for work that takes a core (decoding, the transform), not for waiting on storage or the disk.
        peers: Asked for a block before its source is read.
        elsewhere: Chooses whether this node or another one reads the source.
        workers: Build in other processes of this node. None builds in the calling thread. With `elsewhere`, they must
            store nothing.
        maps_files: Map local files instead of copying them: a tenth to a third of a block's time. Only in a process
            that may end, as it does if a file is cut meanwhile.
    """

    policy: ReadPolicy = DEFAULT_POLICY
    footers: FooterCache | None = None
    cancelled: Cancellation = field(default_factory=Cancellation)
    cores: AbstractContextManager[object] = field(default_factory=nullcontext)
    peers: Peers | None = None
    elsewhere: SourceReaders | None = None
    workers: Workers | None = None
    maps_files: bool = False


class BlockBuilder:
    """Builder of the blocks of one dataset, in the calling thread.

    Thread-safe.

    `reader` reads its row groups. None makes one of `options`.
    """

    def __init__(
        self,
        dataset: Dataset,
        cache: DiskCache | None,
        *,
        counters: Counters,
        options: BuildOptions | None = None,
        reader: RowGroupReader | None = None,
    ) -> None:
        self._manifest, self._transform = dataset.manifest, dataset.transform
        self._cache = cache
        self._counters = counters
        self._options = options or BuildOptions()
        self._columns = dataset.columns
        self._reader, self._opening = reader, threading.Lock()
        self.names = BlockNames(dataset)
        page_kernels.load()

    def peek(self, index: int, counters: Counters | None = None) -> Block | None:
        """Map block `index` without reading it.

        None unless this process got it from the cache before.
        """
        if self._cache is None:
            return None
        found = self._cache.peek(self.names.key(index), counters or self._counters, dataset=self.names.dataset)
        return usable(found, self._manifest, index)

    def build(self, index: int) -> Built:
        """Get or build block `index`.

        Opens no Parquet file if the cache or a peer has the block.

        Raises the errors of reading and transforming, and `Cancelled`.
        """
        if self._cache is None:
            return self._in_worker(index) or self._bypass(index, *self._read(index))
        key = self.names.key(index)
        if block := self._find(self._cache, index):
            return Built(block, "hit")
        # A caller that does not get the lock in time builds the block as well: a duplicate build is better than none.
        with self._cache.single_flight(key, self._options.policy.deadline_s, self._options.cancelled):
            if block := self._find(self._cache, index):
                return Built(block, "hit")
            peer = self._options.peers and self._from_peer(self._options.peers, index)
            if not peer and (made := self._in_worker(index)):
                return made
            built, core_s = (peer, None) if peer else self._read(index)
            built_at = time.monotonic()
            stored = usable(self._cache.put(key, self.names.dataset, built, self._counters), self._manifest, index)
            if core_s is not None:
                core_s += time.monotonic() - built_at
        return Built(stored, "store", core_s) if stored else self._bypass(index, built, core_s)

    def read_and_store(self, index: int) -> tuple[Block, float, tuple[int, int, int] | None]:
        """Build block `index` from its source, and store it.

        For a caller that holds its build lock. Returns the block, its `core_s`, and the state of its file in the cache,
        None if it does not fit. Raises the errors of reading and transforming.
        """
        block, core_s = self._read_source(index)
        if self._cache is None:
            return block, core_s, None
        key, built_at = self.names.key(index), time.monotonic()
        stored = self._cache.put(key, self.names.dataset, block, self._counters, maps=False)
        return block, core_s + time.monotonic() - built_at, self._cache.state_of(key) if stored else None

    def _in_worker(self, index: int) -> Built | None:
        """Block that a worker process has built.

        None if there is no such process, or another node reads the source.
        """
        options = self._options
        if options.workers is None or options.elsewhere:
            return None
        if (made := options.workers.build(index, self._counters)) is None:
            return None
        if made.block is not None:
            return self._bypass(index, made.block, made.core_s)
        assert self._cache is not None
        assert made.state is not None
        found = self._cache.adopt(self.names.key(index), made.state)
        stored = usable(found, self._manifest, index)
        return Built(stored, "store", made.core_s) if stored else None

    def _find(self, cache: DiskCache, index: int) -> Block | None:
        """Block in the cache.

        None also if it was built for a filter without rows that this dataset has.

        Building it then raises the error about these rows.
        """
        found = cache.get(self.names.key(index), self._counters, dataset=self.names.dataset)
        return usable(found, self._manifest, index)

    def _read(self, index: int) -> tuple[Block, float]:
        if self._options.cancelled.is_set():
            raise Cancelled(f"the build of block {index} was cancelled")
        if self._options.elsewhere:
            rows = self._manifest[index].rows
            return self._options.elsewhere.build(index, rows, self._counters, partial(self.read, index)), 0.0
        return self._read_source(index)

    def read(self, index: int) -> Block:
        """Build block `index` from its source.

        Looks into no cache, and stores nothing.

        Raises the errors of reading and transforming.
        """
        workers = self._options.workers if self._cache is None or self._options.elsewhere else None
        made = workers.build(index, self._counters) if workers else None
        return made.block if made and made.block else self._read_source(index)[0]

    def _read_source(self, index: int) -> tuple[Block, float]:
        try:
            return self._from_source(index)
        except (CorruptFile, LimitReached):  # the transfer may have damaged it
            self._counters.add("retries")
            return self._from_source(index)

    def _from_source(self, index: int) -> tuple[Block, float]:
        used_s = time.thread_time()
        reader = self._opened_reader()
        fetched = reader.fetch(index, self._columns)
        copying_s, fetched_at = time.thread_time() - used_s, time.monotonic()
        with self._options.cores:
            table = reader.decode_lazily(fetched)
            del fetched
            with self._counters.timed("transform_s"), replaced_errors(partial(self._out_of_memory, index), MemoryError):
                block = apply_to_kept(self._transform, table, self._manifest, index)
        reader.check_unchanged(index)
        return block, copying_s + time.monotonic() - fetched_at

    def _opened_reader(self) -> RowGroupReader:
        """Reader of the source. Made for the first block that is read: an epoch from the cache needs none."""
        with self._opening:
            if self._reader is None:
                options, cache = self._options, self._cache
                store = FooterStore(cache.path) if cache else None
                self._reader = RowGroupReader(
                    self._manifest,
                    options.policy,
                    self._counters,
                    cancelled=options.cancelled,
                    footers=options.footers or FooterCache(store, stores_new=False),
                    maps_files=options.maps_files,
                )
            return self._reader

    def _out_of_memory(self, index: int, error: Exception) -> Exception:
        assert isinstance(error, MemoryError)
        return out_of_memory(self._manifest[index], error)

    def _from_peer(self, peers: Peers, index: int) -> Block | None:
        with self._counters.timed("peer_s"):
            block = peers.find(self.names.key(index), self._manifest[index].rows)
        if usable(block, self._manifest, index) is None:
            return None
        assert block is not None
        self._counters.add("peer_hits")
        self._counters.add("peer_bytes", block.nbytes)
        return block

    def _bypass(self, index: int, block: Block, core_s: float | None) -> Built:
        self._counters.add("bypasses")
        self._counters.add("bypass_bytes", block.nbytes)
        found = usable(block, self._manifest, index)
        assert found is not None, "a block that was just built has the rows of its manifest"
        return Built(found, "bypass", core_s)


class Peers(Protocol):
    """Lookup of blocks on the other nodes of a cluster."""

    def find(self, key: str, rows: int) -> Block | None:
        """Get a block from a node that holds it.

        `key` is its key, and `rows` its number of rows. None if no node holds it or answers in time.

        Raises nothing for a failing peer: the caller reads the source instead.
        """
        ...


class SourceReaders(Protocol):
    """Choice of the node that reads a source."""

    def build(self, index: int, rows: int, counters: Counters, here: Callable[[], Block]) -> Block:
        """Build block `index` on another node or this one.

        It has `rows` rows. `here` builds it on this node.

        Raises the errors of `here`.
        """
        ...
