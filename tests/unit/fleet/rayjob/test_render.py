"""Rendered RayJobs: design rules, and generated jobs.

The schemas are the true ones.
"""

from __future__ import annotations

import dataclasses
import json
import shlex
import subprocess
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.fleet.rayjob.kubernetes_schema import (
    CORE_VERSIONS,
    check_pods,
    check_ray_job,
    needs_crds,
    pod_templates,
)
from tests.unit.fleet.rayjob.made import attempt, attempts, cluster

import forebay as fb
from forebay.fleet.cluster import VISIBLE_GPUS, CacheVolume, Cluster, Hdfs, Market, Sku
from forebay.fleet.rayjob.attempt import PlacedAttempt
from forebay.fleet.rayjob.pod import NO_GPUS
from forebay.fleet.rayjob.preflight import faults, preflight
from forebay.fleet.rayjob.render import _nodes_without, render


def groups_of(job: dict[str, Any]) -> list[dict[str, Any]]:
    groups: list[dict[str, Any]] = job["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    return groups


def container_of(group: dict[str, Any]) -> dict[str, Any]:
    (container,) = group["template"]["spec"]["containers"]
    return dict(container)


def env_of(group: dict[str, Any]) -> dict[str, Any]:
    return {each["name"]: each.get("value", each.get("valueFrom")) for each in container_of(group)["env"]}


def test_one_attempt_is_one_ray_job_that_is_never_retried_by_kuberay() -> None:
    job = render(attempt(scheduling={"start_within": "10m", "finish_within": "24h"}), cluster())
    spec, metadata = job["spec"], job["metadata"]
    assert (spec["backoffLimit"], spec["shutdownAfterJobFinishes"], spec["ttlSecondsAfterFinished"]) == (0, True, 0)
    assert (spec["preRunningDeadlineSeconds"], spec["activeDeadlineSeconds"]) == (660, 86_400)
    assert metadata["name"].startswith("fb-ctr-7-") and metadata["name"].endswith("-2")
    assert metadata["labels"]["app.kubernetes.io/managed-by"] == "forebay"
    assert metadata["labels"]["forebay.dev/job"] == "ctr-7"
    assert metadata["annotations"]["forebay.dev/fence"] == "2/t0"
    head = spec["rayClusterSpec"]["headGroupSpec"]
    assert head["rayStartParams"]["num-cpus"] == "0"
    assert spec["rayClusterSpec"]["authOptions"] == {"mode": "token"}


def test_spot_comes_first_and_on_demand_is_the_fallback() -> None:
    spot, on_demand = groups_of(render(attempt(), cluster()))
    assert [
        (each["groupName"], each["replicas"], each["minReplicas"], each["maxReplicas"]) for each in (spot, on_demand)
    ] == [
        ("spot", 2, 0, 16),
        ("on-demand", 0, 0, 16),
    ]
    assert (spot["priority"], on_demand["priority"]) == (10, 0)
    assert spot["labels"] == {"ray.io/market-type": "spot", "ray.io/accelerator-type": "h100"}
    assert spot["template"]["spec"]["tolerations"] == [{"key": "spot", "operator": "Exists"}]
    assert "tolerations" not in on_demand["template"]["spec"]
    graces = [each["template"]["spec"]["terminationGracePeriodSeconds"] for each in (spot, on_demand)]
    assert graces == [15, 55]
    options = render(attempt(), cluster())["spec"]["rayClusterSpec"]["autoscalerOptions"]
    assert {each["name"]: each["value"] for each in options["env"]} == {
        "RAY_AUTOSCALER_RECONCILE_ALLOCATE_STATUS_TIMEOUT_S": "300",
        VISIBLE_GPUS: "void",
    }
    (only,) = groups_of(render(attempt(workers={"spot": "only"}), cluster()))
    assert only["groupName"] == "spot"


def test_a_run_knows_its_machine_and_the_price_of_a_worker() -> None:
    def told(market: Market, **workers: Any) -> dict[str, Any]:
        placed = dataclasses.replace(attempt(workers=workers), market=market)
        head = render(placed, cluster())["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["containers"][0]
        return {each["name"]: each.get("value") for each in head["env"]}

    whole = {"gpus": 8, "cpu": "8", "memory": "64Gi"}
    assert told("spot", **whole)["FOREBAY_RUN_MACHINE"] == "eu-1/h100/spot"
    prices = [float(told(market, **whole)["FOREBAY_RUN_PRICE"]) for market in ("spot", "on-demand")]
    assert prices == [10.0, 30.0]
    cases: list[tuple[Market, str]] = [("spot", "prefer"), ("spot", "only"), ("on-demand", "prefer")]
    falls = [told(market, spot=spot, **whole) for market, spot in cases]
    assert [each.get("FOREBAY_RUN_PRICE_ON_DEMAND") for each in falls] == ["30", None, None]
    assert float(told("spot", **whole | {"gpus": 2})["FOREBAY_RUN_PRICE"]) == 2.5
    sku = dataclasses.replace(cluster().sku["h100"], price_per_hour=None, spot_price_per_hour=None)
    unpriced = cluster(sku={"h100": sku})
    (group, *_) = groups_of(render(attempt(), unpriced))
    assert "FOREBAY_RUN_PRICE" not in env_of(group)


def test_a_head_that_has_room_elsewhere_keeps_off_the_workers_nodes() -> None:
    apart = dataclasses.replace(attempt(), is_head_apart=True)
    job = render(apart, cluster())
    head = job["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]
    (rule,) = head["affinity"]["nodeAffinity"].values()
    # A node of spot machines has both labels. Terms are joined by "or": one that differs is enough.
    assert [each["matchExpressions"] for each in rule["nodeSelectorTerms"]] == [
        [{"key": name, "operator": "NotIn", "values": [value]}]
        for name, value in cluster().sku["h100"].selector(apart.market).items()
    ]
    assert all("affinity" not in group["template"]["spec"] for group in groups_of(job))
    check_pods(job, CORE_VERSIONS[-1])


def test_labels_and_taints_of_a_market_are_asked_of_its_machines_alone() -> None:
    sku = Sku(
        cpu="96",
        memory="1Ti",
        gpus=8,
        markets=("spot", "on-demand"),
        node_selector={"sku": "h100"},
        on_demand_node_selector={"pool": "reserved"},
        spot_node_selector={"pool": "spot"},
        tolerations=({"key": "gpu", "operator": "Exists"},),
        on_demand_tolerations=({"key": "reserved", "operator": "Exists"},),
        spot_tolerations=({"key": "spot", "operator": "Exists"},),
    )
    job = render(attempt(), cluster(sku={"h100": sku}))
    spot, on_demand = (each["template"]["spec"] for each in groups_of(job))
    assert (spot["nodeSelector"], on_demand["nodeSelector"]) == (
        {"sku": "h100", "pool": "spot"},
        {"sku": "h100", "pool": "reserved"},
    )
    assert [[each["key"] for each in spec["tolerations"]] for spec in (spot, on_demand)] == [
        ["gpu", "spot"],
        ["gpu", "reserved"],
    ]
    # Heads, submitters and machines that stay keep off spot machines, whose taints are not known here.
    assert "affinity" not in spot
    head = job["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]
    submitter = job["spec"]["submitterPodTemplate"]
    for spec in (on_demand, head["spec"], submitter["spec"]):
        (rule,) = spec["affinity"]["nodeAffinity"].values()
        assert [each["matchExpressions"] for each in rule["nodeSelectorTerms"]] == [
            [{"key": "sku", "operator": "NotIn", "values": ["h100"]}],
            [{"key": "pool", "operator": "NotIn", "values": ["spot"]}],
        ]
    for template in (head, submitter):
        assert template["metadata"]["annotations"] == {
            "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
            "karpenter.sh/do-not-disrupt": "true",
        }


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    st.lists(st.dictionaries(st.sampled_from("abc"), st.sampled_from("xy"), min_size=1), min_size=1, max_size=3),
    st.dictionaries(st.sampled_from("abc"), st.sampled_from("xy")),
)
def test_an_affinity_admits_the_nodes_that_fit_no_selector(
    selectors: list[dict[str, str]], labels: dict[str, str]
) -> None:
    (rule,) = _nodes_without(selectors)["affinity"]["nodeAffinity"].values()
    is_admitted = any(
        all(labels.get(one["key"]) not in one["values"] for one in term["matchExpressions"])
        for term in rule["nodeSelectorTerms"]
    )
    assert is_admitted == (not any(each.items() <= labels.items() for each in selectors))


def test_a_fixed_size_needs_no_autoscaler() -> None:
    fixed = dataclasses.replace(attempt(workers={"max": 2, "spot": "never"}), market="on-demand")
    job = render(fixed, cluster())
    (group,) = groups_of(job)
    assert (group["replicas"], group["minReplicas"], group["maxReplicas"]) == (2, 2, 2)
    assert "enableInTreeAutoscaling" not in job["spec"]["rayClusterSpec"]


def test_a_job_on_the_shared_cluster_waits_in_no_queue_that_it_does_not_name() -> None:
    queued = cluster(shared_cluster="shared", scheduler="kueue", queues=("forebay",))
    job = render(attempt(scheduling={"cluster": "shared"}), queued)
    assert faults(job) == []
    named = render(attempt(scheduling={"cluster": "shared", "queue": "forebay"}), queued)
    assert faults(named) == ["a job on a shared cluster cannot wait in a queue of Kueue"]


def test_workers_ask_for_what_the_job_file_says() -> None:
    group = groups_of(render(attempt(), cluster()))[0]
    requests = container_of(group)["resources"]["requests"]
    assert requests == {"cpu": "12", "memory": "96Gi", "nvidia.com/gpu": "1", "ephemeral-storage": str(100 << 30)}
    assert group["template"]["spec"]["automountServiceAccountToken"] is False
    assert group["template"]["spec"]["nodeSelector"] == {"sku": "h100"}


@pytest.mark.parametrize("text", ["$HOME `id` $(id) $$ \"'; rm -rf / #", "ü\n\t*", "$(FOREBAY_RUN_NAME)"])
def test_words_reach_the_program_as_they_were_written(text: str) -> None:
    """Four readers of the entrypoint leave words alone.

    They are Kubernetes, the submitter's bash, `ray job submit` and the shell of Ray's job.
    """
    words = ("printf", "%s|", text)
    job = render(attempt(task=fb.fleet.Task(command=words)), cluster())
    in_container = job["spec"]["entrypoint"].replace("$$", "$")
    submitted = shlex.join(shlex.split(in_container))
    shown = subprocess.run(["/bin/sh", "-c", submitted], capture_output=True, text=True, check=True).stdout
    assert shown == f"{text}|"


@pytest.mark.parametrize(
    ("setup", "code", "shown"),
    [
        (["echo a # no", "export B=$A$A; cd /"], 0, "a\nxx /\n"),
        (["echo a", "false; true"], 0, "a\n /\n"),
        (["false", "echo never"], 97, ""),
        (["( exit 3 )"], 97, ""),
    ],
)
def test_a_setup_that_fails_starts_no_ray(setup: list[str], code: int, shown: str) -> None:
    made = attempt(launch={"setup": setup})
    group = groups_of(render(dataclasses.replace(made, code=None), cluster()))[0]
    (before,) = container_of(group)["args"]
    # As KubeRay joins them.
    line = f"{before.replace('$$', '$')} && ulimit -n 1024; cd / && echo $B $PWD".replace("; cd", " && cd")
    done = subprocess.run(["/bin/bash", "-c", line], capture_output=True, text=True, check=False, env={"A": "x"})
    assert (done.returncode, done.stdout) == (code, shown) if code else done.stdout.split() == shown.split()


def test_code_is_unpacked_before_the_setup() -> None:
    (before,) = container_of(groups_of(render(attempt(launch={"setup": "echo hi"}), cluster()))[0])["args"]
    fetch = f"python -m forebay.fleet.code s3://lake/runs {'c' * 64} /work/code && cd /work/code"
    assert before.index(fetch) < before.index("echo hi")
    assert before.endswith("|| exit 97")


@pytest.mark.parametrize(
    ("mode", "volume"),
    [
        ("emptyDir", {"emptyDir": {"sizeLimit": "100Gi"}}),
        ("hostPath", {"hostPath": {"path": "/cache/ml", "type": "Directory"}}),
        ("ephemeralClaim", None),
        ("none", None),
    ],
)
def test_the_cache_has_four_modes(mode: Any, volume: Any) -> None:
    job = render(attempt(), cluster(cache=CacheVolume(mode=mode, storage_class="local")))
    head, group = job["spec"]["rayClusterSpec"]["headGroupSpec"], groups_of(job)[0]
    volumes = {each.pop("name"): each for each in group["template"]["spec"]["volumes"]}
    if mode == "none":
        assert "cache" not in volumes and "FOREBAY_CACHE_DIR" not in env_of(group)
        return
    assert volume is None or volumes["cache"] == volume
    if mode == "ephemeralClaim":
        claim = volumes["cache"]["ephemeral"]["volumeClaimTemplate"]["spec"]
        assert claim["storageClassName"] == "local" and claim["accessModes"] == ["ReadWriteOnce"]
    assert env_of(group)["FOREBAY_CACHE_DIR"] == "/cache"
    assert env_of(group)["FOREBAY_CACHE_BYTES"] == str(int(0.9 * (100 << 30)))
    assert "FOREBAY_CACHE_DIR" not in env_of(head)


def test_secrets_are_references() -> None:
    launch = {"secret_env": {"HF_TOKEN": "hf-token/token"}, "mounts": [{"secret": "krb", "path": "/secrets/krb"}]}
    group = groups_of(render(attempt(launch=launch), cluster(secret_env={"AWS_SECRET_ACCESS_KEY": "s3/key"})))[0]
    assert env_of(group)["HF_TOKEN"] == {"secretKeyRef": {"name": "hf-token", "key": "token"}}
    assert env_of(group)["AWS_SECRET_ACCESS_KEY"] == {"secretKeyRef": {"name": "s3", "key": "key"}}
    (secret,) = [each for each in group["template"]["spec"]["volumes"] if "secret" in each]
    assert secret["secret"]["secretName"] == "krb"


def test_hdfs_brings_configuration_and_tickets() -> None:
    hdfs = Hdfs(config_map="conf", keytab_secret="krb", principal="train@CORP", renew_every="4h")
    for group in groups_of(render(attempt(), cluster(hdfs=hdfs))):
        (kinit,) = group["template"]["spec"]["initContainers"]
        assert kinit["restartPolicy"] == "Always" and "kinit -kt" in kinit["command"][-1]
        assert "sleep 14400" in kinit["command"][-1] and "train@CORP" in kinit["command"][-1]
        volumes = {each["name"]: each for each in group["template"]["spec"]["volumes"]}
        assert volumes["krb-ticket"]["emptyDir"]["medium"] == "Memory"
        assert volumes["hadoop"]["configMap"] == {"name": "conf"}
        assert env_of(group)["KRB5CCNAME"].startswith("FILE:/run/")
        assert not [each for each in container_of(group)["volumeMounts"] if each["name"] == "krb-keytab"]


def test_before_kubernetes_1_29_tickets_are_renewed_by_a_plain_container() -> None:
    hdfs = Hdfs(config_map="conf", keytab_secret="krb", principal="train@CORP", renew_every="4h")
    for group in groups_of(render(attempt(), cluster(hdfs=hdfs, native_sidecars=False))):
        (first,) = group["template"]["spec"]["initContainers"]
        assert "restartPolicy" not in first and "startupProbe" not in first
        assert "while" not in first["command"][-1], "it ends, or nothing would start"
        ray, again = group["template"]["spec"]["containers"]
        assert ray["name"] == "ray" and "sleep 14400" in again["command"][-1]
        assert first["volumeMounts"] == again["volumeMounts"]


def test_a_shared_cluster_is_selected() -> None:
    job = render(attempt(scheduling={"cluster": "shared"}), cluster(shared_cluster="forebay"))
    spec = job["spec"]
    assert spec["clusterSelector"] == {"ray.io/cluster": "forebay"}
    assert "rayClusterSpec" not in spec and spec["shutdownAfterJobFinishes"] is False
    assert "ttlSecondsAfterFinished" not in spec and "suspend" not in spec
    assert json.loads(spec["runtimeEnvYAML"])["env_vars"]["FOREBAY_RUN_ATTEMPT"] == "2/t0"
    assert " -- forebay run train.py" in spec["entrypoint"]


def test_engines_of_the_cluster_are_used_by_label() -> None:
    scheduling = {"queue": "ads", "priority": "high"}
    kueue = render(attempt(scheduling=scheduling), cluster(scheduler="kueue"))
    assert kueue["spec"]["suspend"] is True
    assert kueue["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "ads"
    assert kueue["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] == "high"
    assert "enableInTreeAutoscaling" not in kueue["spec"]["rayClusterSpec"] and len(groups_of(kueue)) == 1
    manager = render(attempt(scheduling=scheduling), cluster(scheduler="kueue", kind="manager"))
    assert manager["spec"]["managedBy"] == "kueue.x-k8s.io/multikueue"
    volcano = render(attempt(scheduling=scheduling), cluster(scheduler="volcano"))
    assert volcano["metadata"]["labels"]["volcano.sh/queue-name"] == "ads"
    assert volcano["metadata"]["labels"]["ray.io/scheduler-name"] == "volcano"
    plain = render(attempt(scheduling=scheduling), cluster())
    assert {each["template"]["spec"]["priorityClassName"] for each in groups_of(plain)} == {"high"}
    karmada = render(attempt(), cluster(kind="manager"))
    assert "managedBy" not in karmada["spec"]


def test_every_pod_keeps_to_the_restricted_level() -> None:
    hdfs = Hdfs(config_map="conf", keytab_secret="krb", principal="a@B")
    for template in pod_templates(render(attempt(), cluster(hdfs=hdfs))):
        spec = template["spec"]
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in [*spec["containers"], *spec.get("initContainers", ())]:
            security = container["securityContext"]
            assert security["allowPrivilegeEscalation"] is False and security["capabilities"] == {"drop": ["ALL"]}
        allowed = {"configMap", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}
        assert all(set(volume) - {"name"} <= allowed for volume in spec.get("volumes", ()))


def seen_gpus(template: dict[str, Any]) -> dict[str, Any]:
    """`NVIDIA_VISIBLE_DEVICES` of each container that has the variable."""
    spec = template["spec"]
    return {
        each["name"]: one["value"]
        for each in (*spec.get("initContainers", ()), *spec["containers"])
        for one in each.get("env", ())
        if one["name"] == VISIBLE_GPUS
    }


def test_a_container_that_asks_for_no_gpu_sees_none() -> None:
    """Images of CUDA set the variable to `all`, and a device plugin is asked for pods with GPUs alone."""
    hdfs = Hdfs(config_map="conf", keytab_secret="krb", principal="a@B")
    patch = {"spec": {"initContainers": [{"name": "warm", "command": ["true"]}]}}
    job = render(attempt(), cluster(hdfs=hdfs, pod_template=patch))
    head, submitter = job["spec"]["rayClusterSpec"]["headGroupSpec"], job["spec"]["submitterPodTemplate"]
    assert seen_gpus(head["template"]) == dict.fromkeys(("kinit", "warm", "ray"), "void")
    assert seen_gpus(submitter) == dict.fromkeys(("warm", "ray-job-submitter"), "void")
    assert NO_GPUS in job["spec"]["rayClusterSpec"]["autoscalerOptions"]["env"]
    for group in groups_of(job):
        assert seen_gpus(group["template"]) == dict.fromkeys(("kinit", "warm"), "void"), "the plugin names its GPUs"
    own = render(attempt(workers={"gpus": 0}, launch={"env": {VISIBLE_GPUS: "all"}}), cluster())
    for gpus, shown in ((render(attempt(workers={"gpus": 0}), cluster()), "void"), (own, "all")):
        assert {seen_gpus(group["template"])["ray"] for group in groups_of(gpus)} == {shown}
    other = dataclasses.replace(cluster().sku["h100"], gpu_resource="tencent.com/vcuda-core")
    assert all(
        "ray" not in seen_gpus(each["template"]) for each in groups_of(render(attempt(), cluster(sku={"h100": other})))
    )


def check(made: tuple[PlacedAttempt, Cluster]) -> None:
    job = render(*made)
    assert render(*made) == job
    assert faults(job) == []
    assert len(job["metadata"]["name"]) <= 47
    check_ray_job(job)
    for version in CORE_VERSIONS[-1:]:
        check_pods(job, version)


@needs_crds
@settings(max_examples=6, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(attempts())
def test_generated_jobs_pass_the_schemas_and_the_operator(made: tuple[PlacedAttempt, Cluster]) -> None:
    check(made)


@needs_crds
@pytest.mark.variation("more examples of the test above")
@settings(max_examples=1000, deadline=None, suppress_health_check=list(HealthCheck))
@given(attempts())
def test_a_thousand_generated_jobs_pass(made: tuple[PlacedAttempt, Cluster]) -> None:
    check(made)


@needs_crds
def test_the_schemas_refuse() -> None:
    import jsonschema

    job = render(attempt(), cluster())
    check_ray_job(job)
    for version in CORE_VERSIONS:
        check_pods(job, version)
    with pytest.raises(jsonschema.ValidationError, match="backofLimit"):
        check_ray_job({**job, "spec": {**job["spec"], "backofLimit": 0}})
    with pytest.raises(AssertionError, match="managedBy"):
        check_ray_job({**job, "spec": {**job["spec"], "managedBy": "me"}})
    preflight(job)
