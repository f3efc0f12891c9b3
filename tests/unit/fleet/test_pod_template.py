"""Patches of pods: what they add, and what they may not touch."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.fleet.rayjob.kubernetes_schema import CORE_VERSIONS, check_pods, pod_templates
from tests.unit.fleet.rayjob.made import attempt, cluster

from forebay.errors import InvalidJobSpec
from forebay.fleet.cluster import Cluster, Sku
from forebay.fleet.pod_template import _CONTAINER, _INIT, _SPEC, _VOLUME, check_pod_template, patched
from forebay.fleet.rayjob.preflight import faults
from forebay.fleet.rayjob.render import KEPT_PODS, render

NETWORK: dict[str, Any] = {
    "metadata": {"annotations": {"k8s.v1.cni.cncf.io/networks": "rdma"}},
    "spec": {
        "hostNetwork": True,
        "volumes": [
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "64Gi"}},
            {"name": "ray-tmp", "emptyDir": {"sizeLimit": "500Gi"}},
        ],
        "containers": [
            {
                "name": "ray",
                "env": [{"name": "FI_PROVIDER", "value": "efa"}, {"name": "NCCL_DEBUG", "value": "INFO"}],
                "volumeMounts": [
                    {"name": "shm", "mountPath": "/dev/shm"},
                    {"name": "ray-tmp", "mountPath": "/tmp/ray"},
                ],
            }
        ],
        "initContainers": [{"name": "warm", "command": ["true"], "resources": {"limits": {"cpu": "1"}}}],
    },
}


def with_sku(**changes: Any) -> Cluster:
    sku = Sku(cpu="96", memory="1Ti", gpus=8, markets=("spot", "on-demand"), **changes)
    return cluster(sku={"h100": sku})


def test_a_fast_network_is_a_patch_and_resources_of_a_sku() -> None:
    known = with_sku(resources={"vpc.amazonaws.com/efa": 32, "hugepages-2Mi": "5Gi"}, pod_template=NETWORK)
    job = render(attempt(launch={"env": {"NCCL_DEBUG": "WARN"}}), known)
    assert faults(job) == []
    check_pods(job, CORE_VERSIONS[-1])
    for group in job["spec"]["rayClusterSpec"]["workerGroupSpecs"]:
        spec = group["template"]["spec"]
        (container,) = spec["containers"]
        asked = container["resources"]["requests"]
        # One of eight GPUs: an eighth of the devices, and whole pages.
        assert (asked["vpc.amazonaws.com/efa"], asked["hugepages-2Mi"]) == ("4", str(640 << 20))
        assert container["resources"]["limits"].items() >= {"vpc.amazonaws.com/efa": "4"}.items()
        assert (spec["hostNetwork"], spec["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")
        mounts = {each["mountPath"]: each["name"] for each in container["volumeMounts"]}
        assert mounts.items() >= {"/dev/shm": "shm", "/tmp/ray": "ray-tmp", "/work": "work", "/cache": "cache"}.items()
        variables = {each["name"]: each.get("value") for each in container["env"]}
        assert (variables["FI_PROVIDER"], variables["NCCL_DEBUG"]) == ("efa", "WARN")
        assert spec["securityContext"]["runAsNonRoot"] is True
        (warm,) = spec["initContainers"]
        assert warm["securityContext"] == container["securityContext"] and warm["image"] == container["image"]
        assert group["template"]["metadata"]["annotations"] == {"k8s.v1.cni.cncf.io/networks": "rdma"}
    head = job["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]
    assert "hostNetwork" not in head["spec"] and head["metadata"]["annotations"] == KEPT_PODS


def test_a_patch_of_the_cluster_reaches_heads_workers_and_submitters() -> None:
    patch = {"metadata": {"annotations": {"team": "ads"}}, "spec": {"containers": [{"name": "ray", "env": [
        {"name": "REGION", "value": "eu"}]}]}}  # fmt: skip
    heads = {"metadata": {"annotations": {"karpenter.sh/do-not-disrupt": "false"}}}
    job = render(attempt(), cluster(pod_template=patch, head_pod_template=heads))
    for template in pod_templates(job):
        assert template["metadata"]["annotations"]["team"] == "ads"
        assert {"name": "REGION", "value": "eu"} in template["spec"]["containers"][0]["env"]
        assert len(template["spec"]["containers"]) == 1
    head = job["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["metadata"]["annotations"]
    assert head == {**KEPT_PODS, "team": "ads", "karpenter.sh/do-not-disrupt": "false"}
    assert faults(job) == []


def in_spec(name: str, value: object = None) -> dict[str, Any]:
    return {"spec": {name: {"a": "b"} if value is None else value}}


def in_container(name: str, **more: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "ray", name: {"a": "b"}, **more}]}}


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    **{f"spec.{name}": (in_spec(name), why) for name, why in _SPEC.items()},
    **{f"containers[0].{name}": (in_container(name), why) for name, why in _CONTAINER.items()},
    **{
        f"initContainers[0].{name}": ({"spec": {"initContainers": [{"name": "a", name: {}}]}}, why)
        for name, why in _INIT.items()
    },
    **{f"volumes[0].{name}": ({"spec": {"volumes": [{"name": "a", name: {}}]}}, why) for name, why in _VOLUME.items()},
    "affinity.nodeAffinity": (in_spec("affinity", {"nodeAffinity": {}}), "placement counts"),
    "containers[0].name": ({"spec": {"containers": [{"name": "sidecar"}]}}, "'ray' alone"),
    "a secret": (
        in_container("env", env=[{"name": "A", "valueFrom": {"secretKeyRef": {}}}]),
        "storage.secretEnv has the variables",
    ),
    "a variable of the run": (
        in_container("env", env=[{"name": "FOREBAY_RUN_STORAGE", "value": "x"}]),
        "FOREBAY_",
    ),
    "a volume of ours": ({"spec": {"volumes": [{"name": "krb-keytab", "emptyDir": {}}]}}, "Forebay makes the volume"),
    "a mount of ours": (
        in_container("x", volumeMounts=[{"name": "krb-keytab", "mountPath": "/k"}]),
        "x: it may",
    ),
    "a null": (in_spec("volumes", None) | {"spec": {"volumes": None}}, "a null would remove"),
    "a directive": ({"spec": {"volumes": [{"name": "a", "$patch": "delete"}]}}, "directives"),
    "a typo": ({"spec": {"volums": []}}, "Did you mean 'volumes'?"),
    "a list": ({"spec": []}, "spec: it must be a table"),
    "an item without a name": ({"spec": {"volumes": [{"emptyDir": {}}]}}, "it needs the text 'name'"),
    "a label of an operator": ({"metadata": {"labels": {"ray.io/cluster": "x"}}}, "labels of ray.io are set by"),
    "an annotation of ours": ({"metadata": {"annotations": {"forebay.dev/fence": "9"}}}, "Forebay and KubeRay set it"),
    "a number": ({"metadata": {"annotations": {"a": 1}}}, "it must be text in quotes"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_may_not_be_patched_is_refused_with_its_place(what: str) -> None:
    patch, why = REFUSED[what]
    with pytest.raises(InvalidJobSpec) as error:
        check_pod_template(patch, "podTemplate")
    assert why in str(error.value)
    assert str(error.value).startswith("podTemplate.")
    if what.startswith(("spec.", "containers[", "volumes[", "initContainers[")):
        assert what in str(error.value)


def test_a_mount_of_the_keytab_is_refused() -> None:
    mount = {"name": "krb-keytab", "mountPath": "/keys"}
    with pytest.raises(InvalidJobSpec, match="Forebay mounts krb-keytab at /keys"):
        check_pod_template({"spec": {"containers": [{"name": "ray", "volumeMounts": [mount]}]}}, "podTemplate")


NAMES = st.sampled_from(["a", "b", "c", "d"])


@st.composite
def patches(draw: st.DrawFn) -> dict[str, Any]:
    volumes = [{"name": name, "emptyDir": {}} for name in draw(st.sets(NAMES))]
    env = [{"name": name.upper(), "value": draw(NAMES)} for name in draw(st.sets(NAMES))]
    mounts = [{"name": name, "mountPath": f"/{name}"} for name in draw(st.sets(NAMES))]
    return {
        "metadata": {"annotations": draw(st.dictionaries(NAMES, NAMES)), "labels": draw(st.dictionaries(NAMES, NAMES))},
        "spec": {"volumes": volumes, "containers": [{"name": "ray", "env": env, "volumeMounts": mounts}]},
    }


@settings(max_examples=20, deadline=None, derandomize=True)
@given(patches(), patches())
def test_a_patch_takes_nothing_away_and_is_applied_once(first: dict[str, Any], second: dict[str, Any]) -> None:
    """Everything of the template stays but what a patch sets, and twice the same patch is once."""
    template = render(attempt(), cluster())["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]
    before = copy.deepcopy(template)
    for patch in (first, second):
        check_pod_template(patch, "podTemplate")
    once = patched(patched(template, first), second)
    assert template == before
    assert patched(once, second) == once

    def named(found: Any, key: str) -> dict[str, Any]:
        return {each[key]: each for each in found}

    old, new = template["spec"]["containers"][0], once["spec"]["containers"][0]
    for table, key in (("env", "name"), ("volumeMounts", "mountPath")):
        set_here = {each[key] for patch in (first, second) for each in patch["spec"]["containers"][0][table]}
        kept = {name: each for name, each in named(old[table], key).items() if name not in set_here}
        assert kept.items() <= named(new[table], key).items()
        assert set(named(new[table], key)) == set(kept) | set_here
    assert {key: value for key, value in new.items() if key not in ("env", "volumeMounts")} == {
        key: value for key, value in old.items() if key not in ("env", "volumeMounts")
    }
