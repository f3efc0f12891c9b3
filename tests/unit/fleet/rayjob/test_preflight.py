"""Rules of the operator: each is broken once."""

from __future__ import annotations

import copy
import json
import subprocess
from typing import Any

import pytest
from tests.unit.fleet.rayjob.made import attempt, cluster

from forebay.errors import InvalidOption
from forebay.fleet.rayjob.preflight import faults, preflight
from forebay.fleet.rayjob.render import render

HEAD = "spec.rayClusterSpec.headGroupSpec"
GROUP = "spec.rayClusterSpec.workerGroupSpecs.0"
RAY = "spec.rayClusterSpec"
POD = "template.spec"
ABSENT = object()
ENV = f"{HEAD}.{POD}.containers.0.env"
SHARED = {"spec.clusterSelector": {"ray.io/cluster": "c"}}
QUEUED = {"metadata.labels": {"kueue.x-k8s.io/queue-name": "q"}}
V2 = {ENV: [{"name": "RAY_enable_autoscaler_v2", "value": "1"}]}
KEPT: dict[str, Any] = {f"{RAY}.gcsFaultToleranceOptions": {}}
NO_STOP = {"spec.shutdownAfterJobFinishes": False, "spec.ttlSecondsAfterFinished": 0}
BROKEN: list[tuple[str, dict[str, Any]]] = [
    ("has 48 characters", {"metadata.name": "a" * 48}),
    ("not a label of DNS", {"metadata.name": "7a"}),
    ("entrypoint is empty", {"spec.entrypoint": " "}),
    (
        "suspended job needs",
        {"spec.suspend": True, "spec.shutdownAfterJobFinishes": False, "spec.ttlSecondsAfterFinished": 0},
    ),
    ("is negative", {"spec.ttlSecondsAfterFinished": -1}),
    ("ttlSecondsAfterFinished needs", {"spec.shutdownAfterJobFinishes": False, "spec.ttlSecondsAfterFinished": 5}),
    ("backoffLimit is not 0", {"spec.backoffLimit": 3}),
    ("activeDeadlineSeconds is not above 0", {"spec.activeDeadlineSeconds": 0}),
    ("preRunningDeadlineSeconds is not above 0", {"spec.preRunningDeadlineSeconds": -5}),
    ("neither rayClusterSpec nor", {RAY: ABSENT}),
    ("names no cluster", {"spec.clusterSelector": {"app": "x"}}),
    ("cannot be suspended", {**SHARED, "spec.suspend": True}),
    (
        "cannot be submitted by a sidecar",
        {**SHARED, "spec.submissionMode": "SidecarMode"},
    ),
    (
        "cannot wait in a queue",
        {**SHARED, **QUEUED},
    ),
    ("takes no submitterPodTemplate", {"spec.submissionMode": "SidecarMode"}),
    ("takes no submitterConfig", {"spec.submissionMode": "SidecarMode", "spec.submitterConfig": {}}),
    ("not a mapping", {"spec.runtimeEnvYAML": "[1]"}),
    ("the values of A, B have $", {"spec.runtimeEnvYAML": json.dumps({"env_vars": {"A": "$$HOME", "B": "`id`"}})}),
    ("and variables have 100,010 bytes", {"spec.entrypoint": "printf " + "x" * 100_003}),
    ("group spot mounts two volumes at /work", {f"{GROUP}.{POD}.containers.0.volumeMounts.1.mountPath": "/work"}),
    ("deletionRules exclude", {"spec.deletionStrategy": {"deletionRules": [{"policy": "DeleteSelf"}]}}),
    ("DeleteWorkers excludes", {"spec.deletionStrategy": {"onSuccess": {"policy": "DeleteWorkers"}}}),
    (
        "shared cluster cannot be deleted",
        {
            **SHARED,
            "spec.deletionStrategy": {"onSuccess": {"policy": "DeleteCluster"}},
        },
    ),
    ("two groups have one name", {f"{GROUP}.groupName": "on-demand"}),
    ("head has no container", {f"{HEAD}.{POD}.containers": []}),
    ("spot has no container", {f"{GROUP}.{POD}.containers": []}),
    ("also num-cpus", {f"{HEAD}.resources": {"CPU": "1"}}),
    ("labels in rayStartParams", {f"{GROUP}.rayStartParams": {"labels": "a=b"}}),
    ("invalid label", {f"{GROUP}.labels": {"a b": "c"}}),
    ("minReplicas <= maxReplicas", {f"{GROUP}.minReplicas": 17}),
    ("minReplicas <= maxReplicas", {f"{GROUP}.maxReplicas": ABSENT}),
    ("more replicas", {f"{GROUP}.replicas": 17}),
    (
        "there is no autoscaler",
        {
            f"{RAY}.enableInTreeAutoscaling": False,
            **V2,
        },
    ),
    ("are both set", {**V2}),
    ("cannot be suspended under", {f"{GROUP}.suspend": True}),
    ("feature gate", {f"{GROUP}.suspend": True, f"{RAY}.enableInTreeAutoscaling": False}),
    ("group head restart", {f"{HEAD}.{POD}.restartPolicy": "Always"}),
    ("group spot restart", {f"{GROUP}.{POD}.restartPolicy": "OnFailure"}),
    ("Kueue takes no job", {**QUEUED}),
    ("needs rayVersion, and it is ''", {f"{RAY}.rayVersion": ABSENT}),
    ("rayVersion is 2.51.1", {f"{RAY}.rayVersion": "2.51.1"}),
    ("user of Redis", {f"{HEAD}.rayStartParams": {"redis-username": "x"}}),
    (
        "without gcsFaultToleranceOptions",
        {ENV: [{"name": "RAY_REDIS_ADDRESS", "value": "r"}]},
    ),
    (
        "REDIS_PASSWORD is set beside",
        {
            **KEPT,
            ENV: [{"name": "REDIS_PASSWORD", "value": "r"}],
        },
    ),
    (
        "redis-password is set beside",
        {**KEPT, f"{HEAD}.rayStartParams": {"redis-password": "x"}},
    ),
    (
        "annotation ray.io/ft-enabled",
        {**KEPT, "metadata.annotations": {"ray.io/ft-enabled": "true"}},
    ),
]


