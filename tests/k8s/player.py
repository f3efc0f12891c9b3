"""The kubelet and KubeRay's operator, played.

Bound pods run, RayJobs get clusters, clusters get pods, and jobs end.
"""

from __future__ import annotations

import datetime
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress

from tests.k8s.control_plane import ControlPlane

from forebay.fleet.kube.api import KubeApi, Object
from forebay.fleet.kube.api_errors import KubeError, ObjectMissing

RAY = "/apis/ray.io/v1"
ENDED = ("Complete", "Failed", "ValidationFailed")


class Player(threading.Thread):
    """Plays one cluster, looking every 0.2 s.

    The attributes are a test's switches.

    Attributes:
        run_job: Called with a RayJob each time it is seen running. Returns its job status, "RUNNING" while it runs.
        run_pod: Called with a pod whose command is Forebay's. Returns its exit code.
        operator_runs: False: finalizers stay, and nothing is created.
        lost_nodes: Names of nodes whose kubelet is silent.
    """

    def __init__(self, api: KubeApi, run: Callable[[Object], str]) -> None:
        super().__init__(daemon=True)
        self.api, self.run_job, self.operator_runs = api, run, True
        self.run_pod: Callable[[Object], int] | None = None
        self.lost_nodes: set[str] = set()
        self.ended = threading.Event()
        self.errors: list[str] = []
        self._beats = 0

    def run(self) -> None:
        while not self.ended.wait(0.2):
            try:
                self._kubelet()
                if self.operator_runs:
                    for each in list(self.api.items(f"{RAY}/rayclusters")):
                        self._cluster(each)
                    for each in list(self.api.items(f"{RAY}/rayjobs")):
                        self._job(each)
            except KubeError as error:
                # Somebody deleted the object meanwhile, or a test froze the server.
                self.errors.append(str(error))

    def is_ready(self, pod: Object) -> bool:
        """Start the container of a bound pod if possible.

        Returns whether it has started.
        """
        return True

    def end_code(self, pod: Object) -> int | None:
        """Exit code of a container, None while it runs."""
        return None

    def end_pod(self, pod: Object) -> None:
        """End the container of a pod that is deleted."""

    def submit(self, job: Object, cluster: str) -> None:
        """Create the submitter of a RayJob, whose RayCluster is ready."""

    def outcome(self, job: Object) -> tuple[str, str]:
        """Job status of a RayJob, and its message."""
        return self.run_job(job), ""

    def _kubelet(self) -> None:
        self._beats += 1
        if self._beats % 5 == 1:
            for node in self.api.items("/api/v1/nodes"):
                if node["metadata"]["name"] not in self.lost_nodes:
                    path = f"/api/v1/nodes/{node['metadata']['name']}/status"
                    self.api.merge(path, {"status": {"conditions": [ready()]}})
        for pod in list(self.api.items("/api/v1/pods")):
            if pod["spec"].get("nodeName") not in self.lost_nodes:
                self._pod(pod)

    def _pod(self, pod: Object) -> None:
        meta, phase = pod["metadata"], pod["status"].get("phase")
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
        if meta.get("deletionTimestamp"):
            self.end_pod(pod)
            self.api.delete(path, at_once=True)
        elif phase == "Running" and (code := self.end_code(pod)) is not None:
            self.api.merge(f"{path}/status", {"status": {"phase": "Failed" if code else "Succeeded"}})
        elif phase == "Pending" and pod["spec"].get("nodeName"):
            if self.run_pod is not None and pod["spec"]["containers"][0].get("command", [""])[0] == "forebay":
                self._start(pod, path)
            elif self.is_ready(pod):
                kinds = ("Initialized", "ContainersReady", "Ready", "PodScheduled")
                conditions = [{"type": kind, "status": "True"} for kind in kinds]
                self.api.merge(
                    f"{path}/status", {"status": {"phase": "Running", "podIP": "10.1.0.1", "conditions": conditions}}
                )

    def _start(self, pod: Object, path: str) -> None:
        run = self.run_pod

        def work() -> None:
            phase = "Failed" if run is None or run(pod) else "Succeeded"
            self.api.merge(f"{path}/status", {"status": {"phase": phase}})

        self.api.merge(f"{path}/status", {"status": {"phase": "Running"}})
        # A thread of its own: the command may wait for what this loop does.
        threading.Thread(target=work, daemon=True).start()

    def _cluster(self, cluster: Object) -> None:
        meta, spec = cluster["metadata"], cluster["spec"]
        if meta.get("deletionTimestamp"):
            return
        pods_path = f"/api/v1/namespaces/{meta['namespace']}/pods"
        pods = list(self.api.items(pods_path, labelSelector=f"ray.io/cluster={meta['name']}"))
        groups = [("head", "headgroup", 1, spec["headGroupSpec"]["template"])]
        groups += [
            ("worker", each["groupName"], each.get("replicas") or 0, each["template"])
            for each in spec.get("workerGroupSpecs") or ()
        ]
        for kind, group, count, template in groups:
            labels = {
                "ray.io/cluster": meta["name"],
                "ray.io/node-type": kind,
                "ray.io/group": group,
                "ray.io/is-ray-node": "yes",
            }
            there = [
                each
                for each in pods
                if each["metadata"]["labels"]["ray.io/group"] == group
                and each["status"].get("phase") in ("Pending", "Running")
            ]
            for _ in range(count - len(there)):
                given = (template.get("metadata") or {}).get("labels", {})
                metadata = {"generateName": f"{meta['name']}-{group}-", "labels": {**given, **labels}}
                self.api.create(
                    pods_path, {"metadata": {**metadata, "ownerReferences": [owner(cluster)]}, "spec": template["spec"]}
                )
        running = [each for each in pods if each["status"].get("phase") == "Running"]
        is_ready = len(running) == sum(count for _, _, count, _ in groups)
        if is_ready and cluster.get("status", {}).get("state") != "ready":
            condition = {
                "type": "RayClusterProvisioned",
                "status": "True",
                "reason": "AllPodRunningAndReadyFirstTime",
                "message": "",
                "lastTransitionTime": stamp(),
            }
            self.api.merge(
                f"{RAY}/namespaces/{meta['namespace']}/rayclusters/{meta['name']}/status",
                {"status": {"state": "ready", "conditions": [condition]}},
            )

    def _job(self, job: Object) -> None:
        meta, spec, status = job["metadata"], job["spec"], job.get("status") or {}
        path = f"{RAY}/namespaces/{meta['namespace']}/rayjobs/{meta['name']}"

        def say(**news: object) -> None:
            self.api.merge(f"{path}/status", {"status": news})

        match status.get("jobDeploymentStatus", ""):
            case _ if meta.get("deletionTimestamp"):
                self.api.merge(path, {"metadata": {"finalizers": None}})
            case "":
                self.api.merge(path, {"metadata": {"finalizers": ["ray.io/rayjob-finalizer"]}})
                name = f"{meta['name']}-{secrets.token_hex(3)}"
                say(jobDeploymentStatus="Initializing", jobId=name, rayClusterName=name, startTime=stamp())
            case "Initializing":
                self._initialize(job, status["rayClusterName"], spec, say)
            case "Complete" | "Failed" if spec.get("shutdownAfterJobFinishes"):
                assert not spec.get("ttlSecondsAfterFinished"), "a time to wait is not played"
                cluster = f"{RAY}/namespaces/{meta['namespace']}/rayclusters/{status.get('rayClusterName')}"
                with suppress(ObjectMissing):
                    self.api.delete(cluster)
            case "Running":
                result, message = self.outcome(job)
                if result != "RUNNING":
                    # A stopped job is complete, too.
                    deployment = "Failed" if result == "FAILED" else "Complete"
                    say(jobDeploymentStatus=deployment, jobStatus=result, message=message, endTime=stamp())

    def _initialize(self, job: Object, name: str, spec: Object, say: Callable[..., None]) -> None:
        meta = job["metadata"]
        clusters = f"{RAY}/namespaces/{meta['namespace']}/rayclusters"
        if age_s(meta["creationTimestamp"]) > spec.get("preRunningDeadlineSeconds", 1e9):
            say(jobDeploymentStatus="Failed", reason="PreRunningDeadlineExceeded", endTime=stamp())
            return
        try:
            cluster = self.api.get(f"{clusters}/{name}")
        except ObjectMissing:
            metadata = {
                "name": name,
                "ownerReferences": [owner(job)],
                "labels": {
                    "ray.io/originated-from-cr-name": meta["name"],
                    "ray.io/originated-from-crd": "RayJob",
                },
            }
            body = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "spec": spec["rayClusterSpec"]}
            self.api.create(clusters, {**body, "metadata": metadata})
            return
        if cluster.get("status", {}).get("state") == "ready":
            self.submit(job, name)
            say(jobDeploymentStatus="Running", jobStatus="RUNNING", rayJobInfo={"startTime": stamp()})


