"""Security of rendered objects, by docs/deployment/security.md.

They are the chart, RayJobs and the shared cluster.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit.fleet.chart.conftest import CHART, VALUES, Objects
from tests.unit.fleet.rayjob.kubernetes_schema import pod_templates
from tests.unit.fleet.rayjob.made import attempt, cluster

from forebay.fleet.cluster import Hdfs
from forebay.fleet.rayjob.render import render as ray_job
from forebay.fleet.rayjob.shared_cluster import shared_cluster

Render = Callable[..., Objects]
Rules = set[tuple[str, str, tuple[str, ...]]]

PAGE = CHART.parents[2] / "docs" / "deployment" / "security.md"
LAUNCH = {"secret_env": {"HF_TOKEN": "hf-token/token"}, "mounts": [{"secret": "krb", "path": "/secrets/krb"}]}
HDFS = Hdfs(config_map="conf", keytab_secret="krb-keytab", principal="train@CORP")


def rules_of(objects: Objects, account: str) -> Rules:
    """Return the grants of an account.

    Each has a resource, names and verbs.
    """
    bound = {
        each["roleRef"]["name"]
        for each in objects
        if each["kind"].endswith("RoleBinding") and any(one["name"] == account for one in each["subjects"])
    }
    return {
        (resource, " ".join(rule.get("resourceNames", ())), tuple(rule["verbs"]))
        for each in objects
        if each["kind"].endswith("Role") and each["metadata"]["name"] in bound
        for rule in each["rules"]
        for resource in rule["resources"]
    }


def test_accounts_may_do_what_they_need_and_nothing_else(render: Render) -> None:
    objects = render("controller")
    reads = ("get", "list", "watch")
    submitter = {
        ("rayjobs", "", ("create", "get", "list", "watch", "delete")),
        ("pods", "", reads),
        ("pods/log", "", reads),
        ("configmaps", "forebay-catalogue forebay-capacity", ("get",)),
    }
    assert rules_of(objects, "forebay-submitter") == submitter
    assert rules_of(objects, "forebay-controller") == submitter
    assert rules_of(objects, "forebay-agent") == {
        ("nodes", "", ("list", "watch")),
        ("pods", "", ("list", "watch")),
        ("configmaps", "forebay-capacity", ("get", "patch")),
    }
    assert rules_of(objects, "forebay-ray") == set()


def templates() -> Iterator[dict[str, Any]]:
    """Yield pods of RayJobs and of the shared cluster."""
    yield from pod_templates(ray_job(attempt(launch=LAUNCH), cluster(hdfs=HDFS, service_account="forebay-ray")))
    shared = cluster(shared_cluster="forebay", secret_env={"AWS_SECRET_ACCESS_KEY": "s3/key"})
    yield ray_job(attempt(scheduling={"cluster": "shared"}), shared)["spec"]["submitterPodTemplate"]
    spec = shared_cluster(shared)["spec"]
    yield from (each["template"] for each in (spec["headGroupSpec"], *spec["workerGroupSpecs"]))


def test_pods_of_ray_are_restricted() -> None:
    for template in templates():
        spec = template["spec"]
        security = spec["securityContext"]
        assert security["runAsNonRoot"] is True and security["runAsUser"] == 1000
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
        for container in (*spec["containers"], *spec.get("initContainers", ())):
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
            }


def test_only_the_head_may_have_a_token_of_its_cluster() -> None:
    job = ray_job(attempt(launch=LAUNCH), cluster())["spec"]
    groups = job["rayClusterSpec"]["workerGroupSpecs"]
    for template in (job["submitterPodTemplate"], *(each["template"] for each in groups)):
        assert template["spec"]["automountServiceAccountToken"] is False


def test_secrets_are_references_in_every_object(render: Render) -> None:
    names = {"HF_TOKEN", "AWS_SECRET_ACCESS_KEY"}
    for template in templates():
        for container in (*template["spec"]["containers"], *template["spec"].get("initContainers", ())):
            secret = [each for each in container.get("env", ()) if each["name"] in names]
            assert all(each.keys() == {"name", "valueFrom"} for each in secret)
    objects = [each for values in VALUES for each in render(values)]
    assert not [each for each in objects if each["kind"] == "Secret"]
    pods = [each["spec"]["template"]["spec"] for each in objects if "template" in each.get("spec", {})]
    env = [each for pod in pods for container in pod["containers"] for each in container.get("env", ())]
    named = [each for each in env if re.search("SECRET|TOKEN|PASSWORD", each["name"])]
    assert named and all(each.keys() == {"name", "valueFrom"} for each in named)


def test_ray_asks_for_a_token_and_its_dashboard_is_no_ingress(render: Render) -> None:
    assert ray_job(attempt(), cluster())["spec"]["rayClusterSpec"]["authOptions"] == {"mode": "token"}
    assert shared_cluster(cluster(shared_cluster="forebay"))["spec"]["authOptions"] == {"mode": "token"}
    objects = [each for values in VALUES for each in render(values)]
    assert not [each for each in objects if each["kind"] in ("Ingress", "Gateway", "HTTPRoute", "Service")]


def egress(objects: Objects) -> list[dict[str, Any]]:
    policy, submitter, own = (each["spec"] for each in objects if each["kind"] == "NetworkPolicy")
    assert policy["podSelector"] == {"matchLabels": {"ray.io/is-ray-node": "yes"}}
    assert own["egress"] == policy["egress"], "agent, controller and notebook reach the same"
    assert submitter["egress"] == policy["egress"], "the image of a job reaches the same in its submitter"
    rules: list[dict[str, Any]] = policy["egress"]
    return rules


def test_pods_of_ray_reach_each_other_dns_and_the_addresses_of_storage(render: Render) -> None:
    among, dns, open_ = egress(render("defaults"))
    assert open_ == {}, "without egressCIDRs, everything"
    *same, storage = egress(render("kueue-quota"))
    assert same == [among, dns]
    assert among == {"to": [{"podSelector": {"matchExpressions": [{"key": "ray.io/cluster", "operator": "Exists"}]}}]}
    assert {(each["protocol"], each["port"]) for each in dns["ports"]} == {("UDP", 53), ("TCP", 53)}
    assert storage == {"to": [{"ipBlock": {"cidr": "10.0.0.0/8"}}, {"ipBlock": {"cidr": "fd00::/8"}}]}


def test_submitters_of_jobs_are_under_a_policy_and_asked_for_nothing(render: Render) -> None:
    (policy,) = (
        each["spec"]
        for each in render("defaults")
        if each["kind"] == "NetworkPolicy" and each["metadata"]["name"] == "forebay-submitter"
    )
    assert policy["policyTypes"] == ["Ingress", "Egress"] and "ingress" not in policy
    shared = cluster(shared_cluster="forebay")
    for job in (ray_job(attempt(), cluster()), ray_job(attempt(scheduling={"cluster": "shared"}), shared)):
        labels = job["spec"]["submitterPodTemplate"]["metadata"]["labels"]
        for each in policy["podSelector"]["matchExpressions"]:
            assert labels[each["key"]] in each.get("values", [labels[each["key"]]])


def test_kubeconfigs_are_a_mounted_secret(render: Render) -> None:
    (pod,) = (
        each["spec"]["template"]["spec"]
        for each in render("controller")
        if each["kind"] == "Deployment" and each["metadata"]["name"] == "forebay-controller"
    )
    (volume,) = (each for each in pod["volumes"] if "secret" in each)
    # A file of a Secret belongs to root: its group, fsGroup, is how user 1000 reads it.
    assert volume["secret"]["defaultMode"] == 0o440
    (container,) = pod["containers"]
    (mount,) = (each for each in container["volumeMounts"] if each["name"] == volume["name"])
    assert mount["readOnly"] is True
    assert {"name": "KUBECONFIG", "value": f"{mount['mountPath']}/kubeconfig"} in container["env"]


@pytest.mark.parametrize("test", sorted(set(re.findall(r"`([a-z0-9_/]+\.py)::(\w+)`", PAGE.read_text()))))
def test_tests_of_the_page_exist(test: tuple[str, str]) -> None:
    file, name = test
    root = Path(__file__).parents[3]
    assert f"def {name}(" in (root / file).read_text(), json.dumps(test)
