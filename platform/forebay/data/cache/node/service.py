"""Cache of a node for the processes that request blocks, independent of the transport."""

from __future__ import annotations

import threading
import traceback
from concurrent.futures import Future
from dataclasses import replace

from forebay.data.cache.builders.block_builder import BlockBuilder, BuildOptions, Peers
from forebay.data.cache.builders.block_pool import BlockPool
from forebay.data.cache.data_nodes.pool import DataNodes, RemoteBuild
from forebay.data.cache.node.inflight_bytes import InFlightBytes
from forebay.data.cache.requests.registered import RegisteredDatasets
from forebay.data.cache.requests.reply import BuildFailed, InMemoryBlock, Reply, StoredBlock
from forebay.data.cache.spec import CacheSpec
from forebay.data.parquet.footer import FooterCache
from forebay.data.parquet.footer_store import FooterStore
from forebay.data.transform.dataset import Dataset
from forebay.errors import ForebayError
from forebay.runtime.metrics import Counters

_MOST_INFLIGHT_BYTES = 512 << 20
_INFLIGHT_WAIT_S = 30.0


class NodeService:
    """Builds blocks for all jobs of a node with one set of data workers. Simultaneous requests share one build.

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
        self._footers = FooterCache(FooterStore(self.cache.path))
        self._pool: BlockPool[tuple[str, int], _Outcome] = BlockPool(self._make, spec.requests)

    def apply_spec(self, spec: CacheSpec) -> None:
        """Apply the limits of `spec` from now on. The newest job's limits count."""
        if spec != self._spec:
            self.cache = spec.open()
            self._pool.apply(spec.requests)
            self._spec = spec
            if self._data_nodes:
                self._data_nodes.apply_spec(spec)
            self._datasets.renew_builders()

    def register(self, dataset_id: str, payload: bytes) -> None:
        """Register `dataset_id`. Raises `TransformFailed` if its code cannot be loaded here."""
        self._datasets.register(dataset_id, payload)

    def request(self, dataset_id: str, index: int) -> Future[_Outcome] | None:
        """Request the build of block `index`. Returns None if the dataset is not registered."""
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
        options = BuildOptions(footers=self._footers, cores=self._pool.cores, peers=self._peers, elsewhere=elsewhere)
        return BlockBuilder(dataset, self.cache, counters=counters, options=options)


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
