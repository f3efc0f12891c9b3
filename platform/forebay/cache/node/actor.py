"""Ray actor that owns the cache of one node: one per node and directory, shared by all jobs. Checked with Ray 2.60."""

from __future__ import annotations

import asyncio
import os
from contextlib import ExitStack
from typing import Any

import ray

from forebay.cache.node.bloom_filter import BloomFilter
from forebay.cache.node.peer_lookup import PeerLookup
from forebay.cache.node.peer_server import PeerServer
from forebay.cache.node.peer_transport import NODE_DIGITS, RayPeerTransport
from forebay.cache.node.service import InMemoryBlock, NodeService, Reply, StoredBlock
from forebay.cache.spec import CacheSpec
from forebay.errors import ForebayError
from forebay.ray_cluster.actors import CACHE_PREFIX, NAMESPACE
from forebay.ray_cluster.metrics_export import exported
from forebay.transform.block import Block


class NodeCache:
    """The actor: answers for one directory of the node it is pinned to. Its entries outlive it, on disk.

    Errors meant for the user are returned, not raised: so they arrive as themselves, whatever Ray wraps around others.
    """

    def __init__(self) -> None:
        self._node_id = ray.get_runtime_context().get_node_id()
        self._service: NodeService | None = None
        self._door: PeerServer[Any] | None = None
        self._exporting = ExitStack()

    async def configure(self, spec: CacheSpec) -> ForebayError | None:
        """Open the directory, or take over new bounds for it; the error if it cannot be used."""
        try:
            if self._service is None:
                self._open(spec)
            else:
                self._service.adopt(spec)
        except ForebayError as error:
            return error
        return None

    async def register(self, dataset_id: str, payload: bytes, spec: CacheSpec) -> ForebayError | None:
        """Make a data set known; the error if that cannot be done."""
        if problem := await self.configure(spec):
            return problem
        assert self._service
        try:
            self._service.register(dataset_id, payload)
        except ForebayError as error:
            return error
        return None

    async def fetch(self, dataset_id: str, index: int, with_arrays: bool) -> Reply:
        """Have block `index` made and stored; one that does not fit is sent along, if `with_arrays`."""
        future = self._service.request(dataset_id, index) if self._service else None
        if future is None:
            return "unknown"
        reply = (await asyncio.wrap_future(future)).take()
        if isinstance(reply, InMemoryBlock) and not with_arrays:
            return StoredBlock(sums=reply.sums)
        return reply

    async def summary(self) -> BloomFilter:
        """Which blocks are on this node's disk, for another node."""
        return await asyncio.wrap_future(self._door.summary()) if self._door else BloomFilter.of(())

    async def hand_out(self, key: str) -> Any:
        """For another node: a reference to (rows, arrays) of the block `key`; None if it is not on this node's disk."""
        return await asyncio.wrap_future(self._door.block(key)) if self._door else None

    async def facts(self) -> dict[str, Any]:
        """Where it runs and what it holds."""
        cache = self._service.cache if self._service else None
        return {
            "pid": os.getpid(),
            "node_id": self._node_id,
            "path": str(cache.path) if cache else None,
            "used_bytes": cache.used_bytes if cache else 0,
            "loose_bytes": self._service.loose_bytes.now if self._service else 0,
        }

    def _open(self, spec: CacheSpec) -> None:
        line = RayPeerTransport(namespace=NAMESPACE, prefix=CACHE_PREFIX, node_id=self._node_id)
        service = NodeService(spec, PeerLookup(line))
        self._service, self._door = service, PeerServer(lambda: service.cache, _put)
        tags = {"role": "cache", "node": self._node_id[:NODE_DIGITS], "directory": spec.directory}
        self._exporting.enter_context(exported(tags, service.tally.as_dict, service.measured))


def _put(block: Block) -> Any:
    # Copied here, in the thread that looked it up: what an actor's method returns is copied by the one thread that
    # runs all of its methods.
    return ray.put((block.rows, dict(block.arrays)))