def add_nodes(api: KubeApi, count: int, resources: dict[str, str], labels: dict[str, str], *, prefix: str) -> None:
    for number in range(count):
        name = f"{prefix}-{number}"
        metadata = {"name": name, "labels": {**labels, "kubernetes.io/hostname": name}}
        api.create("/api/v1/nodes", {"metadata": metadata})
        status = {"capacity": resources, "allocatable": resources, "conditions": [ready()]}
        api.merge(f"/api/v1/nodes/{name}/status", {"status": status})


def owner(of: Object) -> Object:
    meta = of["metadata"]
    return {
        "apiVersion": "ray.io/v1",
        "kind": of["kind"],
        "name": meta["name"],
        "uid": meta["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def ready() -> Object:
    now = stamp()
    return {
        "type": "Ready",
        "status": "True",
        "reason": "Played",
        "lastHeartbeatTime": now,
        "lastTransitionTime": now,
    }


def stamp() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def age_s(when: str) -> float:
    then = datetime.datetime.fromisoformat(when)
    return (datetime.datetime.now(datetime.UTC) - then).total_seconds()


@contextmanager
def playing(planes: Mapping[str, ControlPlane]) -> Iterator[dict[str, Player]]:
    """Play each cluster for the length of a block.

    Jobs succeed at once.
    """
    found = {name: Player(plane.api(), lambda _: "SUCCEEDED") for name, plane in planes.items()}
    for player in found.values():
        player.start()
    yield found
    for player in found.values():
        player.ended.set()
    for player in found.values():
        player.join(5)