@pytest.fixture(scope="module")
def good() -> dict[str, Any]:
    job = render(attempt(), cluster())
    assert faults(job) == []
    return job


@pytest.mark.parametrize(("fault", "changes"), BROKEN)
def test_a_broken_rule_is_named(good: dict[str, Any], fault: str, changes: dict[str, Any]) -> None:
    job = copy.deepcopy(good)
    for path, value in changes.items():
        *parents, last = path.split(".")
        part_of: Any = job
        for part in parents:
            part_of = part_of[int(part)] if part.isdigit() else part_of[part]
        if value is ABSENT:
            del part_of[last]
        else:
            part_of[last] = value
    with pytest.raises(InvalidOption, match=r"KubeRay's operator would refuse the RayJob") as error:
        preflight(job)
    assert fault in str(error.value)


def test_there_are_enough_rules() -> None:
    assert len({fault for fault, _ in BROKEN}) >= 25


def test_a_mount_of_the_job_hides_no_volume_of_ours() -> None:
    launch = {"mounts": [{"secret": "krb", "path": "/cache"}]}
    assert faults(render(attempt(launch=launch), cluster())) == [
        "the group spot mounts two volumes at /cache",
        "the group on-demand mounts two volumes at /cache",
    ]


@pytest.mark.parametrize("value", ["$HOME", "`id`", "plain \"words\" 'é' \\n\n"])
def test_a_variable_that_a_shell_would_change_is_refused_on_a_shared_cluster(value: str) -> None:
    """KubeRay writes runtimeEnvYAML as JSON between double quotes into a line of bash."""
    made = attempt(scheduling={"cluster": "shared"}, launch={"env": {"A": value}})
    job = render(made, cluster(shared_cluster="shared"))
    quoted = json.dumps(json.dumps(json.loads(job["spec"]["runtimeEnvYAML"]))).replace("$$", "$")
    line = ["bash", "-c", f"printf %s {quoted}"]
    found = json.loads(subprocess.run(line, capture_output=True, text=True, check=True).stdout)["env_vars"]["A"]
    assert (found == value) == (faults(job) == [])
