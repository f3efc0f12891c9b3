"""Three nodes on this machine, calls on them, and the end of their cache actors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import ray
from ray.cluster_utils import Cluster
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from forebay.data.cache.node.actor import NAMESPACE
from forebay.testing.drivers.nodes import BARE_HEAD


@contextmanager
def three_node_cluster() -> Iterator[list[str]]:
    """Cluster for the length of the block, with this process as a driver on its first node. Yields the nodes' ids."""
    ray.shutdown()
    cluster = Cluster(initialize_head=True, head_node_args={**BARE_HEAD, "num_cpus": 2})
    try:
        for _ in range(2):
            cluster.add_node(num_cpus=2)
        cluster.wait_for_nodes()
        ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
        yield sorted(node["NodeID"] for node in ray.nodes() if node["Alive"])
    finally:
        ray.shutdown()
        cluster.shutdown()


def on_node(node_id: str, work: Callable[..., Any], *arguments: Any) -> Any:
    """Call `work` in a task on the node. Returns the reference of its result."""
    strategy = NodeAffinitySchedulingStrategy(node_id, soft=False)
    return ray.remote(num_cpus=1, scheduling_strategy=strategy)(work).remote(*arguments)


def kill_cache_actors() -> None:
    """Kill the cache actors of all nodes."""
    for actor in ray.util.list_named_actors(all_namespaces=True):
        if actor["namespace"] == NAMESPACE:
            ray.kill(ray.get_actor(actor["name"], namespace=NAMESPACE))
