"""Capacity agent: counts what is free in its cluster, and writes it into the ConfigMap `forebay-capacity`."""

from __future__ import annotations

import threading
import time

from forebay.fleet.agent.mirror import NODES, PODS, Mirror
from forebay.fleet.clusters.cluster import Cluster
from forebay.fleet.kube.api import SILENCE_S, WATCH_S, KubeApi
from forebay.fleet.kube.api_errors import ApiUnreachable
from forebay.fleet.placement.capacity import Capacity
from forebay.fleet.placement.counting import count

CAPACITY = "forebay-capacity"
"""Name of the ConfigMap. Its keys are `capacity.json`, and `beat`, a number that grows with each write."""
LEAST_S, MOST_S = 5.0, 30.0
"""Shortest and longest time between two writes."""


class CapacityAgent:
    """Writes the capacity of `cluster` when it changes, at most every 5 s, and at least every 30 s.

    A reader knows the figures to be alive by `beat`. It stops growing while the API server does not answer the agent.
    """

    def __init__(
        self,
        api: KubeApi,
        cluster: Cluster,
        *,
        least_s: float = LEAST_S,
        most_s: float = MOST_S,
        watch_s: int = WATCH_S,
    ) -> None:
        self._api, self._cluster, self._least_s, self._most_s = api, cluster, least_s, most_s
        self._nodes, self._pods = (Mirror(api, path, watch_s=watch_s) for path in (NODES, PODS))
        self._beat = 0

    def run(self, ended: threading.Event) -> None:
        """Publish until `ended` is set."""
        for mirror in (self._nodes, self._pods):
            mirror.start()
        written_at, changes = float("-inf"), -1
        try:
            while not ended.wait(self._least_s):
                now, seen = time.monotonic(), self._nodes.changes + self._pods.changes
                is_due = seen != changes or now - written_at >= self._most_s
                if is_due and self._is_alive(now) and self._write():
                    written_at, changes = now, seen
        finally:
            for mirror in (self._nodes, self._pods):
                mirror.close()

    def capacity(self) -> Capacity:
        """Capacity as it is now."""
        return count(self._cluster, self._nodes.objects(), self._pods.objects(), time.monotonic())

    def _is_alive(self, now: float) -> bool:
        seen = [mirror.seen_at for mirror in (self._nodes, self._pods)]
        return all(each is not None and now - each < 2 * SILENCE_S for each in seen)

    def _write(self) -> bool:
        self._beat += 1
        data = {"capacity.json": self.capacity().to_json(), "beat": str(self._beat)}
        path = f"/api/v1/namespaces/{self._cluster.namespace}/configmaps/{CAPACITY}"
        try:
            self._api.merge(path, {"data": data})
        except ApiUnreachable:
            return False
        return True
