"""RayJobs as the lifecycle sees them."""

from __future__ import annotations

from forebay.deploy.federation.kube_clusters import seen_job


def test_words_of_the_scheduler() -> None:
    condition = {"type": "PodScheduled", "status": "False", "message": "0/4 nodes are available"}
    pod = {"metadata": {"name": "p"}, "status": {"conditions": [condition]}}
    assert seen_job({"metadata": {"name": "a"}}, (pod, pod)).words == "0/4 nodes are available"
