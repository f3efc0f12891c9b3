"""Ray actor that builds blocks on a data node: one per node, shared by all jobs. Checked with Ray 2.60."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from typing import Any, Literal

import ray

from forebay.data.cache.builders.data_workers import usable_cores
from forebay.data.cache.data_nodes.service import DataNodeService, SentBlock
from forebay.data.cache.requests.reply import BuildFailed
from forebay.data.transform.block import Block
from forebay.errors import ForebayError
from forebay.ray_cluster.actors import NODE_DIGITS
from forebay.ray_cluster.metrics_export import exported
from forebay.ray_cluster.nodes import cpus_of


class DataNode:
    """Actor that builds blocks for the caches of other nodes, on the cores of the node it is pinned to.

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
        """Build block `index`, and put (rows, arrays) into Ray's object store."""
        return await asyncio.wrap_future(self._service.request(dataset_id, index))


def _put(block: Block) -> Any:
    # In the thread that built it, as in the cache's actor.
    return ray.put((block.rows, dict(block.arrays)))
