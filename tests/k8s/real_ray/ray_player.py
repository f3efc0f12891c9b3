"""The operator and the kubelet, played with real Ray.

Pods of a RayCluster are Ray nodes of this machine, and the submitter's pod runs `ray job submit`. Commands equal
KubeRay 1.7's, with ports of their own.
"""

from __future__ import annotations

import json
import secrets
import shutil
import tempfile
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.k8s.control_plane import ControlPlane
from tests.k8s.player import Player, owner
from tests.k8s.real_ray.pod_process import LogServer, PodProcess, unescaped

from forebay.fleet.kube.api import Object
from forebay.testing.drivers.ray_processes import RAY, free_ports, head_options

STORE_BYTES = 80 << 20
ANSWER_S = 5.0
SUBMITS_TO = "tests/submits-to"
"""Label of a submitter's pod with the name of its RayCluster."""


@dataclass
class RayHead:
    """Head of one RayCluster: token, ports and temporary folder.

    Its processes share the folder.
    """

    spec: Object
    token: str = field(default_factory=lambda: secrets.token_hex(32))
    ports: dict[str, int] = field(default_factory=head_options)
    temp: str = field(default_factory=lambda: tempfile.mkdtemp(prefix="fb-"))

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.ports['dashboard-port']}"

    @property
    def environment(self) -> dict[str, str]:
        return {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": self.token,
            "RAY_TMPDIR": self.temp,
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_enable_metrics_collection": "0",
        }

    def get(self, path: str, *, port: str = "dashboard-port") -> str | None:
        """Answer of the dashboard, with the token. None without one."""
        request = urllib.request.Request(f"http://127.0.0.1:{self.ports[port]}{path}")
        request.add_header("Authorization", f"Bearer {self.token}")
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
                return answer.read().decode()
        except OSError:
            return None


