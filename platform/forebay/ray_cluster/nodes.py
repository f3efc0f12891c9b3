"""Nodes of a cluster, and placement groups on them.

Some nodes are about to be taken away.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ray
from ray._private import state as ray_state  # no public way; ray_cluster/private_names.py
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group

from forebay.runtime.gpus import GpuSupply

_PREFIX = "forebay-run-"
"""Prefix of a placement group's name. The run's name follows, by which the group is found again."""
CPU_ONLY = "cpu_only"
MARKET_LABEL = "ray.io/market-type"
URGENT_S = 20.0
"""With less time than this left, the world does not wait for a replacement to become warm."""


def draining_nodes() -> dict[str, float | None]:
    """Nodes that will be taken away, by id.

    The value is the Unix time (s) at which that happens, None if it is not known.
    """
    return {node: at_ms / 1000 if at_ms else None for node, at_ms in ray_state.state.get_draining_nodes().items()}


def is_urgent(leaving: Mapping[str, float | None]) -> bool:
    """Whether a node may leave before a new worker has started."""
    return any(at_s is None or at_s - time.time() < URGENT_S for at_s in leaving.values())


def steady_nodes() -> set[str]:
    """Ids of all living nodes that are not draining."""
    return _alive_nodes() - draining_nodes().keys()


def _alive_nodes() -> set[str]:
    return {node["NodeID"] for node in ray.nodes() if node["Alive"]}


def num_on_demand() -> int:
    """Number of living nodes whose label says that they are on demand, as a fleet's RayJobs and KubeRay set it."""
    return sum(node["Alive"] and node.get("Labels", {}).get(MARKET_LABEL) == "on-demand" for node in ray.nodes())


def nodes_for_data(data_nodes: str, nodes: Sequence[Mapping[str, Any]] | None = None) -> list[str]:
    """Ids of nodes that may build blocks for others.

    They are alive and not draining. `nodes` is Ray's list of nodes, None to ask for it.

    "cpu_only" are nodes with CPUs and without GPUs. Any other text names a custom resource that the nodes have.
    """
    leaving = draining_nodes()
    return sorted(
        node["NodeID"]
        for node in (ray.nodes() if nodes is None else nodes)
        if node["Alive"] and node["NodeID"] not in leaving and _is_for_data(node["Resources"], data_nodes)
    )


def _is_for_data(resources: Mapping[str, float], data_nodes: str) -> bool:
    if data_nodes == CPU_ONLY:
        return resources.get("CPU", 0.0) > 0 and not resources.get("GPU")
    return resources.get(data_nodes, 0.0) > 0


def cpus_of(node_id: str) -> float:
    """CPUs of a node, according to Ray. 0 after it left."""
    return float(sum(node["Resources"].get("CPU", 0.0) for node in ray.nodes() if node["NodeID"] == node_id))


def worker_capacity(need: Mapping[str, float]) -> int:
    """Number of workers that the living nodes can hold.

    Each needs the amounts of `need` on one node.
    """
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return sum(min(int(node.get(kind, 0.0) / each + 1e-9) for kind, each in need.items() if each) for node in nodes)


def gpus_of_cluster(*, grows: bool) -> GpuSupply:
    """GPUs of the living nodes.

    `grows`: other nodes may join, so that a run may wait for them.
    """
    nodes = tuple(float(node["Resources"].get("GPU", 0.0)) for node in ray.nodes() if node["Alive"])
    return GpuSupply(place="the cluster" if grows else "this machine", nodes=nodes, grows=grows)


def num_placed(run: str) -> int:
    """Number of workers of `run` that have their resources.

    Their processes may still be starting.
    """
    return len(_placed(run))


def nodes_of(run: str) -> set[str]:
    """Ids of the nodes that hold workers of `run`."""
    return {node for facts in _placed(run) for node in facts["bundles_to_node_id"].values()}


def _placed(run: str) -> list[Mapping[str, Any]]:
    return [
        facts
        for facts in placement_group_table().values()
        if facts["state"] == "CREATED" and facts["name"].startswith(f"{_PREFIX}{run}:")
    ]


def new_placement(run: str, bundle: Mapping[str, float]) -> PlacementGroup:
    """Request resources for one worker of `run`.

    Without room in the cluster, the request stays open.
    """
    # Ray requires a unique name.
    return placement_group([dict(bundle)], name=f"{_PREFIX}{run}:{uuid.uuid4().hex}")


def remove_placements(is_meant: Callable[[str], bool]) -> None:
    """Remove the placement groups that runs have left.

    Ray keeps them when only the process that requested them dies. `is_meant` is called with the name of a run.
    """
    for number, facts in placement_group_table().items():
        run, colon, _ = facts["name"].removeprefix(_PREFIX).rpartition(":")
        if colon and facts["name"].startswith(_PREFIX) and facts["state"] != "REMOVED" and is_meant(run):
            remove_placement_group(PlacementGroup(ray.PlacementGroupID(bytes.fromhex(number))))
