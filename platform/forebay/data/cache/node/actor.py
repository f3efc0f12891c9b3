"""Ray actor of a node's cache. Checked with Ray 2.60.

It owns the cache of one node, and asks the other nodes.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, TypeAlias

import ray
from ray.exceptions import RayError

from forebay.data.cache.data_nodes.pool import DataNodes
from forebay.data.cache.data_nodes.transport import RayDataNodes
from forebay.data.cache.node.bloom_filter import BloomFilter
from forebay.data.cache.node.peer_directory import OWN, HeardFilter
from forebay.data.cache.node.peer_lookup import PeerLookup, PeerSilent
from forebay.data.cache.node.service import NodeService, PeerServer
from forebay.data.cache.requests import InMemoryBlock, Reply, StoredBlock
from forebay.data.cache.spec import CacheSpec
from forebay.data.transform.block import Block
from forebay.errors import ForebayError
from forebay.ray_cluster.actors import CACHE_PREFIX, NAMESPACE, NODE_DIGITS
from forebay.ray_cluster.metrics_export import exported


class NodeCache:
    """Actor that serves one cache directory of its node.

    It is pinned to the node. The blocks on disk outlive it.

    Errors for the user are returned, not raised, so that they arrive without Ray's wrapper.
    """

    def __init__(self) -> None:
        self._node_id = ray.get_runtime_context().get_node_id()
        self._service: NodeService | None = None
        self._peer_server: PeerServer[Any] | None = None
        self._peers: PeerLookup | None = None
        self._exporting = ExitStack()

    async def configure(self, spec: CacheSpec, peers: Sequence[str] = ()) -> ForebayError | None:
        """Open the directory, or apply new bounds to it.

        `peers` are names that caches of other nodes have or will have. Returns the error if it cannot be used.
        """
        try:
            if self._service is None:
                self._open(spec)
            else:
                self._service.apply_spec(spec)
        except ForebayError as error:
            return error
        if self._peers is not None:
            self._peers.begin_with(peers)
        return None

    async def register(self, dataset_id: str, payload: bytes, spec: CacheSpec) -> ForebayError | None:
        """Register a dataset. Returns the error if that fails."""
        if problem := await self.configure(spec):
            return problem
        assert self._service
        try:
            self._service.register(dataset_id, payload)
        except ForebayError as error:
            return error
        return None

    async def fetch(self, dataset_id: str, index: int, with_arrays: bool) -> Reply:
        """Build and store block `index`.

        With `with_arrays`, a block that does not fit is part of the reply.
        """
        if self._service is None:
            return "unknown"
        await self._service.wait_for_registration(dataset_id)
        future = self._service.request(dataset_id, index)
        if future is None:
            return "unknown"
        reply = (await asyncio.wrap_future(future)).next_reply()
        if isinstance(reply, InMemoryBlock) and not with_arrays:
            return StoredBlock(sums=reply.sums)
        return reply

    async def bloom_filters(self, known: Collection[str], within_s: float) -> dict[str, HeardFilter]:
        """Bloom filters for another node.

        Of the blocks on this node's disk, and those that this node has received.
        """
        if self._peer_server is None or self._peers is None:
            return {OWN: HeardFilter(BloomFilter.of(()))}
        own = await asyncio.wrap_future(self._peer_server.bloom_filter())
        return self._peers.answer(own, known, within_s)

    async def send_block(self, key: str) -> Any:
        """Put block `key` into Ray's object store.

        As (rows, arrays). None if the block is missing on this node's disk.
        """
        return await asyncio.wrap_future(self._peer_server.block(key)) if self._peer_server else None

    async def facts(self) -> dict[str, Any]:
        """Process, node, directory and bytes of this cache."""
        cache = self._service.cache if self._service else None
        return {
            "pid": os.getpid(),
            "node_id": self._node_id,
            "path": str(cache.path) if cache else None,
            "used_bytes": cache.used_bytes if cache else 0,
            "inflight_bytes": self._service.inflight_bytes.current if self._service else 0,
        }

    def _open(self, spec: CacheSpec) -> None:
        line = RayPeerTransport(namespace=NAMESPACE, prefix=CACHE_PREFIX, node_id=self._node_id)
        data_nodes = DataNodes(spec, RayDataNodes(self._node_id))
        self._peers = PeerLookup(line)
        service = NodeService(spec, self._peers, data_nodes)
        self._service, self._peer_server = service, PeerServer(lambda: service.cache, _put)
        tags = {"role": "cache", "node": self._node_id[:NODE_DIGITS], "directory": spec.directory}
        self._exporting.enter_context(exported(tags, service.counters.as_dict, service.measured))


def _put(block: Block) -> Any:
    # Copied here, in the thread that looked it up: otherwise Ray would copy it in the one thread that runs all methods
    # of the actor.
    return ray.put((block.rows, dict(block.arrays)))


Actor: TypeAlias = Any


class RayPeerTransport:
    """`PeerTransport` over Ray, for the cache of `node_id`.

    For use outside of an event loop.

    Other caches of the same node are not peers: a user who gives them separate directories wants them apart.
    """

    def __init__(self, *, namespace: str, prefix: str, node_id: str) -> None:
        self._namespace = namespace
        self._prefix = prefix
        self._here = node_id[:NODE_DIGITS]
        self._actors: dict[str, Actor] = {}

    def peer_names(self) -> list[str]:
        """Names of the caches of all other living nodes.

        Raises `PeerSilent`.
        """
        try:
            found = ray.util.list_named_actors(all_namespaces=True)
            # The actor of a dead node may keep its name for a while.
            others = {node["NodeID"][:NODE_DIGITS] for node in ray.nodes() if node["Alive"]} - {self._here}
        except (RayError, RuntimeError) as error:
            raise PeerSilent(f"the caches of the cluster cannot be listed: {error}") from error
        known = [actor["name"] for actor in found if actor["namespace"] == self._namespace]
        names = [name for name in known if name.startswith(self._prefix) and self._node_of(name) in others]
        for stale in self._actors.keys() - set(names):
            self._actors.pop(stale, None)
        return names

    def ask_filters(
        self, names: Collection[str], known: Collection[str], within_s: float, deadline_s: float
    ) -> Mapping[str, Mapping[str, HeardFilter]]:
        """Answers by name.

        Without peers that do not answer within `deadline_s`.
        """
        asked = {}
        for name in names:
            try:
                asked[self._actor(name).bloom_filters.remote(known, within_s)] = name
            except (RayError, ValueError):
                self._actors.pop(name, None)
        if not asked:
            return {}
        ready, _ = ray.wait(list(asked), num_returns=len(asked), timeout=deadline_s)
        answers = {}
        for reply in ready:
            try:
                answer: dict[str, HeardFilter] = ray.get(reply, timeout=deadline_s)
            except RayError:
                self._actors.pop(asked[reply], None)
                continue
            # Caches of this node are not peers, although others know them.
            answers[asked[reply]] = {
                name: heard for name, heard in answer.items() if name == OWN or self._node_of(name) != self._here
            }
        return answers

    def fetch_block(self, name: str, key: str, deadline_s: float) -> Block | None:
        """Get the block from `name`.

        None if it is missing on its disk. Raises `PeerSilent`.
        """
        give_up = time.monotonic() + deadline_s
        try:
            reply = ray.get(self._actor(name).send_block.remote(key), timeout=deadline_s)
            if reply is None:
                return None
            rows, arrays = ray.get(reply, timeout=max(give_up - time.monotonic(), 0.001))
        except (RayError, ValueError) as error:
            self._actors.pop(name, None)
            raise PeerSilent(f"{name} did not send block {key}: {error}") from error
        return Block(rows, arrays)

    def _actor(self, name: str) -> Actor:
        """Actor by name. Raises `ValueError` if there is none."""
        actor = self._actors.get(name)  # another thread may remove it at any time
        if actor is None:
            actor = self._actors[name] = ray.get_actor(name, namespace=self._namespace)
        return actor

    def _node_of(self, name: str) -> str:
        return name[len(self._prefix) :][:NODE_DIGITS]
