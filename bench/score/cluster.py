"""A cluster of three nodes on this machine, whose processes are killed at random."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray._private import state as ray_state
from ray.cluster_utils import Cluster

from forebay.runtime.foreign_code import error_of

NODES, NODE_CPUS = 2, 2
KINDS = ("worker", "driver", "node")
_SHARES = {"worker": 0.6, "driver": 0.2, "node": 0.2}
_STARTS = 10


class KilledCluster:
    """Head without workers, and nodes for them. `kill` ends one of `kinds`: an actor of class `actors`, the driver, or
    a node.
    """

    def __init__(self, seed: int, actors: str, kinds: Sequence[str] = KINDS, node_cpus: int = NODE_CPUS) -> None:
        self._random, self._started, self._actors = np.random.default_rng(seed), list[Any](), actors
        self._node_cpus, shares = node_cpus, np.array([_SHARES[kind] for kind in kinds])
        self._kinds, self._shares = kinds, shares / shares.sum()
        self._cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
        self._nodes = [self._new_node() for _ in range(NODES)]
        ray.init(address=self._cluster.address, log_to_driver=False)
        self.counts = dict.fromkeys(KINDS, 0)

    def start(self, command: Sequence[str]) -> subprocess.Popen[str]:
        """Start a driver on the cluster."""
        return subprocess.Popen(  # noqa: S603 - our own program
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "RAY_ADDRESS": self._cluster.address},
        )

    def kill(self, driver: subprocess.Popen[str]) -> str | None:
        """Kill something at random. Returns its kind, None if there was nothing of that kind."""
        kind = str(self._random.choice(self._kinds, p=self._shares))
        if kind == "driver":
            driver.kill()
        elif kind == "node":
            index = int(self._random.integers(len(self._nodes)))
            self._cluster.remove_node(self._nodes[index], allow_graceful=False)
            self._nodes[index] = self._new_node()
        else:
            processes = self._actor_processes()
            if not processes:
                return None
            os.kill(int(self._random.choice(processes)), signal.SIGKILL)
        self.counts[kind] += 1
        return kind

    def end(self) -> None:
        """End the cluster."""
        ray.shutdown()
        self._cluster.shutdown()

    def _actor_processes(self) -> list[int]:
        found: list[dict[str, Any]] = list(ray_state.actors().values())
        alive = [each["Pid"] for each in found if each["State"] == "ALIVE" and self._actors in each["ActorClassName"]]
        return [pid for pid in alive if Path(f"/proc/{pid}").exists()]

    def _new_node(self) -> Any:
        """Node that has started. On a busy machine Ray gives up after 30 s, and it is tried again."""
        for _ in range(_STARTS):
            if (
                error := error_of(lambda: self._started.append(self._cluster.add_node(num_cpus=self._node_cpus)))
            ) is None:
                return self._started.pop()
            print(f"a node did not start: {error}", flush=True)
        raise RuntimeError(f"no node started in {_STARTS} attempts")
