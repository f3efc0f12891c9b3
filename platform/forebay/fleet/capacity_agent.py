"""Capacity agent of a cluster.

It counts free machines and writes them into the ConfigMap `forebay-capacity`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

from forebay.errors import ReadFailed
from forebay.fleet.cluster import Cluster
from forebay.fleet.kube.api import SILENCE_S, WATCH_S, KubeApi, Object
from forebay.fleet.kube.api_errors import ApiUnreachable, VersionExpired
from forebay.fleet.placement.capacity import Capacity
from forebay.fleet.placement.counting import count
from forebay.fleet.status import STALLED_S, LivenessTimer, Status
from forebay.runtime.foreign_code import begin

CAPACITY = "forebay-capacity"
"""Name of the ConfigMap. Its keys are `capacity.json`, and `beat`, a number that grows with each write."""
LEAST_S, MOST_S = 5.0, 30.0
"""Shortest and longest time between two writes."""
NODES, PODS = "/api/v1/nodes", "/api/v1/pods"

_PAUSE_S = 2.0
_OF_CONTAINER = ("resources", "restartPolicy")


class Mirror(threading.Thread):
    """In-memory copy of a Kubernetes resource list.

    A thread lists `path` once, and then follows watches of `watch_s` seconds. Only what counting needs is kept: 15,000
    pods are 390 MB as they come (measured).

    Attributes:
        changes: Number of changes so far.
        seen_at: Time of the monotonic clock at which the server was last heard, None before the first list.
        heartbeat: Beats with each answer, and with each silence that reached its deadline.
    """

    def __init__(self, api: KubeApi, path: str, *, watch_s: int = WATCH_S) -> None:
        super().__init__(name=f"forebay-mirror{path.replace('/', '-')}", daemon=True)
        self._api, self._path, self._watch_s = api, path, watch_s
        self._objects: dict[str, Object] = {}
        self._lock = threading.Lock()
        self._is_closed = threading.Event()
        self.changes = 0
        self.seen_at: float | None = None
        self.heartbeat = LivenessTimer(STALLED_S)

    def objects(self) -> list[Object]:
        """Return the current objects, sorted by name."""
        with self._lock:
            return [self._objects[name] for name in sorted(self._objects)]

    def close(self) -> None:
        """End the thread after the next change or watch.

        It does not hold up the process.
        """
        self._is_closed.set()

    def run(self) -> None:
        while not self._is_closed.is_set():
            try:
                self._follow(self._list())
            except VersionExpired:
                continue
            except ApiUnreachable:
                # Old figures are known by `seen_at`.
                self.heartbeat.beat()
                self._is_closed.wait(_PAUSE_S)

    def _list(self) -> str:
        found: dict[str, Object] = {}
        version = "0"
        for page in self._api.pages(self._path):
            self.heartbeat.beat()
            version = page["metadata"]["resourceVersion"]
            found |= {_name(each): trimmed(each) for each in page.get("items") or ()}
        with self._lock:
            self._objects = found
        self._count_change()
        return version

    def _follow(self, version: str) -> None:
        while not self._is_closed.is_set():
            self.heartbeat.beat()
            for kind, each in self._api.watch(self._path, version=version, timeout_s=self._watch_s):
                version = each["metadata"]["resourceVersion"]
                self.heartbeat.beat()
                if kind == "BOOKMARK":
                    self.seen_at = time.monotonic()
                else:
                    self._keep(kind, each)
                if self._is_closed.is_set():
                    return

    def _keep(self, kind: str, changed: Object) -> None:
        with self._lock:
            if kind == "DELETED":
                self._objects.pop(_name(changed), None)
            else:
                self._objects[_name(changed)] = trimmed(changed)
        self._count_change()

    def _count_change(self) -> None:
        self.changes += 1
        self.seen_at = time.monotonic()


def trimmed(found: Mapping[str, Any]) -> Object:
    """Fields of a node or a pod that counting needs."""
    meta, spec, status = found["metadata"], found.get("spec") or {}, found.get("status") or {}
    return {
        "metadata": {"name": meta["name"], "labels": meta.get("labels") or {}},
        "spec": {
            **{
                name: [{field: each[field] for field in _OF_CONTAINER if field in each} for each in spec[name]]
                for name in ("containers", "initContainers")
                if name in spec
            },
            **{
                name: spec[name]
                for name in ("nodeName", "nodeSelector", "tolerations", "overhead", "taints", "unschedulable")
                if name in spec
            },
        },
        "status": {
            **{name: status[name] for name in ("phase", "allocatable") if name in status},
            "conditions": [
                {"type": each["type"], "status": each["status"]}
                for each in status.get("conditions") or ()
                if each["type"] == "Ready"
            ],
        },
    }


def _name(found: Mapping[str, Any]) -> str:
    meta = found["metadata"]
    return f"{meta.get('namespace', '')}/{meta['name']}"


class CapacityAgent:
    """Publishes the capacity of `cluster` when it changes.

    It writes at most every 5 s, and at least every 30 s. A reader knows the figures to be alive by `beat`. It stops
    growing while the API server does not answer the agent.

    Attributes:
        status: Health and metrics. Ready while the figures are younger than three times `most_s`.
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
        self._loop = LivenessTimer(STALLED_S)
        live = {"loop": self._loop, "nodes": self._nodes.heartbeat, "pods": self._pods.heartbeat}
        self.status = Status(live=live, ready=LivenessTimer(3 * most_s, is_beating=False))
        self.status.set("capacity_written_timestamp_seconds", 0)

    def run(self, ended: threading.Event) -> None:
        """Publish until `ended` is set."""
        for mirror in (self._nodes, self._pods):
            begin(mirror)
        written_at, changes = float("-inf"), -1
        try:
            while not ended.wait(self._least_s):
                self._loop.beat()
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
        capacity = self.capacity()
        data = {"capacity.json": capacity.to_json(), "beat": str(self._beat)}
        path = f"/api/v1/namespaces/{self._cluster.namespace}/configmaps/{CAPACITY}"
        try:
            self._api.merge(path, {"data": data})
        except ApiUnreachable:
            self.status.add("capacity_failed_writes_total")
            return False
        self._tell(capacity)
        return True

    def _tell(self, capacity: Capacity) -> None:
        free = {
            pool: sum(each.count * each.free.gpus for each in capacity.nodes if pool in each.pools)
            for pool in (f"{name}/{market}" for name, sku in self._cluster.sku.items() for market in sku.markets)
        }
        self.status.replace("capacity_free_gpus", "pool", free)
        self.status.set("capacity_pending_gpus", capacity.pending_gpus)
        self.status.set("capacity_written_timestamp_seconds", time.time())
        self.status.add("capacity_writes_total")
        self.status.ready.beat()


def await_figures(api: KubeApi, namespace: str, *, within_s: float = 3 * MOST_S) -> Capacity:
    """Wait for new figures of a cluster's agent.

    Raises `ReadFailed` if none come, and `KubeError`s.
    """
    path, end = f"/api/v1/namespaces/{namespace}/configmaps/{CAPACITY}", time.monotonic() + within_s
    first = (api.get(path).get("data") or {}).get("beat")
    while time.monotonic() < end:
        data = api.get(path).get("data") or {}
        if data.get("beat") != first:
            return Capacity.from_json(data["capacity.json"], time.time())
        time.sleep(1)
    raise ReadFailed(
        f"the agent of namespace {namespace} wrote no figures for {within_s:.0f} s. Look at its log: kubectl logs "
        f"deployment/forebay-agent -n {namespace}"
    )
