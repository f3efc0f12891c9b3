"""Nodes that are about to be taken away, as the cluster's control service knows them. Checked on Ray 2.60."""

from __future__ import annotations

import time
from collections.abc import Mapping

import ray
from ray._private import state as ray_state  # no public way

HURRY_S = 20.0
"""With less time than this left, nobody waits for a successor to be warm."""


def draining_nodes() -> dict[str, float | None]:
    """Node id -> Unix time at which it goes, None where nobody said when."""
    return {node: at_ms / 1000 if at_ms else None for node, at_ms in ray_state.state.get_draining_nodes().items()}


def in_a_hurry(leaving: Mapping[str, float | None]) -> bool:
    """Whether one of the nodes may be gone before another worker process has started."""
    return any(at_s is None or at_s - time.time() < HURRY_S for at_s in leaving.values())


def steady_nodes() -> set[str]:
    """The ids of all nodes that are there to stay."""
    # The one place that tells of drain notices without a dashboard; in 2.60 a dict of node id (hex) to deadline.
    draining = ray._private.worker.global_worker.gcs_client.get_draining_nodes()  # noqa: SLF001
    return _alive_nodes() - set(draining)


def _alive_nodes() -> set[str]:
    return {node["NodeID"] for node in ray.nodes() if node["Alive"]}


def worker_capacity(*, cpus: float, gpus: float) -> int:
    """Number of workers of `cpus` and `gpus` each that the living nodes can hold. A worker needs one node."""
    need = {"CPU": cpus, "GPU": gpus}
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return sum(min(int(node.get(kind, 0.0) / each + 1e-9) for kind, each in need.items() if each) for node in nodes)
