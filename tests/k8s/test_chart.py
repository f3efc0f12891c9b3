"""The chart on real API servers: install, upgrade, rollback, uninstall by both Helms, and what its accounts may do."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest
from scripts.fetch_helm import WHEELS, binary
from tests.k8s.control_plane import ControlPlane
from tests.k8s.objects import ray_job

from forebay.deploy.kube.api import KubeApi
from forebay.deploy.kube.api_errors import AccessRefused
from forebay.deploy.kube.kuberay import KubeRay

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
    """A namespace of the cluster "east" with the chart in it."""
    plane = planes["east"]
    plane.api().create("/api/v1/namespaces", {"metadata": {"name": "ml"}})
    helm(plane, "install", "fb", CHART)
    yield "ml"
    helm(plane, "uninstall", "fb")


def helm(plane: ControlPlane, verb: str, *words: object, version: str = "4.3.1", namespace: str = "ml") -> float:
    """Run Helm and return its seconds."""
    if not binary(version).exists():
        pytest.skip(f"Helm {version} is not here: run scripts/fetch_helm.py")
    command = [binary(version), verb, *words, "-n", namespace, "--kubeconfig", plane.kubeconfig]
    began = time.monotonic()
    done = subprocess.run([str(each) for each in command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return time.monotonic() - began


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
    assert json.loads(catalogue["data"]["catalogue.json"])["name"] == "here"
    seconds["uninstall"] = helm(plane, "uninstall", "fb", version=version, namespace=name)
    left = [each["metadata"]["name"] for each in plane.api().items(f"/api/v1/namespaces/{name}/configmaps")]
    assert not [each for each in left if each.startswith("forebay")]
    print({verb: round(each, 2) for verb, each in seconds.items()})


@pytest.mark.parametrize(
    ("account", "may"), [("forebay-submitter", SUBMITTER), ("forebay-agent", AGENT), ("forebay-ray", set())]
)
def test_accounts_may_do_what_they_need_and_nothing_else(planes, namespace: str, account: str, may: set) -> None:
    api = planes["east"].api()
    found = {
        (kind, verb) for kind, verb in product(RESOURCES, VERBS) if is_allowed(api, namespace, account, kind, verb)
    }
    assert found == may


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


def token(api: KubeApi, namespace: str, account: str) -> str:
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 600}}
    found: str = api.create(path, body)["status"]["token"]
    return found
