"""One Ray of small nodes for all cases of a process. Nodes that a case removed are replaced."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray._private import state
from ray.cluster_utils import Cluster
from ray.util.placement_group import placement_group_table
from tests.preloaded.workers import WANTED, forked_workers
from tests.soak.case import AT_END, CannotStage, patience

from forebay.data.cache.node.actor import NAMESPACE
from forebay.testing.drivers.nodes import BARE_HEAD, STORE_BYTES, SYSTEM_CONFIG

ROOT = Path(__file__).parents[3]
PATIENCE_S = 90.0
"""Longest wait for an event that must happen, on a machine that may be busy."""


@dataclass(frozen=True)
class ClusterShape:
    """The head, where this process is a driver, and `others`, each with `cpus`."""

    others: int = 2
    cpus: int = 2
    dense: bool = False
    """For many faults on a busy machine. Workers fork (`tests.preloaded`), and are as nice as this process: Ray's 15
    more would leave them next to nothing. A silent node is given up after ten seconds: after two, nodes are lost
    without a strike."""

    @property
    def node(self) -> dict[str, Any]:
        return {"num_cpus": self.cpus, "object_store_memory": STORE_BYTES}

    @property
    def config(self) -> dict[str, Any]:
        dense = {"health_check_period_ms": 500, "health_check_failure_threshold": 20}
        return {**SYSTEM_CONFIG, **(dense if self.dense else {})}


THREE = ClusterShape()
FOUR = ClusterShape(others=3, cpus=1, dense=True)


class SmallCluster:
    """The head, where this process is a driver, and some other nodes."""

    def __init__(self, shape: ClusterShape = THREE) -> None:
        self._shape = shape
        self._cluster = Cluster(
            initialize_head=True, head_node_args={**shape.node, **BARE_HEAD, "_system_config": shape.config}
        )
        self._others = [self._cluster.add_node(**shape.node) for _ in range(shape.others)]
        self._cluster.wait_for_nodes()
        ray.init(address=self._cluster.address, log_to_driver=False, logging_level="error")

    @property
    def address(self) -> str:
        return str(self._cluster.address)

    @property
    def head(self) -> str:
        """The id of the driver's node."""
        return str(ray.get_runtime_context().get_node_id())

    @property
    def others(self) -> list[str]:
        """The ids of the nodes that a case may remove."""
        return [node.node_id for node in self._others]

    def kill_raylet(self, node_id: str) -> None:
        """Kill it like a machine that loses power: nothing on the node gets a signal first."""
        raylet = self._node(node_id).all_processes["raylet"][0].process
        raylet.kill()
        raylet.wait()  # its workers believe that a zombie is alive

    def remove(self, node_id: str) -> None:
        """Remove it like a scale-down: the node's processes get a request to end."""
        node = self._node(node_id)
        self._others.remove(node)
        self._cluster.remove_node(node, allow_graceful=True)

    def raylet_of(self, node_id: str) -> int:
        return int(self._node(node_id).all_processes["raylet"][0].process.pid)

    def heal(self) -> None:
        """End the remaining processes of dead nodes, and start new nodes in their place.

        Raises `CannotStage` if the machine is too busy to start them.
        """
        deadline = time.monotonic() + patience(PATIENCE_S)
        while True:
            dead = [node for node in self._others if node.all_processes["raylet"][0].process.poll() is not None]
            for node in dead:
                self._others.remove(node)
                self._cluster.remove_node(node, allow_graceful=False)
            with suppress(Exception):  # Ray raises no other when a node takes too long to start: it is tried again
                while len(self._others) < self._shape.others:
                    self._others.append(self._cluster.add_node(**self._shape.node))
            if len(self._others) == self._shape.others and alive() == {self.head, *self.others}:
                return
            if time.monotonic() > deadline:
                raise CannotStage("the nodes of the cluster do not come up")
            time.sleep(0.05)

    def close(self) -> None:
        ray.shutdown()
        self._cluster.shutdown()

    def _node(self, node_id: str) -> Any:
        return next(node for node in self._others if node.node_id == node_id)


_running: list[SmallCluster] = []


@contextmanager
def running(shape: ClusterShape = THREE) -> Iterator[SmallCluster]:
    """The cluster, until the end of the block."""
    ray.shutdown()
    with _environment(shape):
        cluster = SmallCluster(shape)
        _running.append(cluster)
        try:
            yield cluster
        finally:
            _running.clear()
            cluster.close()


def here(shape: ClusterShape = THREE) -> SmallCluster:
    """The cluster of this process. The first case of a soak starts it, the end of the process ends it."""
    if not _running:
        stack = ExitStack()
        if shape.dense:
            os.environ[WANTED] = "1"
        stack.enter_context(forked_workers())  # if they are wanted
        try:
            stack.enter_context(running(shape))
        except Exception as error:
            stack.close()
            raise CannotStage(f"Ray does not start: {type(error).__name__}: {error}") from error
        AT_END.append(stack.close)
    return _running[0]


def alive() -> set[str]:
    return {node["NodeID"] for node in ray.nodes() if node["Alive"]}


def until(condition: object, what: str, within_s: float = PATIENCE_S) -> None:
    """Wait until `condition()` holds. Fails after `within_s`."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not there after {within_s:.0f} s"
        time.sleep(0.02)


def cache_actors() -> list[str]:
    """Names of the living cache actors."""
    return [
        actor["name"] for actor in ray.util.list_named_actors(all_namespaces=True) if actor["namespace"] == NAMESPACE
    ]


def living() -> list[str]:
    """Every living actor and placement group, including cache actors."""
    # Ray's internal table: most actors have no name, and the public State API needs a dashboard.
    actors = [
        f"actor {actor['Name'] or actor['ActorClassName']}"
        for actor in state.actors().values()
        if actor["State"] != "DEAD"
    ]
    groups = placement_group_table().items()
    return actors + [f"placement group {group}" for group, facts in groups if facts["state"] != "REMOVED"]


@contextmanager
def _environment(shape: ClusterShape) -> Iterator[None]:
    """Let Ray's processes find the package `tests`. Afterwards restores the environment that `ray.init` changed."""
    before = dict(os.environ)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), before.get("PYTHONPATH")]))
    if shape.dense:
        os.environ.update(RAY_worker_niceness="0")
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)
