"""Cache of a node for the processes that request blocks, independent of the transport."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from forebay.cache.block_builder import BlockBuilder, BuildOptions, Peers
from forebay.cache.cpu_share import CpuShare, lower_thread_priority
from forebay.cache.disk.disk_cache import DiskCache
from forebay.cache.node.inflight_bytes import InFlightBytes
from forebay.cache.node.payload import unpack
from forebay.cache.single_flight import SingleFlightPool
from forebay.cache.spec import CacheSpec
from forebay.errors import ForebayError
from forebay.manifest.footer import FooterCache
from forebay.metrics import Counters
from forebay.transform.block import BlockArray
from forebay.transform.dataset import Dataset

_MOST_DATASETS = 64
_MOST_INFLIGHT_BYTES = 512 << 20
_INFLIGHT_WAIT_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredBlock:
    """Reply: the block is in the cache, under its key. `sums` are the counters for the requester's tally."""

    sums: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class InMemoryBlock:
    """Reply: the block did not fit, so its arrays are part of the reply."""

    sums: Mapping[str, float]
    rows: int
    arrays: Mapping[str, BlockArray]


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildFailed:
    """Reply: the block cannot be built. `trace` is the traceback in the actor."""

    error: ForebayError
    trace: str
    sums: Mapping[str, float] = field(default_factory=dict)


Reply: TypeAlias = StoredBlock | InMemoryBlock | BuildFailed | Literal["unknown"]
"""Reply to a request. `unknown` means that the data set must be registered first."""


class NodeService:
    """Builds blocks for all jobs of a node with one set of data workers. Simultaneous requests share one build.

    A block comes from the node's disk, else from one of `peers`, else from its source. Then it is stored. A block that
    does not fit leaves as `InMemoryBlock`. While 512 MiB of such blocks are in memory, no other block is built, for at
    most 30 s: the requester may have died. So their memory is bounded for any number of requesters.
    """

    def __init__(self, spec: CacheSpec, peers: Peers | None = None) -> None:
        self._spec = spec
        self._peers = peers
        self.inflight_bytes = InFlightBytes()
        self.tally = Counters()
        self.cache = spec.open()
        self._registered: dict[str, Dataset] = {}
        self._makers = threading.local()
        self._footers = FooterCache()
        self._cores = CpuShare(spec.data_workers.num_cores())
        self._workers: SingleFlightPool[tuple[str, int], _Outcome] = SingleFlightPool(
            self._make, num_threads=spec.num_reads, on_start=lower_thread_priority
        )

    def apply_spec(self, spec: CacheSpec) -> None:
        """Apply the limits of `spec` from now on. The newest job's limits count."""
        if spec != self._spec:
            self.cache = spec.open()
            self._cores.resize(spec.data_workers.num_cores())
            self._workers.resize(spec.num_reads)
            self._spec = spec

    def register(self, dataset_id: str, payload: bytes) -> None:
        """Register `dataset_id`. Raises `TransformFailed` if its code cannot be loaded here."""
        self._registered.pop(dataset_id, None)
        self._registered[dataset_id] = unpack(payload)
        while len(self._registered) > _MOST_DATASETS:
            del self._registered[next(iter(self._registered))]

    def request(self, dataset_id: str, index: int) -> Future[_Outcome] | None:
        """Request the build of block `index`. Returns None if the data set is not registered."""
        if dataset_id not in self._registered:
            return None
        return self._workers.submit((dataset_id, index))

    def measured(self) -> dict[str, float]:
        """Values of the gauges in `forebay.metrics.GAUGES`."""
        cache = self.cache
        return {"cache_used_bytes": cache.used_bytes, "cache_quota_bytes": cache.quota_bytes}

    def close(self, timeout_s: float) -> None:
        """Stop the data workers."""
        self._cores.close()
        self.inflight_bytes.close()
        self._workers.close(timeout_s)

    def _make(self, task: tuple[str, int]) -> _Outcome:
        dataset_id, index = task
        self._cores.take_ticket()
        found = self._maker(dataset_id)
        if found is None:
            return _Outcome("unknown")
        builder, tally = found
        before = tally.as_dict()
        try:
            self.inflight_bytes.wait_below(_MOST_INFLIGHT_BYTES, _INFLIGHT_WAIT_S)
            block, origin = builder.build(index)
        except ForebayError as error:
            trace = "".join(traceback.format_exception(error))
            return _Outcome(BuildFailed(error=error, trace=trace, sums=tally.since(before)))
        finally:
            self.tally.merge(tally.since(before))
        sums = tally.since(before)
        if origin == "bypass":
            self.inflight_bytes.count(block)
            return _Outcome(InMemoryBlock(sums=sums, rows=block.rows, arrays=dict(block.arrays)), block.nbytes)
        return _Outcome(StoredBlock(sums=sums), block.nbytes)

    def _maker(self, dataset_id: str) -> tuple[BlockBuilder, Counters] | None:
        """Builder and tally of this thread. So the counts between two moments belong to one block."""
        mine: dict[str, tuple[BlockBuilder, Counters, DiskCache]] = self._makers.__dict__
        known = mine.get(dataset_id)
        if known is None or known[2] is not self.cache:
            registered = self._registered.get(dataset_id)
            if registered is None:
                return None
            while len(mine) >= _MOST_DATASETS:
                del mine[next(iter(mine))]
            tally, cache = Counters(), self.cache
            options = BuildOptions(footers=self._footers, cores=self._cores, peers=self._peers)
            builder = BlockBuilder(registered, cache, tally=tally, options=options)
            known = builder, tally, cache
            mine[dataset_id] = known
        return known[0], known[1]


class _Outcome:
    """Reply to simultaneous requests for one block: the first gets the counters of the build, the others a hit."""

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
