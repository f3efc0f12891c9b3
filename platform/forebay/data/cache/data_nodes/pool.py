"""Client of the data nodes of a cluster.

It finds them, sends them builds, and skips nodes that fail.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Protocol

from forebay.data.cache.builders.data_workers import lower_thread_priority
from forebay.data.cache.builders.registered_datasets import BuildFailed
from forebay.data.cache.builders.single_flight import SingleFlightPool
from forebay.data.cache.data_nodes.dispatch import HERE, Dispatch
from forebay.data.cache.requests import InMemoryBlock, Reply
from forebay.data.cache.spec import CacheSpec
from forebay.data.transform.block import Block
from forebay.errors import ExitCode, ForebayError
from forebay.runtime.metrics import Counters

_FRESH_S = 2.0
_FIRST_LOOKUP_S = 1.0
_MOST_TRIES = 2
_ONLY_TASK = ""

log = logging.getLogger(__name__)


class DataNodeLost(ForebayError):
    """A data node that does not answer.

    Internal: the block is built elsewhere.
    """

    exit_status = ExitCode.FAILED


class DataNodeTransport(Protocol):
    """Transport of requests to the data nodes of a cluster."""

    def cores(self, data_nodes: str) -> Mapping[str, float]:
        """Cores of each available node, by name.

        The nodes that match `CacheSpec.data_nodes` and answer now. Starts the actors of the others.

        Raises `DataNodeLost` if the nodes cannot be listed.
        """
        ...

    def register(self, name: str, dataset_id: str, payload: bytes) -> ForebayError | None:
        """Register a dataset.

        Returns the error if that fails. Raises `DataNodeLost`.
        """
        ...

    def build(self, name: str, dataset_id: str, index: int) -> Reply:
        """Build block `index`.

        The reply is an `InMemoryBlock`, `BuildFailed` or "unknown". Raises `DataNodeLost`.
        """
        ...


class DataNodes:
    """Pool of the data nodes of a cluster.

    This node is one of them. Thread-safe.

    While blocks are built, the data nodes are looked up every 2 s in a thread. The first blocks wait for that, at most
    1 s. Until a data node has answered, all blocks are built here.
    """

    def __init__(self, spec: CacheSpec, transport: DataNodeTransport) -> None:
        self._spec = spec
        self._transport = transport
        self._dispatch = Dispatch(cores=spec.data_workers.num_cores(), num_reads=spec.data_workers.read_bounds.start)
        self._looked_up = -_FRESH_S
        self._first_lookup: Future[None] | None = None
        self._lookups: SingleFlightPool[str, None] = SingleFlightPool(
            self._look_up, num_threads=1, on_start=lower_thread_priority
        )
        self._guard = threading.Lock()

    def apply_spec(self, spec: CacheSpec) -> None:
        """Apply `spec` from now on.

        Its limits and its choice of data nodes.
        """
        with self._guard:
            self._spec, self._looked_up, self._first_lookup = spec, -_FRESH_S, None
        self._dispatch.set_limits(cores=spec.data_workers.num_cores(), num_reads=spec.data_workers.read_bounds.start)
        self._dispatch.set_data_nodes({})

    def build(
        self, request: RemoteBuild, index: int, rows: int, counters: Counters, here: Callable[[], Block]
    ) -> Block:
        """Build block `index` on the least loaded node.

        It has `rows` rows. `here` builds it on this node.

        A data node that fails is skipped, and the block is built on another node. Raises the errors of `here`.
        """
        self._look_up_when_stale()
        for tries in range(_MOST_TRIES + 1):
            with self._dispatch.slot(only_here=tries == _MOST_TRIES) as name:
                if name == HERE:
                    return here()
                with counters.timed("data_node_s"):
                    block = self._ask(name, request, index, rows, counters)
            if block:
                counters.add("data_node_blocks")
                counters.add("data_node_bytes", block.nbytes)
                return block
        raise AssertionError("the last try is here")

    def close(self, timeout_s: float) -> None:
        """End all waits for a node, and the lookups."""
        self._dispatch.close()
        self._lookups.close(timeout_s)

    def _ask(self, name: str, request: RemoteBuild, index: int, rows: int, counters: Counters) -> Block | None:
        try:
            reply = self._transport.build(name, request.dataset_id, index)
            if reply == "unknown":
                if problem := self._transport.register(name, request.dataset_id, request.payload):
                    raise problem
                reply = self._transport.build(name, request.dataset_id, index)
            if isinstance(reply, BuildFailed):
                raise reply.error
            if not isinstance(reply, InMemoryBlock):
                raise DataNodeLost(f"it answered {reply!r:.200}")
            block = Block(reply.rows, reply.arrays)
            if not block.has_rows(rows):
                raise DataNodeLost(f"it sent other than {rows} rows")
        except ForebayError as error:
            # An error of the block itself is raised again where the block is built here.
            if self._dispatch.record_failure(name):
                log.warning(
                    "Data node %s could not build a block: %s Other nodes build its blocks for now.", name, error
                )
            return None
        self._dispatch.record_success(name)
        counters.merge(reply.sums)
        return block

    def _look_up_when_stale(self) -> None:
        now = time.monotonic()
        with self._guard:
            if now >= self._looked_up + _FRESH_S:
                self._looked_up = now
                lookup = self._lookups.submit(_ONLY_TASK)
                self._first_lookup = self._first_lookup or lookup
            first = self._first_lookup
        if first and not first.done():
            # Otherwise this node takes all of the first blocks, and the epoch waits for them at its end.
            wait([first], timeout=_FIRST_LOOKUP_S)

    def _look_up(self, _: str) -> None:
        chosen = self._spec.data_nodes
        try:
            cores = self._transport.cores(chosen) if chosen else {}
        except DataNodeLost as error:
            log.debug("no data nodes: %s", error)
            return
        if self._spec.data_nodes == chosen:
            self._dispatch.set_data_nodes(cores)


@dataclass(frozen=True, slots=True)
class RemoteBuild:
    """Builder of one dataset's blocks on `pool`.

    `payload` is the packed dataset.
    """

    pool: DataNodes
    dataset_id: str
    payload: bytes

    def build(self, index: int, rows: int, counters: Counters, here: Callable[[], Block]) -> Block:
        """Build block `index` on the least loaded node: `DataNodes.build`."""
        return self.pool.build(self, index, rows, counters, here)
