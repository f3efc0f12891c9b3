"""Client of a node's cache actor.

One actor per node and directory, shared by all jobs, found by name.

Lookup order of a block: docs/explanation/cache.md. Checked with Ray 2.60.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, TypeAlias

import ray
from ray.exceptions import ActorUnschedulableError, ObjectLostError, RayActorError

from forebay.data.cache.disk.disk_cache import DiskCache
from forebay.data.cache.node.actor import NodeCache
from forebay.data.cache.node.source import NodeSource
from forebay.data.cache.source import BlockSource
from forebay.data.cache.spec import CacheSpec
from forebay.data.transform.dataset import Dataset
from forebay.errors import CacheUnusable, Cancelled
from forebay.ray_cluster.actors import CACHE_PREFIX, NODE_DIGITS, Heartbeat, make_on_node
from forebay.ray_cluster.nodes import steady_nodes
from forebay.runtime.metrics import Counters

_MOST_CALLS = 1024
_POLL_S = 0.05
_REVIVE_S = 60.0
_REVIVE_WAIT_S = 0.2
_SILENT_S = 120.0
"""An actor answers a ping at once, however busy its data workers are. One that is silent for this long is stuck."""

Actor: TypeAlias = Any


class NodeCacheClient:
    """Client of the cache actor of one node.

    Creates the actor if there is none.
    """

    def __init__(self, spec: CacheSpec, node_id: str, *, is_here: bool) -> None:
        self.spec = spec
        self.node_id = node_id
        self.is_here = is_here
        self.name = _name_on(node_id, spec)
        self._disk: DiskCache | None = None
        self._actor = self._find_or_create()

    def disk(self) -> DiskCache:
        """Open the directory in this process.

        The process must be on the node. Raises `CacheUnusable`.
        """
        if self._disk is None:
            self._disk = self.spec.open()
        return self._disk

    def source(self, dataset: Dataset, counters: Counters) -> BlockSource:
        """Blocks of `dataset`, served by the node.

        Another node only builds and stores them: no arrays come back.
        """
        return NodeSource(self, dataset, counters)

    def facts(self) -> dict[str, Any]:
        """Facts of the actor.

        `pid`, `node_id`, `path` and `used_bytes`, and `inflight_bytes`: bytes of blocks in its memory now.
        """
        found: dict[str, Any] = self.call(threading.Event(), "facts")
        return found

    def call(self, cancelled: threading.Event, method: str, *arguments: Any) -> Any:
        """Call the actor and return its answer.

        If the actor dies meanwhile, calls its successor.

        Raises `CacheUnusable` if the actor keeps dying for 60 s, has not answered for 120 s, or its node has left the
        cluster. Raises `Cancelled` soon after `cancelled` is set.
        """
        give_up = time.monotonic() + _REVIVE_S
        while True:
            _check_connected(self.name)
            try:
                return self._wait(getattr(self._actor, method).remote(*arguments), cancelled)
            except ActorUnschedulableError as error:
                raise CacheUnusable(
                    f"the cache actor {self.name} cannot start: node {self.node_id} has left the cluster. "
                    "Repeat the request on the nodes that are in the cluster now.",
                    actor=self.name,
                ) from error
            except (RayActorError, ObjectLostError) as error:
                if time.monotonic() > give_up:
                    raise CacheUnusable(
                        f"the cache actor {self.name} kept dying for {_REVIVE_S:.0f} s ({error}). Read the reason in "
                        "its log (out of memory?), or set cache=None to train without a cache.",
                        actor=self.name,
                    ) from error
            cancelled.wait(_REVIVE_WAIT_S)
            # The name of a dying actor can be neither found nor taken: the next attempt succeeds.
            with suppress(ValueError):
                self._actor = self._find_or_create()

    def _wait(self, reply: Any, cancelled: threading.Event) -> Any:
        heartbeat = Heartbeat(self._actor)
        # In steps, because close() cannot end a blocking get.
        while not ray.wait([reply], timeout=_POLL_S)[0]:
            if cancelled.is_set():
                raise Cancelled("the request to the node's cache was cancelled")
            _check_connected(self.name)
            if heartbeat.silent_s() > _SILENT_S:
                raise CacheUnusable(
                    f"the cache actor {self.name} has not answered for {_SILENT_S:.0f} s. Its process on node "
                    f"{self.node_id} is stopped, or its interpreter is blocked. End it: the next call starts it.",
                    actor=self.name,
                )
        return ray.get(reply)

    def _find_or_create(self) -> Actor:
        return make_on_node(NodeCache, self.name, self.node_id, max_restarts=-1, max_concurrency=_MOST_CALLS)


def _check_connected(name: str) -> None:
    if not ray.is_initialized():
        # Ray would start a new cluster for a late call, for example from a thread with a stuck read.
        raise CacheUnusable(
            f"the cache actor {name} cannot be reached: this process has left its Ray cluster. Call ray.init() first, "
            "and close loaders before ray.shutdown().",
            actor=name,
        )


def _name_on(node_id: str, spec: CacheSpec) -> str:
    path = hashlib.sha256(spec.directory.encode()).hexdigest()[:12]
    return f"{CACHE_PREFIX}{node_id[:NODE_DIGITS]}-{path}"


def nodes_with_caches(spec: CacheSpec | None) -> tuple[str, ...]:
    """Ids of the nodes on which a run may have caches, now. Empty without a cache."""
    return () if spec is None else tuple(sorted(steady_nodes()))


def attach(spec: CacheSpec, nodes: Sequence[str] = ()) -> NodeCacheClient:
    """Connect to the cache of this node.

    It provides blocks. Ray must be initialised. `nodes` are those on which peers may be: with many, the cache does not
    list the cluster itself at its start.

    Raises `CacheUnusable` if the directory cannot be used here.
    """
    client = NodeCacheClient(spec, ray.get_runtime_context().get_node_id(), is_here=True)
    client.disk()
    _configure(client, [_name_on(node, spec) for node in nodes if node != client.node_id])
    return client


def attach_all(spec: CacheSpec) -> dict[str, NodeCacheClient]:
    """Connect to the caches of all living nodes.

    Returns clients by the first 12 digits of the node id.

    Raises `CacheUnusable` if one of the nodes cannot use the directory.
    """
    here = ray.get_runtime_context().get_node_id()
    nodes = sorted(node["NodeID"] for node in ray.nodes() if node["Alive"])
    clients = {node_id[:12]: NodeCacheClient(spec, node_id, is_here=node_id == here) for node_id in nodes}
    for client in clients.values():
        _configure(client)
    return clients


def _configure(client: NodeCacheClient, peers: Sequence[str] = ()) -> None:
    problem = client.call(threading.Event(), "configure", client.spec, peers)
    if problem:
        raise problem
