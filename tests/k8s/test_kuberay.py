"""RayJobs and RayClusters with KubeRay's true CRDs."""

from __future__ import annotations

import threading
import time

import pytest
from tests.k8s.control_plane import ControlPlane
from tests.k8s.objects import ray_cluster, ray_job, wait_for
from tests.k8s.player import Player

from forebay.fleet.kube.api_errors import (
    ApiUnreachable,
    ObjectChanged,
    ObjectExists,
    ObjectInvalid,
    ObjectMissing,
    VersionExpired,
)
from forebay.fleet.kube.kuberay import DeletionStuck, KubeRay, NameTaken

pytestmark = pytest.mark.k8s

Planes, Players = dict[str, ControlPlane], dict[str, Player]


@pytest.fixture
def kuberay(planes: Planes) -> KubeRay:
    return KubeRay(planes["west"].api(), "default")


def state_of(job):
    status = job.get("status") or {}
    return "/".join(filter(None, (status.get("jobDeploymentStatus"), status.get("jobStatus"), status.get("reason"))))


def test_job_runs_to_its_end_and_is_deleted_with_its_pods(kuberay: KubeRay, players: Players) -> None:
    kuberay.create_job(ray_job("fits"))
    wait_for(lambda: state_of(kuberay.job("fits")) == "Complete/SUCCEEDED")
    # Its machines are free, while the RayJob stays.
    wait_for(lambda: not kuberay.pods("ray.io/group=gpu"))
    kuberay.delete_job("fits")
    assert kuberay.job("fits") is None
    wait_for(lambda: not kuberay.pods("ray.io/group=gpu"))


def test_gang_that_does_not_fit_says_why_and_runs_on_the_next_cluster(planes: Planes, players: Players) -> None:
    west, east = (KubeRay(planes[name].api(), "default") for name in ("west", "east"))
    west.create_job(ray_job("gang", workers=2, deadline_s=4))
    wait_for(lambda: state_of(west.job("gang")) == "Failed/PreRunningDeadlineExceeded")
    reasons = [
        condition["message"]
        for pod in west.pods("ray.io/group=gpu")
        for condition in pod["status"].get("conditions", ())
        if condition["type"] == "PodScheduled" and condition["status"] == "False"
    ]
    assert any("Insufficient nvidia.com/gpu" in each for each in reasons), reasons
    west.delete_job("gang")
    east.create_job(ray_job("gang", workers=2, deadline_s=60))
    wait_for(lambda: state_of(east.job("gang")) == "Complete/SUCCEEDED")
    east.delete_job("gang")


