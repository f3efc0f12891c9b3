"""Pages of docs/deployment on a real API server and scheduler.

The values and the fleet file are taken out of a page. Helm installs the chart, a job is submitted with that fleet file,
and the scheduler places the pods of its RayJob on nodes as the page describes them. KubeRay's operator and the kubelets
are played, and no pod runs.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.k8s.control_plane import ControlPlane
from tests.k8s.objects import wait_for
from tests.k8s.player import Player, ready
from tests.k8s.test_chart import CHART, helm
from tests.unit.fleet.chart.conftest import helm as rendered
from tests.unit.fleet.chart.pages import CLUSTERS, ClusterPage, compared

import forebay as fb
from forebay.fleet.catalogue import CATALOGUE
from forebay.fleet.cluster import Cluster
from forebay.fleet.federation.dry_run import dry_run
from forebay.fleet.federation.kube_clusters import KubeClusters
from forebay.fleet.federation.survey import described_fleet
from forebay.fleet.fleet_file import Fleet
from forebay.fleet.kube.api import KubeApi, Object
from forebay.fleet.kube.api_errors import ObjectMissing, TooManyRequests
from forebay.fleet.placement.counting import count
from forebay.fleet.rayjob.attempt import PlacedAttempt

pytestmark = pytest.mark.k8s

HELM = "4.3.1"
GPU_TAINT = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
LARGE = {"cpu": "208", "memory": "2000Gi", "pods": "110", "ephemeral-storage": "30Ti", "nvidia.com/gpu": "8"}
SMALL = {"cpu": "8", "memory": "32Gi", "pods": "110", "ephemeral-storage": "100Gi"}


@dataclass(frozen=True)
class PlannedNodes:
    """Nodes of one kind that a page describes."""

    name: str
    number: int
    resources: dict[str, str]
    labels: dict[str, str] = field(default_factory=dict)
    taints: tuple[dict[str, str], ...] = ()


GKE = {"cloud.google.com/gke-accelerator": "nvidia-h100-80gb"}
SYSTEM = PlannedNodes("system", 1, SMALL)
H100 = PlannedNodes("h100", 2, LARGE, {"sku": "h100"}, (GPU_TAINT,))
NODES: dict[str, tuple[PlannedNodes, ...]] = {
    "gke": (
        replace(SYSTEM, number=3),
        PlannedNodes("h100", 2, LARGE, GKE, (GPU_TAINT,)),
        PlannedNodes("spot", 2, LARGE, {**GKE, "cloud.google.com/gke-spot": "true"}, (GPU_TAINT,)),
    ),
    "eks": (SYSTEM, H100),
    "kind": (PlannedNodes("kind", 1, {"cpu": "8", "memory": "16Gi", "pods": "110", "ephemeral-storage": "100Gi"}),),
    "networks": (
        SYSTEM,
        replace(
            H100,
            resources={**LARGE, "vpc.amazonaws.com/efa": "32", "hugepages-2Mi": "5Gi", "ephemeral-storage": "30Ti"},
        ),
    ),
    "on-prem": (
        SYSTEM,
        PlannedNodes("a100", 2, LARGE, {"sku": "a100"}, ({"key": "nvidia.com/gpu", "effect": "NoSchedule"},)),
    ),
    "queues": (SYSTEM, replace(H100, taints=())),
}
WORKERS = {"gke": "h100", "eks": "h100", "kind": "kind", "networks": "h100", "on-prem": "a100"}
HEADS = {"kind": "kind"}


@pytest.fixture
def bench(planes: dict[str, ControlPlane], players: dict[str, Player]) -> Iterator[ControlPlane]:
    """A cluster without the nodes of other tests."""
    plane, player = planes["east"], players["east"]
    api, run_job, is_ready = plane.api(), player.run_job, player.is_ready
    player.run_job = lambda _: "RUNNING"  # type: ignore[method-assign, assignment]
    others = [each["metadata"]["name"] for each in api.items("/api/v1/nodes")]
    for name in others:
        api.merge(f"/api/v1/nodes/{name}", {"spec": {"unschedulable": True}})
    yield plane
    # Else the operator makes the pods of this page again, on the nodes of the next one.
    for kind in ("rayjobs", "rayclusters"):
        for each in of_pages(api, f"/apis/ray.io/v1/{kind}"):
            meta = each["metadata"]
            with suppress(ObjectMissing):
                api.delete(f"/apis/ray.io/v1/namespaces/{meta['namespace']}/{kind}/{meta['name']}")
    wait_for(
        lambda: not [each for each in of_pages(api, "/api/v1/pods") if "ray.io/group" in each["metadata"]["labels"]]
    )
    for each in list(api.items("/api/v1/nodes")):
        if each["metadata"]["name"] not in others:
            api.delete(f"/api/v1/nodes/{each['metadata']['name']}")
    wait_for(lambda: len(list(api.items("/api/v1/nodes"))) == len(others))
    for name in others:
        api.merge(f"/api/v1/nodes/{name}", {"spec": {"unschedulable": False}})
    player.run_job, player.is_ready = run_job, is_ready  # type: ignore[method-assign]


def of_pages(api: KubeApi, path: str) -> list[Object]:
    return [each for each in api.items(path) if each["metadata"]["namespace"].startswith("page-")]


def add(api: KubeApi, nodes: PlannedNodes, test: str) -> None:
    """Add nodes. Their names are of one test: pods of an earlier one may still be bound."""
    for number in range(nodes.number):
        name = f"{nodes.name}-{test}-{number}"
        metadata = {"name": name, "labels": {**nodes.labels, "kubernetes.io/hostname": name}}
        api.create("/api/v1/nodes", {"metadata": metadata, "spec": {"taints": list(nodes.taints)}})
        status = {"capacity": nodes.resources, "allocatable": nodes.resources, "conditions": [ready()]}
        api.merge(f"/api/v1/nodes/{name}/status", {"status": status})


def installed(plane: ControlPlane, page: ClusterPage, folder: Path) -> str:
    """Install the chart with the values of a page, and return its namespace."""
    namespace, file = f"page-{page.name}", folder / "values.json"
    plane.api().create("/api/v1/namespaces", {"metadata": {"name": namespace}})
    file.write_text(json.dumps(page.values))
    if page.name == "queues":
        # The chart refuses to make a LocalQueue where no Kueue is: its catalogue alone is tried.
        words = ("fb", CHART, "-n", namespace, "-f", file, "-s", "templates/catalogue.yaml")
        body = yaml.safe_load(rendered("template", *words))
        plane.api().create(f"/api/v1/namespaces/{namespace}/configmaps", body)
    else:
        helm(plane, "install", "fb", CHART, "-f", file, version=HELM, namespace=namespace)
    return namespace


def described(plane: ControlPlane, page: ClusterPage, namespace: str) -> tuple[Fleet, KubeClusters]:
    """Return the fleet of a page, as its cluster describes itself."""
    (entry,) = [each for each in page.fleet.cluster if each.kind == "cluster"]
    fleet = Fleet(cluster=(replace(entry, context=plane.context, namespace=namespace),))
    found, faults = described_fleet(fleet, lambda _: plane.api())
    assert not faults
    clusters = KubeClusters(fleet, lambda _: plane.api())
    clusters.describe_all()
    return found, clusters


def placed(
    plane: ControlPlane, page: ClusterPage, fleet: Fleet, clusters: KubeClusters, spec: fb.JobSpec
) -> list[Object]:
    """Create the RayJob of a job, and return its pods when the scheduler has looked at each."""
    (cluster,) = fleet.cluster
    (plan,) = dry_run(spec, fleet)
    best = plan.placement.best
    assert best is not None, plan.placement
    attempt = PlacedAttempt(spec=spec, task=spec.task[0], number=1, sku=best.sku, market=best.market, workers=2)
    clusters.create(cluster.name, attempt)
    created = plane.api().get(f"/apis/ray.io/v1/namespaces/{cluster.namespace}/rayjobs/{attempt.name}")
    _, sku = page.sku()
    for group in created["spec"]["rayClusterSpec"]["workerGroupSpecs"]:
        found, wanted = compared(group, page.values, sku)
        assert found == wanted
    if created["spec"].get("suspend"):
        return []
    path = f"/api/v1/namespaces/{cluster.namespace}/pods"

    def settled() -> list[Object] | None:
        pods = [
            each
            for each in plane.api().items(path)
            if each["metadata"]["labels"].get("forebay.dev/job") == spec.name
            and "ray.io/group" in each["metadata"]["labels"]
        ]
        return pods if len(pods) == 3 and all(each["spec"].get("nodeName") for each in pods) else None

    found_pods: list[Object] = wait_for(settled, 60)
    return found_pods


def where(pods: list[Object], kind: str) -> Counter[str]:
    """Count the pods of heads or workers by the kind of their nodes."""
    return Counter(
        each["spec"]["nodeName"].partition("-")[0]
        for each in pods
        if each["metadata"]["labels"]["ray.io/node-type"] == kind
    )


@pytest.mark.parametrize("name", CLUSTERS)
def test_a_page_leads_to_pods_on_its_nodes(bench: ControlPlane, tmp_path: Path, name: str) -> None:
    page, api = ClusterPage(name), bench.api()
    for each in NODES[name]:
        add(api, each, name)
    namespace = installed(bench, page, tmp_path)
    fleet, clusters = described(bench, page, namespace)
    (cluster,) = fleet.cluster
    assert f"ConfigMap {CATALOGUE} in namespace {namespace}" in cluster.described_by
    if name == "queues":
        assert placed(bench, page, fleet, clusters, page.job(queue="ads", priority="high")) == []
        return
    account = api.get(f"/api/v1/namespaces/{namespace}/serviceaccounts/{cluster.service_account}")
    annotations = page.values.get("accounts", {}).get("annotations", {})
    assert annotations.items() <= account["metadata"].get("annotations", {}).items()
    agrees(api, cluster, NODES[name], page)
    pods = placed(bench, page, fleet, clusters, page.job())
    assert where(pods, "worker") == {WORKERS[name]: 2}
    assert where(pods, "head") == {HEADS.get(name, "system"): 1}
    if name == "gke":
        spot = replace(page.job(spot="prefer"), name="spot")
        pods = placed(bench, page, fleet, clusters, spot)
        assert where(pods, "worker") == {"spot": 2} and where(pods, "head") == {"system": 1}


def agrees(api: KubeApi, cluster: Cluster, nodes: tuple[PlannedNodes, ...], page: ClusterPage) -> None:
    """Count the page's nodes as the scheduler does: spot nodes are of spot pools alone."""
    found = count(cluster, api.items("/api/v1/nodes"), [], now=0.0)
    sku, _ = page.sku()
    for market in cluster.sku[sku].markets:
        kinds = ("spot",) if market == "spot" else (WORKERS[page.name],)
        number = sum(each.number for each in nodes if each.name in kinds)
        assert sum(each.count for each in found.nodes if f"{sku}/{market}" in each.pools) == number


