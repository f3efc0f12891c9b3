"""RayJobs that are known again, and the next version of a RayCluster."""

from __future__ import annotations

from typing import Any

import pytest

from forebay.fleet.kube.api_errors import ObjectExists
from forebay.fleet.kube.kuberay import KubeRay, NameTaken, merged_cluster


class OneJobApi:
    """API server with one RayJob, which creates none of its name."""

    cluster = "west"

    def __init__(self, found: dict[str, Any]) -> None:
        self.found = found

    def create(self, *_: object, **__: object) -> dict[str, Any]:
        raise ObjectExists("already exists")

    def get(self, _: str) -> dict[str, Any]:
        return self.found


def test_a_job_of_an_earlier_submission_is_another_one() -> None:
    """The folder of the job was removed, and its attempts begin with 1 again."""

    def job(fence: str) -> dict[str, Any]:
        known = {"forebay.dev/key": "a", "forebay.dev/attempt": "1", "forebay.dev/fence": fence}
        return {"metadata": {"name": "fb-ctr-1", "annotations": known}}

    api: Any = OneJobApi(job("1/first"))
    kuberay = KubeRay(api, "ml")
    assert kuberay.create_job(job("1/first")) == api.found
    with pytest.raises(NameTaken, match="one of a later submission was to be created") as error:
        kuberay.create_job(job("1/second"))
    assert "second" not in str(error.value), "who has the token may be the attempt"


def test_groups_keep_what_the_autoscaler_set() -> None:
    def cluster(*groups, **metadata):
        return {"metadata": {"name": "c", **metadata}, "spec": {"workerGroupSpecs": list(groups)}}

    found = cluster(
        {"groupName": "a", "replicas": 5, "scaleStrategy": {"workersToDelete": ["x"]}, "maxReplicas": 8},
        {"groupName": "gone", "replicas": 1},
        resourceVersion="7",
        labels={"theirs": "1"},
    )
    merged = merged_cluster(
        found, cluster({"groupName": "a", "replicas": 0, "maxReplicas": 9}, {"groupName": "b", "replicas": 2})
    )
    assert merged["spec"]["workerGroupSpecs"] == [
        {"groupName": "a", "replicas": 5, "scaleStrategy": {"workersToDelete": ["x"]}, "maxReplicas": 9},
        {"groupName": "b", "replicas": 2},
    ]
    assert merged["metadata"]["resourceVersion"] == "7"
