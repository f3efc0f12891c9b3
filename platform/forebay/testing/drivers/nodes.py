"""Ray cluster of small, removable nodes on this machine."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import time
from contextlib import ExitStack, suppress
from typing import Any

import ray
from ray._raylet import GcsClient  # type: ignore[attr-defined]
from ray.cluster_utils import Cluster
from ray.core.generated import autoscaler_pb2

from forebay.ray_cluster.private_names import SMALL_NODES, check_ray
from forebay.training.checkpoint.memory_store_actor import stores_of
from forebay.training.checkpoint.part_memory.actor import part_stores_of

STORE_BYTES = 80 << 20  # Size of each node's object store. Ray accepts no less than 75 MiB.
SYSTEM_CONFIG = {
    # A killed node is known to be dead after two seconds.
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 300,
    "health_check_failure_threshold": 6,
    # Ray 2.60: after the loss of a node, the process that collects metrics on another may occupy a core for minutes.
    "enable_metrics_collection": False,
}
BARE_HEAD = {"include_dashboard": False, "include_log_monitor": False, "no_monitor": True}
"""Arguments of a head node without an autoscaler and without logs at the driver: 1 CPU second less."""
ALIVE_S = 60.0


class SmallNodes:
    """Ray cluster of a head and other nodes.

    This process is its driver. `close` ends all of them.

    A killed node is known to be dead after two seconds. Ray's default is fifteen.

    Raises `UnsupportedRay` if the installed Ray cannot announce that a node will be drained.
    """

    def __init__(self, *, others: int, cpus: int = 1, head_cpus: int = 1) -> None:
        check_ray(SMALL_NODES)
        options: dict[str, Any] = {
            **BARE_HEAD,
            "num_cpus": head_cpus,
            "object_store_memory": STORE_BYTES,
            "_system_config": SYSTEM_CONFIG,
        }
        self._cpus = cpus
        self._cluster = Cluster(initialize_head=True, head_node_args=options)
        self._others: list[Any] = []
        with ExitStack() as undo:
            undo.callback(self.close)
            ray.init(address=self.address, log_to_driver=False, logging_level=logging.ERROR)
            for _ in range(others):
                self.add()
            undo.pop_all()

    @property
    def address(self) -> str:
        return str(self._cluster.address)

    @property
    def others(self) -> list[str]:
        """Ids of the nodes that can be removed."""
        return [str(node.node_id) for node in self._others]

    def add(self) -> str:
        """Add a node. Returns its id."""
        node = self._cluster.add_node(num_cpus=self._cpus, object_store_memory=STORE_BYTES)
        self._others.append(node)
        deadline = time.monotonic() + ALIVE_S
        while node.node_id not in {found["NodeID"] for found in ray.nodes() if found["Alive"]}:
            assert time.monotonic() < deadline, "a new node does not come up"
            time.sleep(0.05)
        return str(node.node_id)

    def kill(self, node_id: str) -> None:
        """End all processes of a node without notice.

        Like a loss of power.
        """
        node = self._pop(node_id)
        for raylet in node.all_processes["raylet"]:
            for worker in _children(raylet.process.pid):
                with suppress(ProcessLookupError):
                    os.kill(worker, signal.SIGKILL)
        self._cluster.remove_node(node, allow_graceful=False)

    def announce_drain(self, node_id: str, deadline_s: float) -> None:
        """Announce that a node will be removed at `deadline_s`.

        Unix time, as a cloud does.
        """
        reason = autoscaler_pb2.DrainNodeReason.DRAIN_NODE_REASON_PREEMPTION
        accepted = GcsClient(address=self.address).drain_node(node_id, reason, "taken back", int(deadline_s * 1000))
        assert accepted[0] if isinstance(accepted, tuple) else accepted, f"the drain was refused: {accepted}"

    def close(self) -> None:
        ray.shutdown()
        self._cluster.shutdown()

    def _pop(self, node_id: str) -> Any:
        node = next(node for node in self._others if node.node_id == node_id)
        self._others.remove(node)
        return node


def kill_stores(run: str) -> int:
    """End a run's memory stores without an upload.

    Stores of parts too. Returns their number.
    """
    stores = list(stores_of(run).values())
    assert stores, f"run {run!r} has no checkpoint in memory"
    stores += part_stores_of(run).values()
    for store in stores:
        ray.kill(store)
    return len(stores)


def _children(pid: int) -> list[int]:
    listing = subprocess.run(  # noqa: S603
        ["ps", "-o", "pid=", "--ppid", str(pid)],  # noqa: S607
        capture_output=True,
        text=True,
        check=False,
    )
    return [int(each) for each in listing.stdout.split()]