def test_heads_are_not_evicted(bench: ControlPlane, tmp_path: Path) -> None:
    """By the chart's PodDisruptionBudget. This API server knows its version v1beta1."""
    page, api = ClusterPage("eks"), bench.api(sleep=refuse_to_wait)
    for each in NODES["eks"]:
        add(api, each, "evictions")
    namespace = "page-evictions"
    api.create("/api/v1/namespaces", {"metadata": {"name": namespace}})
    file = tmp_path / "values.json"
    file.write_text(json.dumps(page.values))
    helm(bench, "install", "fb", CHART, "-f", file, version=HELM, namespace=namespace)
    words = ("fb", CHART, "-n", namespace, "-f", file, "--api-versions", "policy/v1", "-s", "templates/heads.yaml")
    budget: dict[str, Any] = yaml.safe_load(rendered("template", *words))
    budgets = f"/apis/policy/v1beta1/namespaces/{namespace}/poddisruptionbudgets"
    api.create(budgets, {**budget, "apiVersion": "policy/v1beta1"})
    pods = placed(bench, page, *described(bench, page, namespace), page.job())

    def is_counted() -> bool:
        status = api.get(f"{budgets}/{budget['metadata']['name']}").get("status") or {}
        return (status.get("expectedPods"), status.get("currentHealthy")) == (1, 1)

    wait_for(is_counted, 60)
    for pod in pods:
        meta = pod["metadata"]
        body = {"apiVersion": "policy/v1beta1", "kind": "Eviction", "metadata": {"name": meta["name"]}}
        path = f"/api/v1/namespaces/{namespace}/pods/{meta['name']}/eviction"
        if meta["labels"]["ray.io/node-type"] == "head":
            with pytest.raises((TooManyRequests, Waits)):
                api.create(path, body)
        else:
            api.create(path, body)


class Waits(Exception):
    """The server asked to wait."""


def refuse_to_wait(_: float) -> None:
    raise Waits