class RayPlayer(Player):
    """Plays one cluster, with processes as pods.

    They are below `folder`. All have `environment`, as of their machines.
    """

    def __init__(self, plane: ControlPlane, folder: Path, environment: Mapping[str, str]) -> None:
        super().__init__(plane.api(), lambda _: "RUNNING")
        self.folder, self.environment = folder, dict(environment)
        self.heads: dict[str, RayHead] = {}
        self.pods: dict[str, PodProcess] = {}
        self.logs = LogServer(plane.pki, self.pods.get)
        endpoint = {"kubeletEndpoint": {"Port": self.logs.port}}
        status = {"addresses": [{"type": "InternalIP", "address": "127.0.0.1"}], "daemonEndpoints": endpoint}
        for node in list(self.api.items("/api/v1/nodes")):
            self.api.merge(f"/api/v1/nodes/{node['metadata']['name']}/status", {"status": status})

    def signal(self, number: int) -> None:
        """Send a signal to all processes of the cluster.

        Processes of its Ray jobs get it, too.
        """
        for process in list(self.pods.values()):
            process.processes.signal(number)

    def is_submitter(self, name: str) -> bool:
        """Whether a pod is the submitter of a RayJob."""
        return SUBMITS_TO in self.pods[name].pod["metadata"]["labels"]

    def close(self) -> None:
        self.ended.set()
        self.join(30)
        for process in self.pods.values():
            process.processes.kill()
        for head in self.heads.values():
            shutil.rmtree(head.temp, ignore_errors=True)
        self.logs.close()

    def job_info(self, job: Object) -> Object:
        """Return the dashboard's facts on a RayJob.

        Empty without an answer.
        """
        status = job.get("status") or {}
        head = self.heads.get(status.get("rayClusterName", ""))
        text = None if head is None else head.get(f"/api/jobs/{status['jobId']}")
        return {} if text is None else json.loads(text)

    def is_ready(self, pod: Object) -> bool:
        name, labels = pod["metadata"]["name"], pod["metadata"].get("labels") or {}
        head = self.heads.get(labels.get("ray.io/cluster") or labels.get(SUBMITS_TO, ""))
        if head is None:
            return True
        kind = labels.get("ray.io/node-type", "submitter")
        if name not in self.pods and (kind != "worker" or self._answers(head)):
            command = self._command(pod, head, kind)
            self.pods[name] = PodProcess(pod, command, self.folder / name, self.environment | head.environment)
        if name not in self.pods:
            return False
        match kind:
            case "head":
                return self._answers(head)
            case "worker":
                return "Ray runtime started" in self.pods[name].text()
        return True

    def end_code(self, pod: Object) -> int | None:
        process = self.pods.get(pod["metadata"]["name"])
        return None if process is None else process.exit_code

    def end_pod(self, pod: Object) -> None:
        process = self.pods.get(pod["metadata"]["name"])
        if process is not None:
            process.processes.kill()

    def outcome(self, job: Object) -> tuple[str, str]:
        info = self.job_info(job)
        state = info.get("status", "PENDING")
        # KubeRay waits for the end of the submitter, too, which prints the last lines.
        prefix = job["metadata"]["name"]
        prints = any(
            name.startswith(prefix) and self.is_submitter(name) and each.exit_code is None
            for name, each in self.pods.items()
        )
        return ("RUNNING" if state == "PENDING" or prints else state), str(info.get("message") or "")

    def submit(self, job: Object, cluster: str) -> None:
        """Create the pod of the submitter, as KubeRay does."""
        meta, template = job["metadata"], job["spec"]["submitterPodTemplate"]
        path = f"/api/v1/namespaces/{meta['namespace']}/pods"
        labels = {SUBMITS_TO: cluster, "job-name": meta["name"]}
        labels |= template["metadata"]["labels"]
        body = {"metadata": {"name": f"{meta['name']}-{secrets.token_hex(3)}", "labels": labels}}
        body["metadata"]["ownerReferences"] = [owner(job)]
        submitted = list(self.api.items(path, labelSelector=f"job-name={meta['name']}"))
        if not submitted:
            self.heads[cluster].spec["entrypoint"] = unescaped(job["spec"]["entrypoint"])
            self.heads[cluster].spec["jobId"] = job["status"]["jobId"]
            self.api.create(path, {**body, "spec": template["spec"]})

    def _cluster(self, cluster: Object) -> None:
        name = cluster["metadata"]["name"]
        if name not in self.heads:
            self.heads[name] = RayHead(dict(cluster["spec"]))
        super()._cluster(cluster)

    def _answers(self, head: RayHead) -> bool:
        """Readiness of a head, by the probe of KubeRay."""
        raylet = head.get("/api/local_raylet_healthz", port="dashboard-agent-listen-port")
        return raylet == "success" and head.get("/api/gcs_healthz") == "success"

    def _command(self, pod: Object, head: RayHead, kind: str) -> str:
        (container,) = pod["spec"]["containers"]
        if kind == "submitter":
            at, job = f"--address {head.address}", head.spec["jobId"]
            return (
                f"if ! {RAY} job status {at} {job} >/dev/null 2>&1 ; "
                f"then {RAY} job submit {at} --no-wait --submission-id {job} -- {head.spec['entrypoint']} ; "
                f"fi ; {RAY} job logs {at} --follow {job}"
            )
        if kind == "head":
            # A head that ended is replaced by a pod with ports of its own.
            head.ports = head_options()
            given = head.spec["headGroupSpec"]["rayStartParams"]
            options = {"head": "", **given, **head.ports, "dashboard-host": "127.0.0.1"}
        else:
            (agent,) = free_ports(1)
            limits = container["resources"]["limits"]
            options = {"address": f"127.0.0.1:{head.ports['port']}", "num-cpus": limits["cpu"]}
            options |= {"dashboard-agent-listen-port": agent}
        options |= {"object-store-memory": STORE_BYTES, "min-worker-port": 0, "max-worker-port": 0, "block": ""}
        words = " ".join(f"--{name}={value}" if value != "" else f"--{name}" for name, value in options.items())
        start = f"ulimit -n 65536; {RAY} start {words}"
        before = container.get("args") or ()
        return " && ".join([*(unescaped(each) for each in before), start])
