"""Data nodes over Ray. Checked with Ray 2.60.

A named actor on each, and blocks through the object store.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from typing import Any, Literal, TypeAlias, TypeVar

import ray
from ray.exceptions import RayError

from forebay.data.cache.builders.data_workers import usable_cores
from forebay.data.cache.builders.registered_datasets import BuildFailed
from forebay.data.cache.data_nodes.pool import DataNodeLost
from forebay.data.cache.data_nodes.service import DataNodeService, SentBlock
from forebay.data.cache.requests import InMemoryBlock, Reply
from forebay.data.transform.block import Block
from forebay.errors import ForebayError
from forebay.ray_cluster.actors import DATA_NODE_PREFIX, NODE_DIGITS, Heartbeat, make_on_node
from forebay.ray_cluster.metrics_export import exported
from forebay.ray_cluster.nodes import cpus_of, nodes_for_data


class DataNode:
    """Actor that builds blocks for other nodes' caches.

    It uses the cores of the node it is pinned to.

    Errors for the user are returned, not raised, so that they arrive without Ray's wrapper.
    """

    def __init__(self) -> None:
        node_id = ray.get_runtime_context().get_node_id()
        # Ray may be given fewer cores than the machine has, where other programs share it.
        self._num_cores = max(1, int(min(usable_cores(), cpus_of(node_id) or usable_cores())))
        self._service = DataNodeService(num_cores=self._num_cores, send=_put)
        self._exporting = ExitStack()
        tags = {"role": "data", "node": node_id[:NODE_DIGITS]}
        self._exporting.enter_context(exported(tags, self._service.counters.as_dict))

    async def cores(self) -> int:
        """Number of cores that build blocks."""
        return self._num_cores

    async def register(self, dataset_id: str, payload: bytes) -> ForebayError | None:
        """Register a dataset. Returns the error if that fails."""
        try:
            self._service.register(dataset_id, payload)
        except ForebayError as error:
            return error
        return None

    async def build(self, dataset_id: str, index: int) -> SentBlock[Any] | BuildFailed | Literal["unknown"]:
        """Build block `index`.

        Puts (rows, arrays) into Ray's object store.
        """
        await self._service.wait_for_registration(dataset_id)
        return await asyncio.wrap_future(self._service.request(dataset_id, index))


def _put(block: Block) -> Any:
    # In the thread that built it, as in the cache's actor.
    return ray.put((block.rows, dict(block.arrays)))


T = TypeVar("T")
Actor: TypeAlias = Any

_MOST_CALLS = 1024
_ANSWER_S = 5.0
_SAME_TIME_S = 0.2
_POLL_S = 0.05
_SILENT_S = 30.0
_SEND_S = 60.0
_MOST_NODES = 32
_LISTED_S, _LISTED_PER_NODE_S = 2.0, 0.1
"""All nodes together list the cluster 10 times a second at most: the list comes from one process, Ray's GCS."""


def chosen_nodes(here: str, nodes: Collection[str]) -> list[str]:
    """Data nodes that the node `here` uses: at most 32, by the hash of both ids (Thaler and Ravishankar, 1998).

    All nodes are used about equally, and one that leaves moves its share only.
    """
    ranked = sorted(nodes, key=lambda node: hashlib.sha256(f"{here} {node}".encode()).digest())
    return [node for node in ranked if node != here][:_MOST_NODES]


class RayDataNodes:
    """`DataNodeTransport` over Ray, for the node `node_id`.

    For use outside of an event loop. The node itself is left out of its data nodes.

    A node uses at most 32 data nodes, others use others: each connection is a look-up at Ray's GCS, and each data node
    gets the dataset. The list of nodes is asked for less often in a large cluster, since all of it comes from one
    process.
    """

    def __init__(self, node_id: str) -> None:
        self._here = node_id
        self._actors: dict[str, Actor] = {}
        self._asked: dict[str, ray.ObjectRef] = {}
        self._listed: tuple[str, float, dict[str, str]] | None = None

    def cores(self, data_nodes: str) -> Mapping[str, float]:
        """Cores by the first 12 digits of the node id."""
        try:
            nodes = self._nodes(data_nodes)
            for name in self._asked.keys() - nodes.keys():
                self._forget(name)
            for name in nodes.keys() - self._asked.keys():
                actor = make_on_node(
                    DataNode, f"{DATA_NODE_PREFIX}{name}", nodes[name], max_restarts=-1, max_concurrency=_MOST_CALLS
                )
                self._actors[name] = actor
                self._asked[name] = actor.cores.remote()
        except (RayError, RuntimeError, ValueError) as error:
            raise DataNodeLost(f"the data nodes of the cluster cannot be listed: {error}") from error
        asked = {answer: name for name, answer in list(self._asked.items())}
        answers: dict[str, float] = {}
        if not asked:
            return answers
        # An actor that is starting is seen in the next round, so that the others need not wait for it.
        ray.wait(list(asked), num_returns=1, timeout=_ANSWER_S)
        ready, _ = ray.wait(list(asked), num_returns=len(asked), timeout=_SAME_TIME_S)
        for answer in ready:
            try:
                answers[asked[answer]] = float(ray.get(answer, timeout=_ANSWER_S))
            except RayError:
                self._forget(asked[answer])
        return answers

    def register(self, name: str, dataset_id: str, payload: bytes) -> ForebayError | None:
        problem: ForebayError | None = self._call(name, lambda actor: actor.register.remote(dataset_id, payload))
        return problem

    def build(self, name: str, dataset_id: str, index: int) -> Reply:
        reply: Any = self._call(name, lambda actor: actor.build.remote(dataset_id, index))
        if not isinstance(reply, SentBlock):
            return reply  # type: ignore[no-any-return]
        try:
            rows, arrays = ray.get(reply.sent, timeout=_SEND_S)
        except RayError as error:
            raise DataNodeLost(f"the block did not arrive: {error}") from error
        return InMemoryBlock(sums=reply.sums, rows=rows, arrays=arrays)

    def _nodes(self, data_nodes: str) -> dict[str, str]:
        """Chosen nodes by the first digits of their ids."""
        now = time.monotonic()
        if self._listed is None or self._listed[0] != data_nodes or now >= self._listed[1]:
            nodes = ray.nodes()
            chosen = chosen_nodes(self._here, nodes_for_data(data_nodes, nodes))
            due = now + max(_LISTED_S, _LISTED_PER_NODE_S * len(nodes))
            self._listed = data_nodes, due, {node[:NODE_DIGITS]: node for node in chosen}
        return self._listed[2]

    def _call(self, name: str, ask: Callable[[Actor], ray.ObjectRef]) -> Any:
        actor = self._actors.get(name)
        if actor is None:
            raise DataNodeLost("it has left the cluster")
        try:
            reply, heartbeat = ask(actor), Heartbeat(actor)
            while not ray.wait([reply], timeout=_POLL_S)[0]:
                if heartbeat.silent_s() > _SILENT_S:
                    raise DataNodeLost(f"it has not answered for {_SILENT_S:.0f} s")
            return ray.get(reply)
        except RayError as error:
            self._forget(name)
            raise DataNodeLost(f"its actor died: {error}") from error

    def _forget(self, name: str) -> None:
        self._actors.pop(name, None)
        self._asked.pop(name, None)
