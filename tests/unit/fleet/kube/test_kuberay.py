"""The next version of a RayCluster."""

from __future__ import annotations

from forebay.fleet.kube.kuberay import merged_cluster


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
