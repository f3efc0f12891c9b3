"""The chart: rendered objects, and wrong values.

Both Helms render the same objects, which Kubernetes accepts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from tests.unit.fleet.chart.conftest import CHART, VALUES, HelmFailed, Objects, helm, named, render_with
from tests.unit.fleet.rayjob.made import attempt, cluster

from forebay.fleet.rayjob.render import render as ray_job

Render = Callable[..., Objects]

KUBERNETES = ("1.31", "1.34", "1.37")
CUSTOM = ("monitoring.coreos.com/", "kueue.x-k8s.io/")
RESTRICTED = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}


@pytest.mark.parametrize("values", VALUES)
def test_both_helms_render_the_same_objects(render: Render, helms: list[str], values: str) -> None:
    newest, oldest = (sorted(render(values, version), key=json.dumps) for version in helms)
    assert newest == oldest
    assert newest


@pytest.mark.parametrize(
    "version", [pytest.param(each, marks=[] if each == "1.34" else [pytest.mark.variation]) for each in KUBERNETES]
)
def test_objects_are_valid(render: Render, version: str) -> None:
    for values in VALUES:
        for each in render(values):
            if not each["apiVersion"].startswith(CUSTOM):
                kubernetes_validate.validate(each, version, strict=True)


@pytest.mark.variation
def test_chart_passes_a_strict_lint(helms: list[str]) -> None:
    for version in helms:
        for values in VALUES:
            helm("lint", "--strict", CHART, "-f", CHART / "ci" / f"{values}-values.yaml", version=version)


@pytest.mark.parametrize("values", VALUES)
def test_pods_are_restricted_and_hold_no_account_they_do_not_need(render: Render, values: str) -> None:
    for owner, pod in pods(render(values)):
        if owner == "forebay-cache":
            continue
        assert RESTRICTED.items() <= pod["securityContext"].items(), owner
        assert pod["securityContext"]["runAsUser"] == 1000
        for container in pod["containers"]:
            security = container["securityContext"]
            assert security["allowPrivilegeEscalation"] is False
            assert security["readOnlyRootFilesystem"] is True
            assert security["capabilities"] == {"drop": ["ALL"]}
            assert {"requests", "limits"} <= container["resources"].keys()


def test_only_the_folder_of_a_host_path_is_made_by_root(render: Render) -> None:
    roots = [
        owner
        for values in VALUES
        for owner, pod in pods(render(values))
        for container in pod["containers"]
        if container["securityContext"].get("runAsUser") == 0
    ]
    assert roots == ["forebay-cache"]


@pytest.mark.parametrize("values", VALUES)
def test_accounts_have_no_wildcard_and_read_no_secrets(render: Render, values: str) -> None:
    rules = [(each["metadata"]["name"], rule) for each in render(values) for rule in each.get("rules", ())]
    for name, rule in rules:
        words = [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]
        assert "*" not in words, name
        assert "secrets" not in rule["resources"], name
        # An account that may create pods may run as every account of the namespace.
        assert not ("pods" in rule["resources"] and {"create", "update", "patch"} & set(rule["verbs"])), name


def test_dashboard_is_the_repositorys(render: Render) -> None:
    assert (CHART / "dashboard.json").read_text() == (CHART.parents[1] / "grafana" / "forebay.json").read_text()
    (shown,) = (each for each in render("defaults") if each["metadata"]["name"] == "forebay-dashboard")
    assert json.loads(shown["data"]["forebay.json"])["title"]


def test_ray_cluster_is_no_template(render: Render) -> None:
    kinds = {each["kind"] for values in VALUES for each in render(values)}
    assert not kinds & {"RayCluster", "RayJob", "Secret", "Ingress"}


def test_shared_cluster_is_applied_by_hooks(render: Render) -> None:
    hooks = {
        each["metadata"]["name"]: each["metadata"]["annotations"]["helm.sh/hook"]
        for each in render("shared")
        if each["kind"] == "Job"
    }
    assert hooks == {
        "forebay-cluster-apply": "post-install,post-upgrade,post-rollback",
        "forebay-cluster-delete": "pre-delete",
    }


def test_image_by_digest_wins_and_a_tag_alone_is_said(helms: list[str], render: Render) -> None:
    images = {container["image"] for _, pod in pods(render("gpu-spot")) for container in pod["containers"]}
    assert images == {"forebay@sha256:" + "0" * 64}
    for values, is_said in (("defaults", True), ("gpu-spot", False)):
        file = CHART / "ci" / f"{values}-values.yaml"
        notes = helm("install", "fb", CHART, "--dry-run=client", "-f", file)
        assert ("has a tag and no digest" in notes) == is_said


def test_dashboard_is_for_submitters_and_the_operator(render: Render) -> None:
    policy = policies(render("defaults"))["forebay-ray"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    by_port = {rule["ports"][0]["port"] if "ports" in rule else None: rule for rule in policy["ingress"]}
    assert set(by_port) == {None, 8265, 8080}
    submitters, operator = by_port[8265]["from"]
    # KubeRay reads the state of a job at the dashboard, from its own namespace.
    assert operator["podSelector"]["matchLabels"] == {"app.kubernetes.io/name": "kuberay-operator"}
    assert operator["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": "kuberay"}
    submitter = ray_job(attempt(), cluster())["spec"]["submitterPodTemplate"]["metadata"]["labels"]
    assert submitters["podSelector"]["matchLabels"].items() <= submitter.items()


def test_agent_controller_and_notebook_are_asked_for_metrics_only(render: Render, tmp_path: Path) -> None:
    for name, pod in ((each["metadata"]["name"], each["spec"]["template"]) for each in deployments(render)):
        selector = policies(render("controller"))["forebay-own"]["podSelector"]["matchExpressions"]
        labels = pod["metadata"]["labels"]
        assert all(labels[each["key"]] in each["values"] for each in selector), name
    own = policies(render("controller"))["forebay-own"]
    assert [rule["ports"] for rule in own["ingress"]] == [[{"protocol": "TCP", "port": 8081}]]
    values = {"networkPolicy": {"metricsNamespace": "watch", "operatorNamespace": ""}}
    text = render_with(values, tmp_path)
    watch = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "watch"}}}
    for name in ("forebay-ray", "forebay-own"):
        spec = named(text, "NetworkPolicy", name)["spec"]
        assert [watch] in [each.get("from") for each in spec["ingress"]]
    operators = named(text, "NetworkPolicy", "forebay-ray")["spec"]["ingress"][1]["from"][1]
    assert operators["namespaceSelector"] == {}, "any namespace"


WRONG: dict[str, dict[str, Any]] = {
    "unknown name at the top": {"imagee": {}},
    "unknown name of the image": {"image": {"repo": "x"}},
    "empty repository": {"image": {"repository": ""}},
    "digest in the repository": {"image": {"repository": "a@sha256:0"}},
    "short digest": {"image": {"digest": "sha256:abc"}},
    "pull secret that is no list": {"image": {"pullSecrets": "key"}},
    "version of Ray with a v": {"ray": {"version": "v2.60.0"}},
    "version of Ray without a patch": {"ray": {"version": "2.60"}},
    "authentication, which is always a token": {"ray": {"auth": {"mode": "disabled"}}},
    "head without a unit": {"head": {"memory": "16"}},
    "negative CPUs": {"head": {"cpu": "-1"}},
    "selector of numbers": {"head": {"nodeSelector": {"a": 1}}},
    "toleration with a typo": {"head": {"tolerations": [{"key": "a", "efect": "NoSchedule"}]}},
    "unknown effect": {"head": {"tolerations": [{"key": "a", "effect": "Never"}]}},
    "SKU in upper case": {"skus": {"H100": {"cpu": "1", "memory": "1Gi", "max": 1}}},
    "SKU without memory": {"skus": {"gpu": {"cpu": "1", "max": 1}}},
    "SKU without max": {"skus": {"gpu": {"cpu": "1", "memory": "1Gi"}}},
    "SKU with fractions of a GPU": {"skus": {"gpu": {"cpu": "1", "memory": "1Gi", "max": 1, "gpus": 0.5}}},
    "negative price": {"skus": {"gpu": {"cpu": "1", "memory": "1Gi", "max": 1, "pricePerHour": -1}}},
    "unknown market": {"skus": {"gpu": {"cpu": "1", "memory": "1Gi", "max": 1, "markets": {"reserved": {}}}}},
    "minimum, which is the job's": {"skus": {"gpu": {"cpu": "1", "memory": "1Gi", "max": 1, "min": 1}}},
    "Secret without a key": {"storage": {"secretEnv": {"AWS_SECRET_ACCESS_KEY": "lake"}}},
    "name of the cluster with a dot": {"clusterName": "a.b"},
    "max of 0": {"skus": {"gpu": {"cpu": "1", "memory": "1Gi", "max": 0}}},
    "name of a cluster with a dot": {"cluster": {"name": "a.b"}},
    "enabled as a text": {"cluster": {"enabled": "yes"}},
    "drain of 0": {"drain": {"spot": "0s"}},
    "drain of an unknown market": {"drain": {"reserved": "5s"}},
    "unknown mode of the cache": {"cache": {"mode": "nfs"}},
    "relative path of the cache": {"cache": {"path": "cache"}},
    "size without a unit": {"cache": {"sizeLimit": "100"}},
    "claim without a class": {"cache": {"mode": "ephemeralClaim"}},
    "old name of a claim": {"cache": {"mode": "claim", "storageClass": "ssd"}},
    "resource that is no device": {"skus": {"gpu": {"cpu": "1", "memory": "1Gi", "max": 1, "resources": {"efa": 1}}}},
    "patch of another key": {"podTemplate": {"annotations": {"a": "b"}}},
    "two engines": {"scheduler": "volcano", "kueue": {"clusterQueue": "research"}},
    "storage, which is the job's": {"storage": {"uri": "s3://lake/runs"}},
    "unit of a renewal": {"hdfs": {"renewEvery": "4 hours"}},
    "annotation that is no text": {"accounts": {"annotations": {"a": True}}},
    "address without a mask": {"networkPolicy": {"egressCIDRs": ["10.0.0.0"]}},
    "monitor with a typo": {"monitoring": {"podMonitors": True}},
    "controller without a fleet": {"controller": {"enabled": True, "storages": ["s3://lake/runs"]}},
    "controller without a storage": {"controller": {"enabled": True, "fleetSecret": "fleet"}},
    "relative storage": {"controller": {"storages": ["runs"]}},
    "list as a quota": {"quota": ["pods"]},
    "memory of the notebook": {"notebook": {"memory": "much"}},
    "no CPUs": {"head": {"cpu": 0}},
    "memory as a number": {"head": {"memory": 16}},
    "pods of an unknown kind": {"pods": {"ray": {}}},
    "setting of pods with a typo": {"pods": {"all": {"nodeSelectors": {}}}},
    "policy of images": {"pods": {"agent": {"imagePullPolicy": "Sometimes"}}},
    "variable from a Secret without a key": {"pods": {"all": {"secretEnv": {"A": "lake"}}}},
    "account that is none of the chart's": {"accounts": {"agent": {"annotations": {}}}},
    "namespace in upper case": {"networkPolicy": {"operatorNamespace": "KubeRay"}},
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_value_fails_the_install(helms: list[str], tmp_path: Path, what: str) -> None:
    with pytest.raises(HelmFailed) as caught:
        render_with(WRONG[what], tmp_path)
    words = re.findall(r"\w+", json.dumps(WRONG[what]))
    assert any(word in str(caught.value) for word in words)


def policies(objects: Objects) -> dict[str, dict[str, Any]]:
    return {each["metadata"]["name"]: each["spec"] for each in objects if each["kind"] == "NetworkPolicy"}


def deployments(render: Render) -> Objects:
    return [each for values in VALUES for each in render(values) if each["kind"] == "Deployment"]


def pods(objects: Objects) -> Iterator[tuple[str, dict[str, Any]]]:
    for each in objects:
        if "template" in each.get("spec", {}):
            yield each["metadata"]["name"], each["spec"]["template"]["spec"]
        elif each["kind"] == "Pod":
            yield each["metadata"]["name"], each["spec"]