def test_wrong_objects_are_refused_with_their_field(kuberay: KubeRay) -> None:
    typo = ray_job("typo")
    typo["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]["priorty"] = 10
    with pytest.raises(ObjectInvalid, match=r'unknown field "spec.rayClusterSpec.workerGroupSpecs\[0\].priorty"'):
        kuberay.create_job(typo, dry_run=True)
    rule = ray_job("rule")
    rule["spec"]["managedBy"] = "me"
    with pytest.raises(ObjectInvalid, match=r"spec.managedBy"):
        kuberay.create_job(rule, dry_run=True)
    kind = ray_job("kind")
    kind["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]["replicas"] = "two"
    with pytest.raises(ObjectInvalid, match=r"replicas"):
        kuberay.create_job(kind, dry_run=True)
    assert [kuberay.job(name) for name in ("typo", "rule", "kind")] == [None] * 3


def test_second_create_adopts_its_own_job_and_refuses_another(kuberay: KubeRay, players: Players) -> None:
    mine = {"forebay.dev/key": "a", "forebay.dev/attempt": "1"}
    first = kuberay.create_job(ray_job("twice", **mine))
    again = kuberay.create_job(ray_job("twice", **mine))
    assert again["metadata"]["uid"] == first["metadata"]["uid"]
    with pytest.raises(NameTaken, match=r"'forebay.dev/attempt': '2'"):
        kuberay.create_job(ray_job("twice", **{**mine, "forebay.dev/attempt": "2"}))
    kuberay.delete_job("twice", key="another")
    assert kuberay.job("twice") is not None, "it is of another job"
    with pytest.raises(ObjectChanged):
        kuberay.api.delete("/apis/ray.io/v1/namespaces/default/rayjobs/twice", uid="another")
    kuberay.delete_job("twice", key="a")
    assert kuberay.job("twice") is None


def test_job_whose_answer_was_lost_is_adopted(planes: Planes, players: Players) -> None:
    plane = planes["west"]
    kuberay = KubeRay(plane.api(deadline_s=1.5), "default")
    mine = {"forebay.dev/key": "lost", "forebay.dev/attempt": "1"}
    plane.freeze()
    # Its request waits in the socket of the frozen server, which carries it out later.
    timer = threading.Timer(2.5, plane.thaw)
    timer.start()
    try:
        made = kuberay.create_job(ray_job("lost", **mine))
    finally:
        timer.join()
        plane.thaw()
    assert made["metadata"]["annotations"]["forebay.dev/key"] == "lost"
    assert [each["metadata"]["name"] for each in kuberay.jobs("forebay.dev/job=lost")] == ["lost"]
    kuberay.delete_job("lost")


def test_frozen_cluster_costs_the_deadline_and_no_more(planes: Planes) -> None:
    plane = planes["east"]
    api = plane.api(deadline_s=1.0)
    plane.freeze()
    began = time.monotonic()
    try:
        with pytest.raises(ApiUnreachable, match=r"cluster east gave no answer to GET /api/v1/nodes"):
            api.get("/api/v1/nodes")
    finally:
        plane.thaw()
    # Three attempts with their waits. urllib3's own retries would make it 12 s.
    assert time.monotonic() - began < 8


def test_deletion_without_an_operator_is_stuck(kuberay: KubeRay, players: Players) -> None:
    kuberay.create_job(ray_job("stays"))
    wait_for(lambda: kuberay.job("stays")["metadata"].get("finalizers"))
    players["west"].operator_runs = False
    try:
        with pytest.raises(DeletionStuck, match=r"Look whether KubeRay's operator runs"):
            kuberay.delete_job("stays", deadline_s=1.5)
    finally:
        players["west"].operator_runs = True
    kuberay.delete_job("stays")


def test_cluster_keeps_its_replicas_when_its_spec_is_applied_again(kuberay: KubeRay, players: Players) -> None:
    kuberay.apply_cluster(ray_cluster("shared", {"cpu": 0}))
    path = "/apis/ray.io/v1/namespaces/default/rayclusters/shared"
    groups = kuberay.api.get(path)["spec"]["workerGroupSpecs"]
    # As the autoscaler does.
    kuberay.api.merge(path, {"spec": {"workerGroupSpecs": [{**groups[0], "replicas": 2}]}})
    wait_for(lambda: len(kuberay.pods("ray.io/cluster=shared,ray.io/group=cpu")) == 2)
    changed = ray_cluster("shared", {"cpu": 0, "more": 1})
    changed["spec"]["workerGroupSpecs"][0]["maxReplicas"] = 6
    kuberay.apply_cluster(changed)
    found = {each["groupName"]: each for each in kuberay.cluster("shared")["spec"]["workerGroupSpecs"]}
    assert {name: group["replicas"] for name, group in found.items()} == {"cpu": 2, "more": 1}
    assert found["cpu"]["maxReplicas"] == 6
    kuberay.delete_cluster("shared")


def test_watch_from_an_old_version_says_so(kuberay: KubeRay) -> None:
    watch = kuberay.api.watch("/apis/ray.io/v1/namespaces/default/rayjobs", version="1")
    with pytest.raises(VersionExpired):
        next(watch)


def test_unknown_names_and_kinds(kuberay: KubeRay) -> None:
    assert kuberay.job("nobody") is None
    with pytest.raises(ObjectMissing, match=r"install KubeRay 1.7"):
        kuberay.api.get("/apis/nobody.io/v1/rayjobs")
    with pytest.raises(ObjectExists):
        kuberay.api.create("/api/v1/namespaces", {"metadata": {"name": "default"}})
