"""The Ray cluster of a namespace."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.fleet.rayjob.kubernetes_schema import check_pods, check_ray_job, needs_crds
from tests.unit.fleet.rayjob.made import cluster

from forebay.errors import InvalidOption
from forebay.fleet.cluster import Sku
from forebay.fleet.rayjob.preflight import faults
from forebay.fleet.rayjob.shared_cluster import shared_cluster


def as_job(body: dict[str, Any]) -> dict[str, Any]:
    submitter = body["spec"]["headGroupSpec"]["template"]
    spec = {"entrypoint": "true", "shutdownAfterJobFinishes": True, "rayClusterSpec": body["spec"]}
    spec["submitterPodTemplate"] = submitter
    return {"apiVersion": "ray.io/v1", "kind": "RayJob", "metadata": {"name": "job"}, "spec": spec}


def test_group_for_each_sku_and_market() -> None:
    skus = {
        "cpu": Sku(cpu="8", memory="32Gi", most_nodes=3),
        "h100": Sku(cpu="96", memory="1Ti", gpus=8, most_nodes=2, markets=("spot", "on-demand")),
    }
    body = shared_cluster(cluster(sku=skus, shared_cluster="shared", scheduler="kueue"))
    groups = {each["groupName"]: each for each in body["spec"]["workerGroupSpecs"]}
    assert {name: (each["minReplicas"], each["replicas"], each["maxReplicas"]) for name, each in groups.items()} == {
        "cpu-on-demand": (0, 0, 3),
        "h100-spot": (0, 0, 2),
        "h100-on-demand": (0, 0, 2),
    }
    assert body["spec"]["enableInTreeAutoscaling"] is True
    resources = groups["h100-spot"]["template"]["spec"]["containers"][0]["resources"]["requests"]
    assert (resources["cpu"], resources["nvidia.com/gpu"]) == ("96", "8")
    assert faults(as_job(body)) == []


def test_nodes_belong_to_no_run() -> None:
    text = str(shared_cluster(cluster(shared_cluster="shared")))
    assert "FOREBAY_RUN_" not in text
    assert "forebay.dev/job" not in text
    assert "code.fetch" not in text


@needs_crds
def test_cluster_is_valid() -> None:
    job = as_job(shared_cluster(cluster(shared_cluster="shared")))
    check_ray_job(job)
    check_pods(job, "1.34")


def test_cluster_without_a_shared_one() -> None:
    with pytest.raises(InvalidOption, match="has no shared Ray cluster"):
        shared_cluster(cluster())
